"""History in memory, for several processes: the keeper has it, fronts ask for it."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from smg_trio.history.base import HistoryUnavailable
from smg_trio.history.relayed import RelayedResponse
from smg_trio.processes.channel import PeerGone
from smg_trio.processes.values import (
    conversation_of_value,
    conversation_value,
    response_of_value,
    response_value,
)

if TYPE_CHECKING:
    from smg_trio.core.conversations import Item, StoredConversation, StoredResponse
    from smg_trio.history.base import HistoryStore
    from smg_trio.history.relayed import RelayedResponses
    from smg_trio.processes.channel import Calls, Channel


class RemoteRelayed:
    """See `RelayedResponses`: a front's. They are unavailable once the keeper is gone."""

    def __init__(self, keeper: Channel) -> None:
        self._keeper = keeper

    async def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return await self._keeper.call(name, *arguments)
        except PeerGone:
            raise HistoryUnavailable from None

    async def put_relayed(self, response_id: str, worker_url: str, owner: str) -> None:
        """See `RelayedResponses.put_relayed`."""
        await self._call("put_relayed", response_id, worker_url, owner)

    async def find_relayed(self, response_id: str, owner: str) -> RelayedResponse | None:
        """See `RelayedResponses.find_relayed`."""
        found = await self._call("find_relayed", response_id, owner)
        return None if found is None else RelayedResponse(*found)

    async def delete_relayed(self, response_id: str, owner: str) -> None:
        """See `RelayedResponses.delete_relayed`."""
        await self._call("delete_relayed", response_id, owner)


class RemoteHistory(RemoteRelayed):
    """See `HistoryStore`: a front's. It is unavailable once the keeper is gone."""

    def ensure_writable(self) -> None:
        """See `HistoryStore.ensure_writable`."""

    async def put_response(self, response: StoredResponse) -> None:
        """See `HistoryStore.put_response`."""
        await self._call("put_response", response_value(response))

    async def update_response(self, response: StoredResponse) -> bool:
        """See `HistoryStore.update_response`."""
        return bool(await self._call("update_response", response_value(response)))

    async def has_response(self, response_id: str) -> bool:
        """See `HistoryStore.has_response`."""
        return bool(await self._call("has_response", response_id))

    async def get_response(self, response_id: str, owner: str) -> StoredResponse | None:
        """See `HistoryStore.get_response`."""
        found = await self._call("get_response", response_id, owner)
        return None if found is None else response_of_value(found)

    async def get_chain(self, response_id: str, owner: str) -> list[StoredResponse] | None:
        """See `HistoryStore.get_chain`."""
        found = await self._call("get_chain", response_id, owner)
        return None if found is None else [response_of_value(one) for one in found]

    async def delete_response(self, response_id: str, owner: str) -> bool:
        """See `HistoryStore.delete_response`."""
        return bool(await self._call("delete_response", response_id, owner))

    async def find_items(self, item_ids: Collection[str], owner: str) -> dict[str, Item]:
        """See `HistoryStore.find_items`."""
        found: dict[str, Item] = json.loads(await self._call("find_items", list(item_ids), owner))
        return found

    async def put_conversation(self, conversation: StoredConversation) -> None:
        """See `HistoryStore.put_conversation`."""
        await self._call("put_conversation", conversation_value(conversation))

    async def get_conversation(self, conversation_id: str, owner: str) -> StoredConversation | None:
        """See `HistoryStore.get_conversation`."""
        found = await self._call("get_conversation", conversation_id, owner)
        return None if found is None else conversation_of_value(found)

    async def delete_conversation(self, conversation_id: str, owner: str) -> bool:
        """See `HistoryStore.delete_conversation`."""
        return bool(await self._call("delete_conversation", conversation_id, owner))

    async def add_items(self, conversation_id: str, items: Sequence[Item]) -> None:
        """See `HistoryStore.add_items`."""
        await self._call("add_items", conversation_id, json.dumps(list(items)))

    async def items(self, conversation_id: str) -> list[Item]:
        """See `HistoryStore.items`."""
        found: list[Item] = json.loads(await self._call("items", conversation_id))
        return found

    async def delete_item(self, conversation_id: str, item_id: str) -> bool:
        """See `HistoryStore.delete_item`."""
        return bool(await self._call("delete_item", conversation_id, item_id))

    async def forget_old(self, age_s: float) -> int:
        """See `HistoryStore.forget_old`: the keeper does so by itself."""
        return 0


def relayed_calls(store: RelayedResponses) -> Calls:
    """The keeper's side of `RemoteRelayed`."""

    async def find_relayed(response_id: str, owner: str) -> list[Any] | None:
        found = await store.find_relayed(response_id, owner)
        return None if found is None else list(found)

    return {
        "put_relayed": store.put_relayed,
        "find_relayed": find_relayed,
        "delete_relayed": store.delete_relayed,
    }


def history_calls(store: HistoryStore) -> Calls:
    """The keeper's side of `RemoteHistory`."""

    async def put_response(value: list[Any]) -> None:
        await store.put_response(response_of_value(value))

    async def update_response(value: list[Any]) -> bool:
        return await store.update_response(response_of_value(value))

    async def get_chain(response_id: str, owner: str) -> list[list[Any]] | None:
        found = await store.get_chain(response_id, owner)
        return None if found is None else [response_value(one) for one in found]

    async def get_response(response_id: str, owner: str) -> list[Any] | None:
        found = await store.get_response(response_id, owner)
        return None if found is None else response_value(found)

    async def find_items(item_ids: list[str], owner: str) -> str:
        return json.dumps(await store.find_items(item_ids, owner))

    async def put_conversation(value: list[Any]) -> None:
        await store.put_conversation(conversation_of_value(value))

    async def get_conversation(conversation_id: str, owner: str) -> list[Any] | None:
        found = await store.get_conversation(conversation_id, owner)
        return None if found is None else conversation_value(found)

    async def add_items(conversation_id: str, items: str) -> None:
        await store.add_items(conversation_id, json.loads(items))

    async def items(conversation_id: str) -> str:
        return json.dumps(await store.items(conversation_id))

    return {
        "put_response": put_response,
        "update_response": update_response,
        "get_chain": get_chain,
        "has_response": store.has_response,
        "get_response": get_response,
        "delete_response": store.delete_response,
        "find_items": find_items,
        "put_conversation": put_conversation,
        "get_conversation": get_conversation,
        "delete_conversation": store.delete_conversation,
        "add_items": add_items,
        "items": items,
        "delete_item": store.delete_item,
    }
