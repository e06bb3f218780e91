"""``enable_response_messages`` of the Responses API (vLLM 0.32): the prompt and the output as the model has them.

A raw message is a text with its tokens; where the two differ the tokens are right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RawMessages:
    """What is needed to show them.

    Attributes:
        prompt: its text.
        prompt_token_ids: int[T].
        decode: token ids of the output to their text.
    """

    prompt: str
    prompt_token_ids: Sequence[int]
    decode: Callable[[Sequence[int]], str]

    def members(self, output_token_ids: Sequence[int]) -> dict[str, Any]:
        """As members of the response object; no output is no message."""
        output = [_message(self.decode(output_token_ids), output_token_ids)] if output_token_ids else []
        return {"input_messages": [_message(self.prompt, self.prompt_token_ids)], "output_messages": output}


def _message(text: str, token_ids: Sequence[int]) -> dict[str, Any]:
    return {"type": "raw_message_tokens", "message": text, "tokens": list(token_ids)}
