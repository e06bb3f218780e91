"""This package's own HTTP/1.1, from bytes to ASGI and back, with and without TLS.

`framing` finds where heads and bodies end, `head` decides what a head means, `parsers` turns header lines into pairs
(with httptools), `response` makes the bytes of an answer; all of these are pure. `connection` and `exchange` do the IO.
"""
