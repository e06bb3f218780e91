"""What is kept, over HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.conversations import Conversation, ConversationDeletedResource, ConversationItem, ConversationItemList
from openai.types.responses import ResponseItemList
from pydantic import TypeAdapter

from smg_trio.api.openai.responses import stored as api
from smg_trio.api.openai.responses.items import parse_items
from smg_trio.core.conversations import StoredConversation, StoredResponse
from smg_trio.core.errors import InvalidRequest, NotFound, UnsupportedFeature

ITEM: TypeAdapter[ConversationItem] = TypeAdapter(ConversationItem)
ITEMS = parse_items(
    [{"role": "user", "content": str(i), "id": f"msg_{i}"} for i in range(5)]
    + [
        {"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "id": "fco", "call_id": "c", "output": "1"},
        {"type": "reasoning", "id": "rs", "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"role": "assistant", "content": "yes", "id": "msg_a"},
    ],
    lambda prefix: prefix,
)


def page(**query: str) -> dict[str, Any]:
    return json.loads(api.page_body(ITEMS, api.parse_page(query)))  # type: ignore[no-any-return]


def ids(body: dict[str, Any]) -> list[str]:
    return [item["id"] for item in body["data"]]


def response(**value: Any) -> StoredResponse:
    shown = {"id": "resp_1", "status": "completed", "output": ITEMS[-1:], "background": True, **value}
    return StoredResponse(response_id="resp_1", value=shown, input_items=ITEMS[:1])


def test_pages_are_newest_first_and_follow_each_other() -> None:
    first = page(limit="4")
    assert ids(first) == ["msg_a", "rs", "fco", "fc"]
    assert (first["first_id"], first["last_id"], first["has_more"]) == ("msg_a", "fc", True)
    second = page(limit="4", after=first["last_id"])
    assert ids(second) == ["msg_4", "msg_3", "msg_2", "msg_1"]
    last = page(after="msg_1")
    assert (ids(last), last["has_more"]) == (["msg_0"], False)
    assert ids(page(order="asc", limit="1")) == ["msg_0"]


def test_pages_are_what_the_official_client_takes() -> None:
    ResponseItemList.model_validate(page(), strict=True)
    ConversationItemList.model_validate(page(), strict=True)
    assert json.loads(api.page_body([], api.PageRequest()))["data"] == []


@pytest.mark.parametrize(
    ("query", "param"),
    [({"limit": "0"}, "limit"), ({"limit": "101"}, "limit"), ({"order": "up"}, "order"), ({"after": "x"}, "after")],
)
def test_a_bad_page_is_refused_by_name(query: dict[str, str], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        page(**query)
    assert caught.value.param == param


def test_history_is_input_then_output_of_each_response() -> None:
    assert [item["id"] for item in api.history_of([response(), response()])] == ["msg_0", "msg_a"] * 2


def test_only_a_background_response_that_runs_is_cancelled() -> None:
    assert api.cancelled(response(status="in_progress")).value["status"] == "cancelled"
    done = response()
    assert api.cancelled(done) is done
    with pytest.raises(InvalidRequest):
        api.cancelled(response(background=False))


def test_responses_over_http() -> None:
    assert json.loads(api.response_body(response()))["id"] == "resp_1"
    assert json.loads(api.response_deleted_body("resp_1")) == {"id": "resp_1", "object": "response", "deleted": True}
    assert api.response_not_found("resp_1").param == "response_id"
    assert api.conversation_not_found("conv_1").status == 404


def test_conversations_over_http() -> None:
    request = api.parse_conversation_request(b'{"items":[{"role":"user","content":"hi"}],"metadata":{"a":"b"}}')
    assert request.metadata == {"a": "b"}
    assert request.items[0]["content"] == [{"type": "input_text", "text": "hi"}]
    assert api.parse_conversation_request(b"") == api.ConversationRequest(items=[], metadata={})
    record = StoredConversation(conversation_id="conv_1", created_at=7, metadata={"a": "b"})
    Conversation.model_validate_json(api.conversation_body(record), strict=True)
    ConversationDeletedResource.model_validate_json(api.conversation_deleted_body("conv_1"), strict=True)
    assert api.parse_conversation_update(b'{"metadata":{"c":"d"}}') == {"c": "d"}
    assert api.parse_conversation_update(b'{"metadata":null}') == {}


def test_items_of_a_conversation_over_http() -> None:
    added = api.parse_added_items(b'{"items":[{"role":"user","content":"hi"},{"role":"assistant","content":"ho"}]}')
    body = json.loads(api.added_items_body(added))
    ConversationItemList.model_validate(body, strict=True)
    assert ids(body) == [item["id"] for item in added]
    ITEM.validate_json(api.item_body(ITEMS, "fc"), strict=True)
    with pytest.raises(NotFound):
        api.item_body(ITEMS, "nope")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{}", "items"),
        (b'{"items":[{"type":"item_reference","id":"x"}]}', "items[0].type"),
        (json.dumps({"items": [{"role": "user", "content": ""}] * 21}).encode(), "items"),
    ],
)
def test_bad_items_are_refused_by_name(body: bytes, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        api.parse_added_items(body)
    assert caught.value.param == param


def test_a_conversation_without_metadata_cannot_be_updated() -> None:
    with pytest.raises(InvalidRequest):
        api.parse_conversation_update(b"{}")
    with pytest.raises(UnsupportedFeature):
        api.parse_added_items(b'{"items":[{"type":"image_generation_call"}]}')
