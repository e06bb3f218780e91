"""This package's own HTTP/1.1, from bytes to ASGI and back, with and without TLS.

`framing` finds where heads and bodies end, `head` decides what a head means, `parsers` turns header lines into pairs
(with httptools), `response` makes the bytes of an answer; all of these are pure. `connection`, `exchange` and the
`byte_stream` below them do the IO; `write_batcher` writes for many streams at once.
"""
