"""History in memory: gone with the process, bounded in number and size; what was not used for longest goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

from smg_trio.core.conversations import Item, StoredConversation, StoredResponse
from smg_trio.core.heavy_json import weight

MAX_RESPONSES: Final = 10_000
MAX_CONVERSATIONS: Final = 10_000
MAX_WEIGHT: Final = 256_000_000
"""Characters of all responses, and of all conversations, each value in them counted as eight more."""


class MemoryHistory:
    """See `HistoryStore`. No call waits."""

    def __init__(
        self,
        max_responses: int = MAX_RESPONSES,
        max_conversations: int = MAX_CONVERSATIONS,
        max_weight: int = MAX_WEIGHT,
    ) -> None:
        self._max_responses = max_responses
        self._max_conversations = max_conversations
        self._max_weight = max_weight
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._conversations: OrderedDict[str, StoredConversation] = OrderedDict()
        self._items: dict[str, dict[str, Item]] = {}
        self._response_weights = _Weights(max_weight)
        self._conversation_weights = _Weights(max_weight)

    async def put_response(self, response: StoredResponse) -> None:
        """See `HistoryStore.put_response`."""
        self._responses[response.response_id] = response
        self._responses.move_to_end(response.response_id)
        self._response_weights.put(response.response_id, [response.value, list(response.input_items)])
        while len(self._responses) > self._max_responses or self._response_weights.too_many:
            self._response_weights.drop(self._responses.popitem(last=False)[0])

    async def get_response(self, response_id: str) -> StoredResponse | None:
        """See `HistoryStore.get_response`."""
        found = self._responses.get(response_id)
        if found is not None:
            self._responses.move_to_end(response_id)
        return found

    async def delete_response(self, response_id: str) -> bool:
        """See `HistoryStore.delete_response`."""
        self._response_weights.drop(response_id)
        return self._responses.pop(response_id, None) is not None

    async def put_conversation(self, conversation: StoredConversation) -> None:
        """See `HistoryStore.put_conversation`."""
        key = conversation.conversation_id
        self._conversations[key] = conversation
        self._conversations.move_to_end(key)
        self._items.setdefault(key, {})
        self._forget_conversations()

    def _forget_conversations(self) -> None:
        while len(self._conversations) > self._max_conversations or self._conversation_weights.too_many:
            forgotten, _ = self._conversations.popitem(last=False)
            self._conversation_weights.drop(forgotten)
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
        self._conversation_weights.drop(conversation_id)
        return self._conversations.pop(conversation_id, None) is not None

    async def add_items(self, conversation_id: str, items: Sequence[Item]) -> None:
        """See `HistoryStore.add_items`."""
        kept = self._items.get(conversation_id)
        if kept is None:
            return
        for item in items:
            kept.setdefault(item["id"], item)
        self._conversation_weights.add(conversation_id, list(items))
        self._forget_conversations()

    async def items(self, conversation_id: str) -> list[Item]:
        """See `HistoryStore.items`."""
        return list(self._items.get(conversation_id, {}).values())

    async def delete_item(self, conversation_id: str, item_id: str) -> bool:
        """See `HistoryStore.delete_item`."""
        return self._items.get(conversation_id, {}).pop(item_id, None) is not None


class _Weights:
    """How heavy what is kept under each key is, and all of it together."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._of: dict[str, int] = {}
        self._total = 0

    @property
    def too_many(self) -> bool:
        """Whether all together are heavier than they may be."""
        return self._total > self._limit

    def put(self, key: str, value: Any) -> None:
        """Something is kept under a key instead of what was."""
        self.drop(key)
        self.add(key, value)

    def add(self, key: str, value: Any) -> None:
        """Something more is kept under a key."""
        added = weight(value, self._limit)
        self._of[key] = self._of.get(key, 0) + added
        self._total += added

    def drop(self, key: str) -> None:
        """Nothing is kept under a key any more."""
        self._total -= self._of.pop(key, 0)
