"""History in memory: gone with the process, bounded in number; what was not used for longest goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from smg_trio.core.conversations import Item, StoredConversation, StoredResponse

MAX_RESPONSES = 10_000
MAX_CONVERSATIONS = 10_000


class MemoryHistory:
    """See `HistoryStore`. No call waits."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_conversations: int = MAX_CONVERSATIONS) -> None:
        self._max_responses = max_responses
        self._max_conversations = max_conversations
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._conversations: OrderedDict[str, StoredConversation] = OrderedDict()
        self._items: dict[str, dict[str, Item]] = {}

    async def put_response(self, response: StoredResponse) -> None:
        """See `HistoryStore.put_response`."""
        self._responses[response.response_id] = response
        self._responses.move_to_end(response.response_id)
        while len(self._responses) > self._max_responses:
            self._responses.popitem(last=False)

    async def get_response(self, response_id: str) -> StoredResponse | None:
        """See `HistoryStore.get_response`."""
        found = self._responses.get(response_id)
        if found is not None:
            self._responses.move_to_end(response_id)
        return found

    async def delete_response(self, response_id: str) -> bool:
        """See `HistoryStore.delete_response`."""
        return self._responses.pop(response_id, None) is not None

    async def put_conversation(self, conversation: StoredConversation) -> None:
        """See `HistoryStore.put_conversation`."""
        key = conversation.conversation_id
        self._conversations[key] = conversation
        self._conversations.move_to_end(key)
        self._items.setdefault(key, {})
        while len(self._conversations) > self._max_conversations:
            forgotten, _ = self._conversations.popitem(last=False)
            del self._items[forgotten]

    async def get_conversation(self, conversation_id: str) -> StoredConversation | None:
        """See `HistoryStore.get_conversation`."""
        found = self._conversations.get(conversation_id)
        if found is not None:
            self._conversations.move_to_end(conversation_id)
        return found

    async def delete_conversation(self, conversation_id: str) -> bool:
        """See `HistoryStore.delete_conversation`."""
        self._items.pop(conversation_id, None)
        return self._conversations.pop(conversation_id, None) is not None

    async def add_items(self, conversation_id: str, items: Sequence[Item]) -> None:
        """See `HistoryStore.add_items`."""
        kept = self._items.get(conversation_id)
        if kept is not None:
            for item in items:
                kept.setdefault(item["id"], item)

    async def items(self, conversation_id: str) -> list[Item]:
        """See `HistoryStore.items`."""
        return list(self._items.get(conversation_id, {}).values())

    async def delete_item(self, conversation_id: str, item_id: str) -> bool:
        """See `HistoryStore.delete_item`."""
        return self._items.get(conversation_id, {}).pop(item_id, None) is not None
