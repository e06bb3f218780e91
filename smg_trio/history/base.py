"""The interface of a history store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from smg_trio.core.errors import Conflict, GatewayFault
from smg_trio.history.relayed import RelayedResponses

if TYPE_CHECKING:
    from smg_trio.core.conversations import Item, StoredConversation, StoredResponse


class HistoryUnavailable(GatewayFault):
    """The history cannot be read or written: a full disk, a locked or broken file, a database that is away."""

    code = "history_unavailable"

    def __init__(self) -> None:
        super().__init__("Stored responses and conversations cannot be read or written at present. Try again later.")


class HistoryStore(RelayedResponses, Protocol):
    """Keeps responses and conversations, and which workers behind HTTP keep others.

    What a call has returned from is kept, for as long as the store's kind keeps.

    Everything kept has an owner. To another one it does not exist, unless its owner is `conversations.SHARED`. Calls
    without an owner follow one that has asked for the conversation.

    Every call may raise HistoryUnavailable. Cancelled, a call may or may not have taken effect, never half.
    """

    def ensure_writable(self) -> None:
        """To be asked before work that is of no use if it cannot be stored.

        Raises HistoryUnavailable shortly after a write has failed.
        """
        ...

    async def put_response(self, response: StoredResponse) -> None:
        """Keep a response, in place of an earlier state of it. Raises Conflict if its id is kept for another owner."""
        ...

    async def update_response(self, response: StoredResponse) -> bool:
        """Keep a later state of a response that is kept as queued or in progress.

        False, and nothing changes, if it is not: it was deleted, or has ended, perhaps through another gateway.
        """
        ...

    async def has_response(self, response_id: str) -> bool:
        """Whether a response of that id is kept for any key holder."""
        ...

    async def get_response(self, response_id: str, owner: str) -> StoredResponse | None:
        """A response; None if it is not (or no longer) kept."""
        ...

    async def get_chain(self, response_id: str, owner: str) -> list[StoredResponse] | None:
        """Give a response and all it goes on from, oldest first; None if any of them is not kept for the owner."""
        ...

    async def delete_response(self, response_id: str, owner: str) -> bool:
        """Forget a response; False if there was none."""
        ...

    async def find_items(self, item_ids: Collection[str], owner: str) -> dict[str, Item]:
        """Items of responses and conversations, by their ids; those that are not kept are left out.

        Of several with the same id the owner's own come first, then the newest.
        """
        ...

    async def put_conversation(self, conversation: StoredConversation) -> None:
        """Keep a conversation, or its new metadata; its items and owner stay."""
        ...

    async def get_conversation(self, conversation_id: str, owner: str) -> StoredConversation | None:
        """A conversation; None if it is not kept."""
        ...

    async def delete_conversation(self, conversation_id: str, owner: str) -> bool:
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

    async def forget_old(self, age_s: float) -> int:
        """Forget everything that was last written more than `age_s` seconds ago; how many responses and conversations.

        A conversation is written by its metadata and by items that are added.
        """
        ...


def id_taken(response_id: str) -> Conflict:
    """Of `HistoryStore.put_response`."""
    return Conflict(f"A response with the id '{response_id}' exists.", param="request_id")


def chain_from(response_id: str, kept: Callable[[str], StoredResponse | None]) -> list[StoredResponse] | None:
    """Follow a response to all it goes on from, for `HistoryStore.get_chain`; `kept` gives what the owner may see."""
    chain: list[StoredResponse] = []
    seen: set[str] = set()
    following: str | None = response_id
    while following is not None and following not in seen:
        seen.add(following)
        response = kept(following)
        if response is None:
            return None
        chain.append(response)
        following = response.previous_response_id
    chain.reverse()
    return chain
