"""Requests that two readers could read in two ways, or that are no HTTP: to be refused, and their connections closed.

A probe is written for one path and one lane by `Probe.bytes_for`. Every one is followed by a request of its own, which
a reader that was led astray would answer.
"""

from __future__ import annotations

from dataclasses import dataclass

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
WEBSOCKET = (
    b"Upgrade: websocket",
    b"Connection: Upgrade",
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    b"Sec-WebSocket-Version: 13",
)
CHUNKED = b"Transfer-Encoding: chunked"
HOST = b"Host: localhost"


@dataclass(frozen=True)
class Probe:
    """One request.

    Attributes:
        name: what is wrong with it.
        status: what it must be answered with, where its body is read if that is what is wrong. 501 may be 400: one
            parser of header lines refuses a coding before its meaning is looked at.
        first: the request line; ``@`` stands for method and path.
        lines: header lines beside ``Host``.
        raw: the whole head instead, with ``@`` and, where the lane's own headers go, ``#``.
        body: what follows the head.
    """

    name: str
    status: int
    first: bytes = b"@ HTTP/1.1"
    lines: tuple[bytes, ...] = ()
    raw: bytes = b""
    body: bytes = b""
    host: bool = True

    @property
    def is_about_the_body(self) -> bool:
        """Whether its head is good, so that only who reads the body can tell."""
        return self.lines == (CHUNKED,)

    def bytes_for(self, target: bytes, own: tuple[bytes, ...] = ()) -> bytes:
        """The request, and the one behind it; `own`: header lines of the lane."""
        if self.raw:
            head = self.raw.replace(b"#", b"".join(line + b"\r\n" for line in own)).replace(b"@", target)
        else:
            first = self.first.replace(b"@", target)
            head = b"\r\n".join([first, *([HOST] if self.host else []), *own, *self.lines, b"", b""])
        return head + self.body + SMUGGLED


def _lengths() -> list[Probe]:
    values = {
        "listed, equal": b"5, 5",
        "listed, different": b"5,6",
        "signed": b"+5",
        "negative": b"-5",
        "hexadecimal": b"0x5",
        "twice in one": b"5 5",
        "a fraction": b"5.0",
        "an exponent": b"5e0",
        "nothing": b"",
        "not of ASCII": b"\xd9\xa5",
        "with underscores": b"1_0",
        "of twenty digits": b"0" * 19 + b"5",
        "with a semicolon": b"5;",
        "quoted": b'"5"',
    }
    probes = [
        Probe(f"a length that is {name}", 400, lines=(b"Content-Length: " + value,), body=b"hello")
        for name, value in values.items()
    ]
    for name, lengths in (("equal", (b"5", b"5")), ("different", (b"5", b"48")), ("three", (b"5", b"5", b"5"))):
        lines = tuple(b"Content-Length: " + length for length in lengths)
        probes.append(Probe(f"several lengths, {name}", 400, lines=lines, body=b"hello"))
    return [*probes, Probe("a length beyond the limit", 413, lines=(b"Content-Length: 99999999999",))]


def _codings() -> list[Probe]:
    length, zero = b"Content-Length: 5", b"Content-Length: 0"
    both = {
        "length and coding": (length, CHUNKED),
        "coding and length": (CHUNKED, length),
        "no length and coding": (zero, CHUNKED),
        "coding between lengths": (length, CHUNKED, length),
    }
    probes = [Probe(name, 400, lines=lines, body=b"0\r\n\r\n") for name, lines in both.items()]
    values = {
        "gzip before chunked": b"gzip, chunked",
        "gzip after chunked": b"chunked, gzip",
        "identity": b"identity",
        "nothing": b"",
        "quoted": b'"chunked"',
        "with a parameter": b"chunked;q=1",
        "almost chunked": b"xchunked",
        "chunked in a list": b"chunked, chunked",
        "with a comma": b"chunked,",
    }
    for name, value in values.items():
        probes.append(Probe(f"a coding of {name}", 501, lines=(b"Transfer-Encoding: " + value,), body=b"0\r\n\r\n"))
    for name, second in (("twice", b"chunked"), ("and another", b"identity")):
        lines = (CHUNKED, b"Transfer-Encoding: " + second)
        probes.append(Probe(f"chunked {name}", 501, lines=lines, body=b"0\r\n\r\n"))
    probes.append(Probe("a coding after a tabulator of another kind", 400, lines=(b"Transfer-Encoding: \x0bchunked",)))
    probes.append(Probe("a coding in HTTP/1.0", 400, first=b"@ HTTP/1.0", lines=(CHUNKED,), body=b"0\r\n\r\n"))
    return probes


