"""The page: HTML, style and script put into one document that makes requests to its own gateway only.

Its Content-Security-Policy names the hashes of its one style and its one script, so nothing that gets into the page by
any other way is run, and lets it talk to its own origin only. It holds nothing that is secret: access to
what the page shows is checked where it asks for that.
"""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smg_trio.gateway.http import Headers

SCRIPTS = ("dom", "session", "overview", "workers", "tables", "pictures", "chat", "main")
"""Files of the script, in this order; they share one function's scope."""


@cache
def page() -> tuple[bytes, Headers]:
    """The document and the headers that it is served with."""
    style = _read("page.css")
    script = '(() => {\n"use strict";\n' + "\n".join(_read(f"{name}.js") for name in SCRIPTS) + "})();\n"
    text = _read("page.html")
    for mark, part in (("/* style */", style), ("/* script */", script)):
        assert text.count(mark) == 1, "the page has one place for each part"
        text = text.replace(mark, part)
    return text.encode(), _headers(style, script)


def _read(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _headers(style: str, script: str) -> Headers:
    policy = (
        "default-src 'none'",
        f"script-src {_source(script)}",
        f"style-src {_source(style)}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
    return [
        ("content-type", "text/html; charset=utf-8"),
        ("content-security-policy", "; ".join(policy)),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("referrer-policy", "no-referrer"),
        ("x-content-type-options", "nosniff"),
        ("cache-control", "no-cache"),
    ]


def _source(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
