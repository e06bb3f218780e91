"""Records of what is kept between requests: responses and conversations, whose items are JSON objects.

An item is what the Responses API calls one: a message, a function call, its output, a thought. Every stored item has
an ``id``, unique in its response or conversation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Item = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """One response and what it answered.

    Attributes:
        value: the response object as clients see it; its ``status`` and ``output`` change until it is over.
        input_items: what this request brought, references resolved; not what came before it.
        previous_response_id: the response this one goes on from.
        conversation_id: the conversation it belongs to.
    """

    response_id: str
    value: Mapping[str, Any]
    input_items: Sequence[Item] = ()
    previous_response_id: str | None = None
    conversation_id: str | None = None

    @property
    def items(self) -> list[Item]:
        """Input, then output: what a following request has to see of this one."""
        return [*self.input_items, *self.value["output"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredConversation:
    """A conversation without its items; ``created_at`` is in seconds since the epoch."""

    conversation_id: str
    created_at: int
    metadata: Mapping[str, str]