def _lines() -> list[Probe]:
    raws = {
        "folded with a blank": b"@ HTTP/1.1\r\nHost: localhost\r\n#X: a\r\n b\r\n\r\n",
        "folded with a tabulator": b"@ HTTP/1.1\r\nHost: localhost\r\n#X: a\r\n\tb\r\n\r\n",
        "a folded length": b"@ HTTP/1.1\r\nHost: localhost\r\n#Content-Length:\r\n 5\r\n\r\nhello",
        "a folded coding": b"@ HTTP/1.1\r\nHost: localhost\r\n#Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
        "a folded host": b"@ HTTP/1.1\r\nHost:\r\n localhost\r\n#\r\n",
        "a blank before the first header": b"@ HTTP/1.1\r\n X: y\r\nHost: localhost\r\n#\r\n",
        "bare LF throughout": b"@ HTTP/1.1\nHost: localhost\n\n",
        "bare LF after the request line": b"@ HTTP/1.1\nHost: localhost\r\n#\r\n",
        "bare LF between headers": b"@ HTTP/1.1\r\nHost: localhost\r\n#X: a\nY: b\r\n\r\n",
        "bare LF at the end": b"@ HTTP/1.1\r\nHost: localhost\r\n#X: a\r\n\n\r\n\r\n",
        "LF before the blank line": b"@ HTTP/1.1\r\nHost: localhost\r\n#X: a\n\r\n\r\n",
        "bare CR in a value": b"@ HTTP/1.1\r\nHost: localhost\r\n#X: a\rY: b\r\n\r\n",
        "CR twice": b"@ HTTP/1.1\r\nHost: localhost\r\r\n#\r\n\r\n",
        "bare CR in a name": b"@ HTTP/1.1\r\nHost: localhost\r\n#X\rY: b\r\n\r\n",
        "NUL in a value": b"@ HTTP/1.1\r\nHost: localhost\r\n#X: a\0b\r\n\r\n",
        "NUL in a name": b"@ HTTP/1.1\r\nHost: localhost\r\n#Content-Length\0: 5\r\n\r\n",
        "a control character": b"@ HTTP/1.1\r\nHost: localhost\r\n#X: \x1b[2J\r\n\r\n",
        "a blank before a colon": b"@ HTTP/1.1\r\nHost: localhost\r\n#Content-Length : 5\r\n\r\nhello",
        "a tabulator before a colon": b"@ HTTP/1.1\r\nHost: localhost\r\n#Content-Length\t: 5\r\n\r\nhello",
        "a name with a blank": b"@ HTTP/1.1\r\nHost: localhost\r\n#Content Length: 5\r\n\r\n",
        "no name": b"@ HTTP/1.1\r\nHost: localhost\r\n#: 5\r\n\r\n",
        "no colon": b"@ HTTP/1.1\r\nHost: localhost\r\n#Content-Length 5\r\n\r\n",
        "a name that is not ASCII": b"@ HTTP/1.1\r\nHost: localhost\r\n#X\xe9: y\r\n\r\n",
        "a name in brackets": b"@ HTTP/1.1\r\nHost: localhost\r\n#(X): y\r\n\r\n",
        "a name in quotes": b'@ HTTP/1.1\r\nHost: localhost\r\n#"X": y\r\n\r\n',
    }
    return [Probe(name, 400, raw=raw) for name, raw in raws.items()]


def _hosts() -> list[Probe]:
    return [
        Probe("no host", 400, host=False),
        Probe("a host twice", 400, lines=(HOST,)),
        Probe("two hosts", 400, lines=(b"Host: evil.example",)),
        Probe("two hosts in HTTP/1.0", 400, first=b"@ HTTP/1.0", lines=(b"Host: evil.example",)),
    ]


def _first_lines() -> list[Probe]:
    versions = {b"1.2": 505, b"2.0": 505, b"3.0": 505, b"0.9": 505, b"1.10": 400, b"1": 400, b"11": 400, b"1,1": 400}
    probes = [
        Probe(f"version {version.decode()}", status, first=b"@ HTTP/" + version) for version, status in versions.items()
    ]
    lines = {
        "a version in lower case": b"@ http/1.1",
        "another protocol": b"@ HTPP/1.1",
        "a blank behind": b"@ HTTP/1.1 ",
        "two blanks": b"@  HTTP/1.1",
        "a tabulator": b"@\tHTTP/1.1",
        "no version": b"@",
        "a blank in front": b" @ HTTP/1.1",
        "no target": b"GET HTTP/1.1",
        "a target without a slash": b"GET a HTTP/1.1",
        "a target that is not ASCII": b"GET /\xc3\xa9 HTTP/1.1",
        "a control character in the target": b"GET /\x07 HTTP/1.1",
        "a blank in the target": b"GET /a b HTTP/1.1",
        "an asterisk": b"GET * HTTP/1.1",
        "a method in lower case": b"get / HTTP/1.1",
    }
    for name, first in lines.items():
        probes.append(Probe(name, 400, first=first))
    for method, status in ((b"TRACE", 405), (b"BREW", 501), (b"GETT", 501)):
        probes.append(Probe(f"method {method.decode()}", status, first=method + b" / HTTP/1.1"))
    return [*probes, Probe("CONNECT", 405, first=b"CONNECT localhost:1 HTTP/1.1")]


