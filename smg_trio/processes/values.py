"""Records of the gateway as values that a message between its processes can hold, and back."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from smg_trio.core.conversations import StoredConversation, StoredResponse
from smg_trio.core.engines import EngineProtocol
from smg_trio.core.requests import LoraAdapter
from smg_trio.core.workers import BreakerOverrides, HealthOverrides, OverloadOverrides, RetryOverrides, WorkerSpec
from smg_trio.settings.settings import Settings, options


def settings_value(settings: Settings) -> dict[str, Any]:
    """Every setting by name."""
    return {option.name: getattr(settings, option.name) for option in options()}


def settings_of_value(value: dict[str, Any]) -> Settings:
    """The settings of `settings_value`."""
    fields: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in value.items()}
    return Settings(**fields)


def spec_value(spec: WorkerSpec) -> dict[str, Any]:
    """What a worker is told."""
    value = dataclasses.asdict(spec)
    value["protocol"] = spec.protocol.value
    return value


def spec_of_value(value: dict[str, Any]) -> WorkerSpec:
    """The spec of `spec_value`."""
    return WorkerSpec(
        **value
        | {
            "protocol": EngineProtocol(value["protocol"]),
            "health": HealthOverrides(**value["health"]),
            "overload": OverloadOverrides(**value["overload"]),
            "breaker": BreakerOverrides(**value["breaker"]),
            "retry": RetryOverrides(**value["retry"]),
        }
    )


def adapter_value(model_id: str, adapter: LoraAdapter, created: int) -> list[Any]:
    """An adapter of a model; `created`: epoch seconds."""
    return [model_id, adapter.name, adapter.adapter_id, adapter.path, adapter.base_model_name, created]


def adapter_of_value(value: list[Any]) -> tuple[str, LoraAdapter, int]:
    """Model, adapter and time of `adapter_value`."""
    model_id, name, adapter_id, path, base_model_name, created = value
    return model_id, LoraAdapter(name=name, adapter_id=adapter_id, path=path, base_model_name=base_model_name), created


# JSON of clients goes as text: its integers may be longer than msgpack's.


def response_value(response: StoredResponse) -> list[Any]:
    """A stored response."""
    return [
        response.response_id,
        json.dumps(dict(response.value)),
        json.dumps(list(response.input_items)),
        response.previous_response_id,
        response.conversation_id,
        response.owner,
    ]


def response_of_value(value: list[Any]) -> StoredResponse:
    """The response of `response_value`."""
    response_id, shown, items, previous_response_id, conversation_id, owner = value
    return StoredResponse(
        response_id=response_id,
        value=json.loads(shown),
        input_items=json.loads(items),
        previous_response_id=previous_response_id,
        conversation_id=conversation_id,
        owner=owner,
    )


def conversation_value(conversation: StoredConversation) -> list[Any]:
    """A conversation."""
    return [
        conversation.conversation_id,
        conversation.created_at,
        json.dumps(dict(conversation.metadata)),
        conversation.owner,
    ]


def conversation_of_value(value: list[Any]) -> StoredConversation:
    """The conversation of `conversation_value`."""
    conversation_id, created_at, metadata, owner = value
    return StoredConversation(
        conversation_id=conversation_id, created_at=created_at, metadata=json.loads(metadata), owner=owner
    )
