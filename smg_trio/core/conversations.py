"""Records of what is kept between requests: responses and conversations, whose items are JSON objects.

An item is what the Responses API calls one: a message, a function call, its output, reasoning. Every stored item has
an ``id``, unique in its response or conversation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Item = dict[str, Any]

SHARED: Final = ""
"""Owner of what every key holder may see: it was kept while no key was needed, or before owners were recorded."""


def is_visible(kept_for: str, owner: str) -> bool:
    """Whether what is kept for an owner exists as far as `owner` can tell."""
    return kept_for in (SHARED, owner)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """One response and what it answered.

    Attributes:
        value: the response object as clients see it; its ``status`` and ``output`` change until it is over.
        input_items: what this request brought, references resolved; not what came before it.
        previous_response_id: the response this one goes on from.
        conversation_id: the conversation it belongs to.
        owner: identity of the key holder whose it is; see `SHARED`.
    """

    response_id: str
    value: Mapping[str, Any]
    input_items: Sequence[Item] = ()
    previous_response_id: str | None = None
    conversation_id: str | None = None
    owner: str = SHARED

    @property
    def is_pending(self) -> bool:
        """Whether it is still to be generated, or being generated."""
        return self.value.get("status") in ("queued", "in_progress")

    @property
    def items(self) -> list[Item]:
        """Input, then output: what a following request has to see of this one."""
        return [*self.input_items, *self.value["output"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredConversation:
    """A conversation without its items; ``created_at`` is in seconds since the epoch, `owner` as of a response."""

    conversation_id: str
    created_at: int
    metadata: Mapping[str, str]
    owner: str = SHARED
