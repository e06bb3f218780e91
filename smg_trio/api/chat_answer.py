"""The constant part of one chat answer, in whichever API it is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from secrets import token_hex

from smg_trio.core.records import record


def make_tool_call_id() -> str:
    """A new tool call id as OpenAI's look: ``call_`` and 24 hex digits. The room's only randomness."""
    return f"call_{token_hex(12)}"


@record
class ChatAnswer:
    """What is the same in every chunk of a chat answer, and what the request wants shown.

    Attributes:
        response_id: ``chatcmpl-...``.
        model: the name the client asked for.
        created: seconds since the epoch.
        role: of the answering message.
        named_tool: the tool choice named a function; such a call ends in ``stop`` (OpenAI, vLLM).
        parallel_tool_calls: False shows only the first call.
        show_reasoning: False hides reasoning, and token ids and logprobs with them, since these would
            give the reasoning away.
        top_logprobs: candidates shown per token; -1 = all there are. Logprobs are shown if updates have them.
        tokens_as_ids: show tokens as ``token_id:<n>`` instead of their text.
        return_token_ids: show token ids.
        prompt_token_ids: of the prompt; shown if ``return_token_ids``.
        prompt_text: the rendered prompt, if it is to be shown.
        echo: text the content begins with.
        system_fingerprint: shown if not None.
        make_call_id: makes ids for calls whose format carries none.
    """

    response_id: str
    model: str
    created: int
    role: str = "assistant"
    named_tool: bool = False
    parallel_tool_calls: bool = True
    show_reasoning: bool = True
    top_logprobs: int = 0
    tokens_as_ids: bool = False
    return_token_ids: bool = False
    prompt_token_ids: Sequence[int] = ()
    prompt_text: str | None = None
    echo: str = ""
    system_fingerprint: str | None = None
    make_call_id: Callable[[], str] = make_tool_call_id