def _expectations() -> list[Probe]:
    values = {
        "unknown": b"a-miracle",
        "a status": b"200-ok",
        "two": b"100-continue, x",
        "nothing": b"",
        "q": b"100-continue;q=1",
    }
    return [Probe(f"an expectation: {name}", 417, lines=(b"Expect: " + value,)) for name, value in values.items()]


def _chunks() -> list[Probe]:
    bodies = {
        "hexadecimal prefix": b"0x5\r\nhello\r\n0\r\n\r\n",
        "a sign": b"+5\r\nhello\r\n0\r\n\r\n",
        "a negative size": b"-5\r\nhello\r\n0\r\n\r\n",
        "a blank before": b" 5\r\nhello\r\n0\r\n\r\n",
        "a blank behind": b"5 \r\nhello\r\n0\r\n\r\n",
        "no size": b"\r\nhello\r\n0\r\n\r\n",
        "no number": b"G\r\nhello\r\n0\r\n\r\n",
        "seventeen digits": b"0" * 16 + b"5\r\nhello\r\n0\r\n\r\n",
        "underscores": b"1_0\r\nhello\r\n0\r\n\r\n",
        "no size but an extension": b";a=b\r\nhello\r\n0\r\n\r\n",
        "bare LF behind the size": b"5\nhello\r\n0\r\n\r\n",
        "bare LF in an extension": b"5;a\nb\r\nhello\r\n0\r\n\r\n",
        "bare LF behind an extension": b"5;a=b\nhello\r\n0\r\n\r\n",
        "bare CR in an extension": b"5;a\rb\r\nhello\r\n0\r\n\r\n",
        "NUL in an extension": b"5;a\0\r\nhello\r\n0\r\n\r\n",
        "a long extension": b"5;" + b"a" * 300 + b"\r\nhello\r\n0\r\n\r\n",
        "more data than said": b"4\r\nhello\r\n0\r\n\r\n",
        "less data than said": b"6\r\nhello\r\n0\r\n\r\n",
        "LF behind the data": b"5\r\nhello\n0\r\n\r\n",
        "bare LF at the end": b"5\r\nhello\r\n0\n\n",
        "bare LF behind the last chunk": b"5\r\nhello\r\n0\r\n\n",
        "a folded trailer": b"0\r\nX: a\r\n b\r\n\r\n",
        "a trailer without a colon": b"0\r\nX\r\n\r\n",
        "a trailer with bare LF": b"0\r\nX: a\nY: b\r\n\r\n",
        "a trailer with a blank in its name": b"0\r\nX : a\r\n\r\n",
        "endless trailers": b"0\r\n" + b"X: y\r\n" * 12_000,
    }
    return [Probe(f"chunks: {name}", 400, lines=(CHUNKED,), body=body) for name, body in bodies.items()]


PROBES = [*_lengths(), *_codings(), *_lines(), *_hosts(), *_first_lines(), *_expectations(), *_chunks()]

HANDSHAKES = [
    Probe("a length", 400, lines=(*WEBSOCKET, b"Content-Length: 5"), body=b"hello"),
    Probe("a coding", 400, lines=(*WEBSOCKET, CHUNKED), body=b"0\r\n\r\n"),
    Probe("two upgrades", 400, lines=(*WEBSOCKET, b"Upgrade: h2c")),
    Probe("two upgrades, reversed", 400, lines=(b"Upgrade: h2c", *WEBSOCKET)),
    Probe("two keys", 400, lines=(*WEBSOCKET, WEBSOCKET[2])),
    Probe("no key", 400, lines=(*WEBSOCKET[:2], WEBSOCKET[3])),
    Probe("a short key", 400, lines=(*WEBSOCKET[:2], b"Sec-WebSocket-Key: short", WEBSOCKET[3])),
    Probe("no version", 426, lines=WEBSOCKET[:3]),
    Probe("an old version", 426, lines=(*WEBSOCKET[:3], b"Sec-WebSocket-Version: 8")),
    Probe("two versions", 426, lines=(*WEBSOCKET, WEBSOCKET[3])),
    Probe("bytes before the answer", 400, lines=WEBSOCKET, body=b"\x81\x85\0\0\0\0hello"),
]
"""WebSocket handshakes."""
