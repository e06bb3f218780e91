"""The page: in one piece, strict about what it runs, and asking nobody else for anything."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

from smg_trio.gateway.dashboard.page import SCRIPTS, page
from tests.e2e.harness import open_gateway

_ADDRESSES = {"src", "href", "action", "formaction", "data", "poster", "srcset", "background"}


class _Reader(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.handlers: list[str] = []
        self.references: list[str] = []
        self.inline: dict[str, list[str]] = {"style": [], "script": []}
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._inside = tag
        for name, value in attributes:
            if name == "id":
                self.ids.append(value or "")
            if name in ("for", "aria-labelledby", "aria-describedby"):
                self.references.append(value or "")
            if name in _ADDRESSES:
                self.addresses.append(value or "")
            if name.startswith("on") or name == "style":
                self.handlers.append(name)
        if tag in self.inline:
            self.inline[tag].append("")

    def handle_data(self, data: str) -> None:
        if self._inside in self.inline:
            self.inline[self._inside][-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""


BODY, HEADERS = page()
TEXT = BODY.decode()
READ = _Reader(TEXT)
POLICY = dict(HEADERS)["content-security-policy"]


def test_the_policy_allows_exactly_the_style_and_the_script_that_are_there() -> None:
    directives = dict(part.split(" ", 1) for part in POLICY.split("; "))
    assert directives["default-src"] == "'none'"
    assert directives["connect-src"] == "'self'"
    assert "unsafe" not in POLICY
    assert "*" not in POLICY
    for kind in ("style", "script"):
        (inline,) = READ.inline[kind]
        assert directives[f"{kind}-src"] == f"'sha256-{b64encode(sha256(inline.encode()).digest()).decode()}'"
    assert READ.handlers == []


def test_nothing_is_fetched_from_anywhere_else() -> None:
    assert [one for one in READ.addresses if not one.startswith(("#", "data:"))] == []
    # The namespace of SVG is a name, not an address.
    urls = set(re.findall(r"[a-z]+://[^\s\"'`)<>]+", TEXT)) - {"http://www.w3.org/2000/svg"}
    assert {url for url in urls if not url.startswith(("ipc://", "tcp://"))} == set()
    (style,) = READ.inline["style"]
    assert "@import" not in style
    assert "url(" not in style


def test_the_script_never_makes_markup_or_code_of_text() -> None:
    (script,) = READ.inline["script"]
    for danger in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc"):
        assert danger not in script
    assert "</" not in script


def test_ids_are_unique_and_what_is_named_exists() -> None:
    assert len(READ.ids) == len(set(READ.ids))
    (script,) = READ.inline["script"]
    named = set(re.findall(r'byId\("([\w-]+)"\)', script)) | set(READ.references)
    named |= {one[1:] for one in READ.addresses if one.startswith("#")}
    assert named - set(READ.ids) == set()


def test_every_script_of_the_package_is_in_the_page() -> None:
    package = Path(__file__).parents[3] / "smg_trio" / "gateway" / "dashboard" / "assets"
    assert {path.stem for path in package.glob("*.js")} == set(SCRIPTS)


async def test_it_is_served_to_everybody_and_says_nothing_of_the_gateway(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, connect=False, api_key=("s3cret",)) as bench:
        answer = await bench.http.get("/dashboard")
        assert answer.status_code == 200
        assert answer.content == BODY
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert (await bench.http.head("/dashboard")).status_code == 200
        plain = await bench.http.get("/dashboard/feed")
        assert plain.status_code in (400, 404)
