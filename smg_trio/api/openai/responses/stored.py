"""What is kept, over HTTP: responses and their input items, conversations and their items.

Lists are pages: ``order`` (``desc`` by default: newest first), ``after`` (an item's id) and ``limit`` (1..100, 20).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from smg_trio.api.errors import load_json
from smg_trio.api.json_text import dump, encode_text
from smg_trio.api.openai.responses.items import MakeId, make_item_id, parse_items, read_metadata
from smg_trio.api.parameters.fields import (
    Reader,
    filled_string,
    integer,
    one_of,
    read_fields,
    refuse,
    take,
    within,
)
from smg_trio.core.errors import ClientFault, InvalidRequest, NotFound

if TYPE_CHECKING:
    from smg_trio.core.conversations import Item, StoredConversation, StoredResponse

MAX_ITEMS_PER_CALL = 20
ENDED = frozenset({"completed", "incomplete", "failed", "cancelled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """Which part of a list is wanted."""

    after: str | None = None
    limit: int = 20
    newest_first: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRequest:
    """A new conversation."""

    items: list[Item]
    metadata: Mapping[str, str]


def parse_page(query: Mapping[str, str]) -> PageRequest:
    """Read the query of a list.

    Raises:
        InvalidRequest: naming the parameter.
    """
    found = read_fields(query, PAGE_READERS)
    newest_first = found.pop("order", "desc") == "desc"
    return PageRequest(newest_first=newest_first, **found)


def page_body(items: Sequence[Item], page: PageRequest) -> bytes:
    """One page of a list of items, which come oldest first.

    Raises:
        InvalidRequest: ``after`` names no item.
    """
    ordered = list(reversed(items)) if page.newest_first else list(items)
    start = 0 if page.after is None else _index_of(ordered, page.after, "after") + 1
    shown = ordered[start : start + page.limit]
    return encode_text(
        dump(
            {
                "object": "list",
                "data": shown,
                "first_id": shown[0]["id"] if shown else "",
                "last_id": shown[-1]["id"] if shown else "",
                "has_more": start + len(shown) < len(ordered),
            }
        )
    )


def history_of(chain: Iterable[StoredResponse]) -> list[Item]:
    """All items of responses that go on from each other, oldest first."""
    return [item for response in chain for item in response.items]


def cancelled(response: StoredResponse) -> StoredResponse:
    """A response as its cancelling leaves it; one that was over stays as it is.

    Raises:
        InvalidRequest: it does not run in the background; its client can disconnect instead.
    """
    if not response.value.get("background"):
        raise InvalidRequest("Cannot cancel a synchronous response.", param="response_id")
    if response.value["status"] in ENDED:
        return response
    return replace(response, value={**response.value, "status": "cancelled"})


def response_body(response: StoredResponse) -> bytes:
    """A stored response."""
    return encode_text(dump(response.value))


def response_deleted_body(response_id: str) -> bytes:
    """What the deletion of a response answers."""
    return encode_text(dump({"id": response_id, "object": "response", "deleted": True}))


def response_not_found(response_id: str) -> NotFound:
    """OpenAI's and vLLM's words for it."""
    return NotFound(f"Response with id '{response_id}' not found.", param="response_id")


class PreviousResponseNotFound(ClientFault):
    """The response that a request goes on from is not kept, or not for this key."""

    code = "previous_response_not_found"

    def __init__(self, response_id: str) -> None:
        super().__init__(f"Previous response with id '{response_id}' not found.", param="previous_response_id")


def conversation_not_found(conversation_id: str) -> NotFound:
    """OpenAI's words for it."""
    return NotFound(f"Conversation with id '{conversation_id}' not found.", param="conversation_id")


def parse_conversation_request(body: bytes, make_id: MakeId = make_item_id) -> ConversationRequest:
    """Read the body of a new conversation; no body is an empty one.

    Raises:
        InvalidRequest: naming the parameter.
        UnsupportedFeature: for items of hosted tools, and for media.
    """
    obj = load_json(body or b"{}")
    items = obj.get("items")
    return ConversationRequest(
        items=[] if items is None else _own_items(items, make_id),
        metadata=take(obj, "metadata", read_metadata) or {},
    )


def parse_conversation_update(body: bytes) -> Mapping[str, str]:
    """Read the new metadata of a conversation.

    Raises:
        InvalidRequest: naming the parameter.
    """
    obj = load_json(body)
    if "metadata" not in obj:
        raise refuse("metadata", "is required")
    return take(obj, "metadata", read_metadata) or {}


def parse_added_items(body: bytes, make_id: MakeId = make_item_id) -> list[Item]:
    """Read the items to be added to a conversation.

    Raises:
        InvalidRequest: naming the parameter.
        UnsupportedFeature: for items of hosted tools, and for media.
    """
    obj = load_json(body)
    if obj.get("items") is None:
        raise refuse("items", "is required")
    return _own_items(obj["items"], make_id)


def _own_items(value: Any, make_id: MakeId) -> list[Item]:
    items = parse_items(value, make_id, maximum=MAX_ITEMS_PER_CALL)
    for index, item in enumerate(items):
        if item["type"] == "item_reference":
            raise refuse(f"items[{index}].type", "a conversation holds items, not references to them")
    return items


def conversation_body(conversation: StoredConversation) -> bytes:
    """One conversation."""
    return encode_text(
        dump(
            {
                "id": conversation.conversation_id,
                "object": "conversation",
                "created_at": conversation.created_at,
                "metadata": dict(conversation.metadata),
            }
        )
    )


def conversation_deleted_body(conversation_id: str) -> bytes:
    """What the deletion of a conversation answers."""
    return encode_text(dump({"id": conversation_id, "object": "conversation.deleted", "deleted": True}))


def item_body(items: Sequence[Item], item_id: str) -> bytes:
    """One item of a conversation.

    Raises:
        NotFound: there is no such item.
    """
    for item in items:
        if item["id"] == item_id:
            return encode_text(dump(item))
    raise NotFound(f"Item with id '{item_id}' not found.", param="item_id")


def added_items_body(items: Sequence[Item]) -> bytes:
    """What adding items answers: these items, in order."""
    return page_body(items, PageRequest(limit=max(1, len(items)), newest_first=False))


def _index_of(items: Sequence[Item], item_id: str, param: str) -> int:
    for index, item in enumerate(items):
        if item["id"] == item_id:
            return index
    raise refuse(param, f"no item with the id '{item_id}' was found")


PAGE_READERS: dict[str, Reader] = {
    "after": filled_string,
    "limit": within(integer, 1, 100),
    "order": one_of(("asc", "desc")),
}
