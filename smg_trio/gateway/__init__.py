"""The HTTP side: the apps, their endpoints, and the process that runs it all.

`endpoints/` are plain functions from a `Request` to a `Response` whose body is bytes or a stream of bytes; they know
nothing of Quart, hypercorn or ASGI. `handling` wraps each call with what every request needs (request id, key, limits,
errors, metrics). `apps.quart_app` mounts them on Quart, `apps.hot_routes` mounts the busiest ones directly on ASGI in
front of it.
"""
