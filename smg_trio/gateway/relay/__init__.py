"""Requests for workers behind HTTP: the client's bytes go to a worker, the worker's bytes to the client.

`dispatch` decides whether a request is relayed at all, before its endpoint sees it; `session` is one request from
admission to its end, with retries before the first byte; `stream` and `whole` are the two forms of a response.
"""
