"""History in memory: gone with the process, bounded in number and size; what was not used for longest goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, Final

import trio

from smg_trio.core.conversations import SHARED, Item, StoredConversation, StoredResponse, is_visible
from smg_trio.core.heavy_json import weight
from smg_trio.history.base import chain_from, id_taken
from smg_trio.history.relayed import RelayedInMemory

MAX_RESPONSES: Final = 10_000
MAX_CONVERSATIONS: Final = 10_000
MAX_WEIGHT: Final = 256_000_000
"""Characters of all responses, and of all conversations, each value in them counted as eight more."""


class MemoryHistory(RelayedInMemory):
    """See `HistoryStore`. No call waits."""

    def __init__(
        self,
        max_responses: int = MAX_RESPONSES,
        max_conversations: int = MAX_CONVERSATIONS,
        max_weight: int = MAX_WEIGHT,
    ) -> None:
        super().__init__()
        self._max_responses = max_responses
        self._max_conversations = max_conversations
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._conversations: OrderedDict[str, StoredConversation] = OrderedDict()
        self._items: dict[str, dict[str, Item]] = {}
        self._response_weights = _Weights(max_weight)
        self._conversation_weights = _Weights(max_weight)
        self._response_ages = _Ages()
        self._conversation_ages = _Ages()
        self._response_index = _ItemIndex()
        self._conversation_index = _ItemIndex()

    def ensure_writable(self) -> None:
        """See `HistoryStore.ensure_writable`."""

    async def put_response(self, response: StoredResponse) -> None:
        """See `HistoryStore.put_response`."""
        response_id = response.response_id
        before = self._responses.get(response_id)
        if before is not None:
            if before.owner != response.owner:
                raise id_taken(response_id)
            self._forget_response(response_id)
        self._responses[response_id] = response
        self._response_index.add(_ids(response.items), response_id)
        self._response_ages.written(response_id)
        self._response_weights.add(response_id, [response.value, list(response.input_items)])
        while len(self._responses) > self._max_responses or self._response_weights.too_many:
            self._forget_response(next(iter(self._responses)))

    def _forget_response(self, response_id: str) -> None:
        forgotten = self._responses.pop(response_id)
        self._response_index.drop(_ids(forgotten.items), response_id)
        self._response_ages.drop(response_id)
        self._response_weights.drop(response_id)

    async def update_response(self, response: StoredResponse) -> bool:
        """See `HistoryStore.update_response`."""
        before = self._responses.get(response.response_id)
        if before is None or before.owner != response.owner or not before.is_pending:
            return False
        await self.put_response(response)
        return True

    async def has_response(self, response_id: str) -> bool:
        """See `HistoryStore.has_response`."""
        return response_id in self._responses

    async def get_response(self, response_id: str, owner: str) -> StoredResponse | None:
        """See `HistoryStore.get_response`."""
        return self._visible(response_id, owner)

    def _visible(self, response_id: str, owner: str) -> StoredResponse | None:
        found = self._responses.get(response_id)
        if found is None or not is_visible(found.owner, owner):
            return None
        self._responses.move_to_end(response_id)
        return found

    async def get_chain(self, response_id: str, owner: str) -> list[StoredResponse] | None:
        """See `HistoryStore.get_chain`."""
        return chain_from(response_id, partial(self._visible, owner=owner))

    async def delete_response(self, response_id: str, owner: str) -> bool:
        """See `HistoryStore.delete_response`."""
        found = self._responses.get(response_id)
        if found is None or not is_visible(found.owner, owner):
            return False
        self._forget_response(response_id)
        return True

    async def find_items(self, item_ids: Collection[str], owner: str) -> dict[str, Item]:
        """See `HistoryStore.find_items`."""
        items = ((item_id, self._find_item(item_id, owner)) for item_id in item_ids)
        return {item_id: item for item_id, item in items if item is not None}

    def _find_item(self, item_id: str, owner: str) -> Item | None:
        responses = [self._responses[key] for key in self._response_index.of(item_id)]
        for own in dict.fromkeys((owner, SHARED)):
            for response in reversed(responses):
                if response.owner == own:
                    return next(item for item in response.items if item["id"] == item_id)
            for key in self._conversation_index.of(item_id):
                if self._conversations[key].owner == own:
                    return self._items[key][item_id]
        return None

    async def put_conversation(self, conversation: StoredConversation) -> None:
        """See `HistoryStore.put_conversation`."""
        key = conversation.conversation_id
        self._conversations[key] = conversation
        self._conversations.move_to_end(key)
        self._items.setdefault(key, {})
        self._conversation_ages.written(key)
        self._forget_conversations()

    def _forget_conversations(self) -> None:
        while len(self._conversations) > self._max_conversations or self._conversation_weights.too_many:
            self._forget_conversation(next(iter(self._conversations)))

    def _forget_conversation(self, key: str) -> None:
        del self._conversations[key]
        self._conversation_index.drop(self._items.pop(key), key)
        self._conversation_ages.drop(key)
        self._conversation_weights.drop(key)

    async def get_conversation(self, conversation_id: str, owner: str) -> StoredConversation | None:
        """See `HistoryStore.get_conversation`."""
        found = self._conversations.get(conversation_id)
        if found is None or not is_visible(found.owner, owner):
            return None
        self._conversations.move_to_end(conversation_id)
        return found

    async def delete_conversation(self, conversation_id: str, owner: str) -> bool:
        """See `HistoryStore.delete_conversation`."""
        found = self._conversations.get(conversation_id)
        if found is None or not is_visible(found.owner, owner):
            return False
        self._forget_conversation(conversation_id)
        return True

    async def add_items(self, conversation_id: str, items: Sequence[Item]) -> None:
        """See `HistoryStore.add_items`."""
        kept = self._items.get(conversation_id)
        if kept is None:
            return
        added: dict[str, Item] = {}
        for item in items:
            if item["id"] not in kept:
                added.setdefault(item["id"], item)
        kept.update(added)
        self._conversation_ages.written(conversation_id)
        self._conversation_index.add(added, conversation_id)
        self._conversation_weights.add(conversation_id, list(items))
        self._forget_conversations()

    async def items(self, conversation_id: str) -> list[Item]:
        """See `HistoryStore.items`."""
        return list(self._items.get(conversation_id, {}).values())

    async def delete_item(self, conversation_id: str, item_id: str) -> bool:
        """See `HistoryStore.delete_item`."""
        if self._items.get(conversation_id, {}).pop(item_id, None) is None:
            return False
        self._conversation_index.drop((item_id,), conversation_id)
        return True

    async def forget_old(self, age_s: float) -> int:
        """See `HistoryStore.forget_old`."""
        moment = trio.current_time() - age_s
        responses, conversations = self._response_ages.before(moment), self._conversation_ages.before(moment)
        for response_id in responses:
            self._forget_response(response_id)
        for conversation_id in conversations:
            self._forget_conversation(conversation_id)
        return len(responses) + len(conversations) + self._forget_relayed(moment)


def _ids(items: Iterable[Item]) -> dict[str, None]:
    return dict.fromkeys(item["id"] for item in items)


class _ItemIndex:
    """Under which keys an item is kept, by the item's id; what was added last comes last."""

    def __init__(self) -> None:
        self._keys: dict[str, list[str]] = {}

    def of(self, item_id: str) -> Sequence[str]:
        """The keys under which the item is kept."""
        return self._keys.get(item_id, ())

    def add(self, item_ids: Iterable[str], key: str) -> None:
        """These items are kept under the key, where they were not before."""
        for item_id in item_ids:
            self._keys.setdefault(item_id, []).append(key)

    def drop(self, item_ids: Iterable[str], key: str) -> None:
        """These items are not kept under the key any more."""
        for item_id in item_ids:
            keys = self._keys[item_id]
            keys.remove(key)
            if not keys:
                del self._keys[item_id]


class _Ages:
    """When what is kept under each key was last written, oldest first."""

    def __init__(self) -> None:
        self._written: OrderedDict[str, float] = OrderedDict()

    def written(self, key: str) -> None:
        """What is kept under the key is written now."""
        self._written[key] = trio.current_time()
        self._written.move_to_end(key)

    def drop(self, key: str) -> None:
        """Nothing is kept under the key any more."""
        del self._written[key]

    def before(self, moment: float) -> list[str]:
        """Keys of what was last written before that moment on trio's clock."""
        return [key for key, _ in takewhile(lambda entry: entry[1] < moment, self._written.items())]


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

    def add(self, key: str, value: Any) -> None:
        """Something more is kept under a key."""
        added = weight(value, self._limit)
        self._of[key] = self._of.get(key, 0) + added
        self._total += added

    def drop(self, key: str) -> None:
        """Nothing is kept under a key any more."""
        self._total -= self._of.pop(key, 0)
