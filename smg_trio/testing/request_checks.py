"""What auth plug-ins and hooks are held to: an answer of the right kind, in time, whatever comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from smg_trio.core.plugin_calls import STALL_S, PluginCalls, PluginMistake
from smg_trio.gateway.hooks import LIMIT_S as HOOK_LIMIT_S
from smg_trio.gateway.hooks import checked_answer
from smg_trio.gateway.plugin_calls import PluginFailed, call_plugin
from smg_trio.gateway.security.authentication import LIMIT_S as AUTH_LIMIT_S
from smg_trio.gateway.security.authentication import checked_identity
from smg_trio.plugins import AnswerView, Credentials, RequestView
from smg_trio.testing.plugin_faults import CheckFailed

_TOKENS: Final = ("", "made-up", "x" * 10_000, "a.b.c", "\xc3\xa9\xff", "two words", "'; --", "\x00")
_MESSAGES: Final = [{"role": "user", "content": "hi"}]
_BODIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "/v1/chat/completions": {"model": "m", "messages": _MESSAGES, "stream": True},
    "/v1/completions": {"model": "m", "prompt": ["a", "b"]},
    "/v1/messages": {"model": "m", "max_tokens": 5, "messages": _MESSAGES},
    "/v1/responses": {"input": "hi"},
    "/v1/embeddings": {"model": "m", "input": [1, 2]},
    "/tokenize": {},
    "/generate": {"model": 5, "text": None},
}
Function = Callable[..., Any]


async def _called(what: str, limit_s: float, function: Function, view: object) -> Any:
    calls = PluginCalls("plug-in", "checked")
    try:
        result = await call_plugin(calls, limit_s, function, view)
    except PluginFailed as failure:
        error = failure.error
        raise CheckFailed(f"{what}: {type(error).__name__}: {error}") from error
    if calls.stalls:
        raise CheckFailed(f"{what}: it held the event loop for {calls.longest_s:.2f} s (more than {STALL_S:g} s)")
    return result


async def check_auth(authenticate: Function, options: Mapping[str, str]) -> None:
    """Tokens of every kind get an Identity or None. Raises CheckFailed."""
    for token in _TOKENS:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        credentials = Credentials(
            token=token, headers=headers, method="POST", path="/v1/chat/completions", options=options
        )
        what = f"the token {token[:20]!r}"
        identity = await _called(what, AUTH_LIMIT_S, authenticate, credentials)
        try:
            if identity is not None:
                checked_identity(identity)
        except PluginMistake as mistake:
            raise CheckFailed(f"{what}: {mistake}") from None


async def check_on_request(on_request: Function, options: Mapping[str, str]) -> None:
    """Requests of every API get None, a Refuse or Changes. Raises CheckFailed."""
    for path, body in _BODIES.items():
        model = body.get("model")
        view = RequestView(
            request_id="req-1",
            path=path,
            model=model if isinstance(model, str) else "",
            body=body,
            headers={"user-agent": "check"},
            identity="alice",
            options=options,
        )
        before = repr(body)
        answer = await _called(path, HOOK_LIMIT_S, on_request, view)
        try:
            checked_answer(answer)
        except PluginMistake as mistake:
            raise CheckFailed(f"{path}: {mistake}") from None
        if repr(body) != before:
            raise CheckFailed(f"{path}: it changed the body in place; return Changes instead")


async def check_on_answer(on_answer: Function, options: Mapping[str, str]) -> None:
    """Answers of every outcome are taken. Raises CheckFailed."""
    for status, error in (("ok", ""), ("failed", "engine_dead"), ("left", "")):
        view = AnswerView(
            request_id="req-1", endpoint="chat", model="m", status=status, error=error, prompt_tokens=3,
            completion_tokens=5, started=1_700_000_000.0, first_output_s=None if error else 0.1, duration_s=0.5,
            workers=("ipc:///run/check/0",), options=options,
        )  # fmt: skip
        await _called(f"an answer that is {status}", HOOK_LIMIT_S, on_answer, view)
