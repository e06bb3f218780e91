"""The interface of a history store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from smg_trio.core.conversations import Item, StoredConversation, StoredResponse


class HistoryStore(Protocol):
    """Keeps responses and conversations. What a call has returned from is kept, for as long as the store's kind keeps.

    Cancelled, a call may or may not have taken effect, never half.
    """

    async def put_response(self, response: StoredResponse) -> None:
        """Keep a response, in place of an earlier state of it."""
        ...

    async def get_response(self, response_id: str) -> StoredResponse | None:
        """A response; None if it is not (or no longer) kept."""
        ...

    async def delete_response(self, response_id: str) -> bool:
        """Forget a response; False if there was none."""
        ...

    async def put_conversation(self, conversation: StoredConversation) -> None:
        """Keep a conversation, or its new metadata; its items stay."""
        ...

    async def get_conversation(self, conversation_id: str) -> StoredConversation | None:
        """A conversation; None if it is not kept."""
        ...

    async def delete_conversation(self, conversation_id: str) -> bool:
        """Forget a conversation and its items; False if there was none."""
        ...

    async def add_items(self, conversation_id: str, items: Sequence[Item]) -> None:
        """Append items to a conversation that is kept; an id that is there already is left out."""
        ...

    async def items(self, conversation_id: str) -> list[Item]:
        """A conversation's items, oldest first."""
        ...

    async def delete_item(self, conversation_id: str, item_id: str) -> bool:
        """Forget one item; False if there was none."""
        ...


async def response_chain(store: HistoryStore, response_id: str) -> list[StoredResponse] | None:
    """A response and all it goes on from, oldest first; None if any of them is not kept."""
    chain: list[StoredResponse] = []
    seen: set[str] = set()
    following: str | None = response_id
    while following is not None and following not in seen:
        seen.add(following)
        response = await store.get_response(following)
        if response is None:
            return None
        chain.append(response)
        following = response.previous_response_id
    chain.reverse()
    return chain
