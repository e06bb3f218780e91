"""Workers behind HTTP: an OpenAI-style server at an ``http://`` or ``https://`` URL, another smg-trio or any other.

`client` sends one request and reads one response over a pool of connections; it knows no model. `http_worker` holds
what is known of one such server and asks it at intervals; `relay_headers`, `stream_usage` and `discovery` are the pure
parts. Choosing a worker, retries and the client's side are above this room.
"""
