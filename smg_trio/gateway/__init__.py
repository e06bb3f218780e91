"""The HTTP side: a quart-trio app on hypercorn, its endpoints, and the process that runs it all.

`endpoints/` are plain functions from a `Request` to a `Response` whose body is bytes or a stream of bytes; they know
nothing of Quart, hypercorn or ASGI. `handling` wraps each call with what every request needs (request id, key, limits,
errors, metrics). `app` mounts them on Quart, `hot_routes` mounts the busiest ones directly on ASGI in front of it.
"""
