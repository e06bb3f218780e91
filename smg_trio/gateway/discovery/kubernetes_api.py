"""Lists and watches pods over the API of Kubernetes.

As its documentation has it ("Kubernetes API Concepts", efficient detection of changes): a list says at which version it
was taken, a watch goes on from there as one JSON object per line, and a version that the server has forgotten (410, as
a status or as an event) means to list again.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

import trio

from smg_trio.core.errors import SmgError
from smg_trio.upstream.client import UpstreamClient, UpstreamRequest

WATCH_S: Final = 300
"""How long the server is asked to keep a watch open."""
_ANSWER_LIMIT_S: Final = 30.0
_MAX_LINE_BYTES: Final = 4 << 20
_MAX_LIST_BYTES: Final = 256 << 20
_GONE: Final = 410
OPENED: Final = "OPENED"


class ApiFailure(Exception):
    """The API could not be asked, or did not answer as it should; says why."""


class VersionGone(Exception):
    """The watch cannot go on from its version: list again."""


@dataclass(frozen=True, slots=True)
class PodList:
    """All pods at one version of the cluster's state."""

    items: Sequence[Any]
    version: str


class PodsApi:
    """The pods of one namespace that have certain labels.

    Args:
        client: of the API server; something runs it.
        namespace: whose pods.
        selector: ``name=value`` pairs, all of which a pod must have.
        read_token: the service account's token, read for each request since it is replaced every hour or so.
    """

    def __init__(
        self, client: UpstreamClient, namespace: str, selector: Sequence[str], read_token: Callable[[], str]
    ) -> None:
        self._client = client
        self._path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods"
        self._selector = ",".join(selector)
        self._read_token = read_token

    async def list(self) -> PodList:
        """All pods now. Raises ApiFailure."""
        text = bytearray()
        try:
            async with aclosing(self._body({})) as pieces:
                async for piece in pieces:
                    text += piece
                    if len(text) > _MAX_LIST_BYTES:
                        raise ApiFailure("the list of pods is too long")
        except VersionGone:
            raise ApiFailure(f"HTTP status {_GONE} for a list") from None
        found = _object(text)
        items, version = found.get("items"), _version(found)
        if not isinstance(items, list) or not version:
            raise ApiFailure("the answer is not a list of pods")
        return PodList(items, version)

    async def watch(self, version: str) -> AsyncGenerator[tuple[str, Any, str], None]:
        """(kind, object, version) of every change since, until the server ends the watch, as it does after a while.

        Kinds are ADDED, MODIFIED, DELETED and BOOKMARK, which only has a version; before them one OPENED without
        anything, once the server has agreed. Raises ApiFailure, VersionGone.
        """
        query = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version}
        rest = b""
        async with aclosing(self._body({**query, "timeoutSeconds": str(WATCH_S)}, silence_s=WATCH_S + 30)) as pieces:
            await anext(pieces)
            yield OPENED, {}, ""
            async for piece in pieces:
                *lines, rest = (rest + piece).split(b"\n")
                if len(rest) > _MAX_LINE_BYTES:
                    raise ApiFailure("an event is too long")
                for line in filter(bytes.strip, lines):
                    yield _event(line)

    async def _body(self, query: dict[str, str], silence_s: float = _ANSWER_LIMIT_S) -> AsyncGenerator[bytes, None]:
        """The body of an answer with status 200, after an empty piece that says that it begins."""
        if self._selector:
            query = {"labelSelector": self._selector, **query}
        headers = [("accept", "application/json")]
        try:
            token = await trio.to_thread.run_sync(self._read_token)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ApiFailure(f"the service account's token cannot be read: {reason}") from None
        if token:
            headers.append(("authorization", f"Bearer {token}"))
        request = UpstreamRequest(method="GET", path=f"{self._path}?{urlencode(query)}", headers=headers)
        exchange = self._client.exchange(request)
        try:
            with trio.fail_after(_ANSWER_LIMIT_S):
                head = await exchange.start()
            if head.status == _GONE:
                raise VersionGone
            if head.status != 200:
                raise ApiFailure(f"HTTP status {head.status}{_hint(head.status)}")
            yield b""
            while not exchange.complete:
                with trio.fail_after(silence_s):
                    data = await exchange.read()
                yield data
        except (SmgError, trio.TooSlowError) as error:
            raise ApiFailure(str(error) or "no answer in time") from None
        finally:
            exchange.close()


def _event(line: bytes) -> tuple[str, Any, str]:
    found = _object(line)
    kind, value = found.get("type"), found.get("object")
    if kind == "ERROR":
        status = value if isinstance(value, dict) else {}
        if status.get("code") == _GONE:
            raise VersionGone
        raise ApiFailure(f"the watch ended with an error: {str(status.get('message'))[:200]}")
    if not isinstance(kind, str) or not isinstance(value, dict):
        raise ApiFailure("an event without type and object")
    return kind, value, _version(value)


def _object(text: bytes | bytearray) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise ApiFailure("the answer is not JSON") from None
    if not isinstance(found, dict):
        raise ApiFailure("the answer is not a JSON object")
    return found


def _version(value: dict[str, Any]) -> str:
    metadata = value.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    return version if isinstance(version, str) else ""


def _hint(status: int) -> str:
    if status == 401:
        return ": the service account's token is not accepted"
    if status == 403:
        return ": the service account may not get, list and watch pods in that namespace"
    return ""
