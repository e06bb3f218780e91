"""``/v1/conversations``: conversations and their items, as the Responses API goes on from them."""

from __future__ import annotations

import time
from dataclasses import replace
from secrets import token_hex
from typing import TYPE_CHECKING

from smg_trio.api.openai.responses.stored import (
    added_items_body,
    conversation_body,
    conversation_deleted_body,
    conversation_not_found,
    item_body,
    page_body,
    parse_added_items,
    parse_conversation_request,
    parse_conversation_update,
    parse_page,
)
from smg_trio.core.conversations import StoredConversation
from smg_trio.core.errors import NotFound
from smg_trio.gateway.generation.responses_run import needs_history
from smg_trio.gateway.http import Request, Response, json_response

if TYPE_CHECKING:
    from smg_trio.gateway.state import Gateway


async def create_conversation(gateway: Gateway, request: Request) -> Response:
    """Create a conversation, optionally with items."""
    store = needs_history(gateway)
    asked = await gateway.parse_body(request, parse_conversation_request)
    conversation = StoredConversation(
        conversation_id=f"conv_{token_hex(16)}",
        created_at=int(time.time()),
        metadata=asked.metadata,
        owner=gateway.keys.owner(request.context.holder),
    )
    await store.put_conversation(conversation)
    await store.add_items(conversation.conversation_id, asked.items)
    return json_response(conversation_body(conversation))


async def get_conversation(gateway: Gateway, request: Request) -> Response:
    """Show a conversation without its items."""
    return json_response(conversation_body(await _kept(gateway, request)))


async def update_conversation(gateway: Gateway, request: Request) -> Response:
    """Replace a conversation's metadata."""
    kept = await _kept(gateway, request)
    conversation = replace(kept, metadata=await gateway.parse_body(request, parse_conversation_update))
    await needs_history(gateway).put_conversation(conversation)
    return json_response(conversation_body(conversation))


async def delete_conversation(gateway: Gateway, request: Request) -> Response:
    """Delete a conversation and its items."""
    conversation = await _kept(gateway, request)
    await needs_history(gateway).delete_conversation(conversation.conversation_id, conversation.owner)
    return json_response(conversation_deleted_body(conversation.conversation_id))


async def list_items(gateway: Gateway, request: Request) -> Response:
    """List a conversation's items, a page at a time."""
    conversation = await _kept(gateway, request)
    items = await needs_history(gateway).items(conversation.conversation_id)
    return json_response(page_body(items, parse_page(request.query)))


async def add_items(gateway: Gateway, request: Request) -> Response:
    """Append items to a conversation."""
    conversation = await _kept(gateway, request)
    items = await gateway.parse_body(request, parse_added_items)
    await needs_history(gateway).add_items(conversation.conversation_id, items)
    return json_response(added_items_body(items))


async def get_item(gateway: Gateway, request: Request) -> Response:
    """Show one item of a conversation."""
    conversation = await _kept(gateway, request)
    items = await needs_history(gateway).items(conversation.conversation_id)
    return json_response(item_body(items, request.path_parameters["item_id"]))


async def delete_item(gateway: Gateway, request: Request) -> Response:
    """Delete one item; returns the conversation."""
    conversation = await _kept(gateway, request)
    item_id = request.path_parameters["item_id"]
    if not await needs_history(gateway).delete_item(conversation.conversation_id, item_id):
        raise NotFound(f"Item with id '{item_id}' not found.", param="item_id")
    return json_response(conversation_body(conversation))


async def _kept(gateway: Gateway, request: Request) -> StoredConversation:
    conversation_id, owner = request.path_parameters["conversation_id"], gateway.keys.owner(request.context.holder)
    conversation = await needs_history(gateway).get_conversation(conversation_id, owner)
    if conversation is None:
        raise conversation_not_found(conversation_id)
    return conversation
