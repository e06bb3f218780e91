"""The error tree: by whose fault something failed, and what the client is told.

Each class carries class attributes that `api.errors` turns into a body in one place:

* ``code``: a stable machine-readable word (``error.code`` of the JSON body);
* ``status``: the HTTP status if the response has not started yet;
* ``retryable``: whether another attempt on another worker can help;
* ``headers``: what goes with the body in an HTTP response.

Messages are written for the client: no tracebacks, no library class names, no prompt text.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from smg_trio.core.media import PixelForm


class SmgError(Exception):
    """Root of everything this package raises on purpose."""

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False
    headers: Mapping[str, str] = MappingProxyType({})

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ClientFault(SmgError):
    """The caller must change something before trying again."""

    code = "invalid_request"
    status = 400

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidRequest(ClientFault):
    """A field of the request is missing, malformed or out of range; ``param`` names it."""

    code = "invalid_value"


class ContextLengthExceeded(ClientFault):
    """Prompt (plus asked completion) does not fit the engine's context window."""

    code = "context_length_exceeded"


class MediaPlaceholderMismatch(InvalidRequest):
    """The rendered prompt has another number of media placeholders than the request has media."""

    code = "multimodal_prompt_contract_mismatch"


class UnsupportedFeature(ClientFault):
    """The request is well formed, but the engine or the gateway cannot do it."""

    code = "unsupported_feature"


class UnsupportedContent(UnsupportedFeature):
    """Media of a kind that the model, or the gateway, does not take."""

    code = "unsupported_content"


class NotImplementedByEngine(ClientFault):
    """Something that this engine protocol has no way to ask for, whatever the request says."""

    code = "not_implemented"
    status = 501


class ModelNotFound(ClientFault):
    """No worker serves the named model."""

    code = "model_not_found"
    status = 404

    def __init__(self, model: str) -> None:
        super().__init__(f"The model `{model}` does not exist.", param="model")
        self.model = model


class Unauthorized(ClientFault):
    """The caller's API key is missing or wrong."""

    code = "invalid_api_key"
    status = 401
    headers = MappingProxyType({"www-authenticate": "Bearer"})


class Forbidden(ClientFault):
    """The caller's API key is known, but not for this."""

    code = "permission_denied"
    status = 403

    def __init__(self, message: str, *, key_name: str) -> None:
        super().__init__(message)
        self.key_name = key_name


class NotFound(ClientFault):
    """An addressed resource (worker, response, conversation) does not exist."""

    code = "not_found"
    status = 404


class Conflict(ClientFault):
    """The request contradicts present state (for example a worker URL that is taken)."""

    code = "conflict"
    status = 409


class EngineFault(SmgError):
    """The other side of the wire failed."""

    code = "engine_error"
    status = 502


class EngineDead(EngineFault):
    """The engine's connection ended while the request was in flight (or before it could be sent)."""

    code = "engine_dead"
    status = 503
    retryable = True


class EngineConnectionLost(EngineDead):
    """The connection to an engine on another host broke: outputs may be missing, even if it is back."""

    code = "engine_connection_lost"
    status = 502


class EngineSilent(EngineDead):
    """Nothing came from the engine for ``after_s`` seconds while requests were in flight."""

    code = "engine_silent"

    def __init__(self, after_s: float) -> None:
        super().__init__(f"no engine output for {after_s:g}s with in-flight requests")


class EngineRejected(EngineFault):
    """The engine ended this one request with an error; ``reason`` is what it said, if anything."""

    code = "engine_rejected"
    status = 500

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class EngineUnavailable(EngineFault):
    """The engine does not take the request now (it is paused, for one); another may, or the same one later."""

    code = "engine_unavailable"
    status = 503
    retryable = True


class ProtocolViolation(EngineFault):
    """A frame that does not follow the engine protocol.

    Attributes:
        stage: where it was seen: ``"handshake"``, ``"registration"`` or ``"output"``.
        detail: what was wrong, without payload bytes.
    """

    code = "protocol_violation"

    def __init__(self, stage: str, detail: str) -> None:
        super().__init__(f"{stage}: {detail}")
        self.stage = stage
        self.detail = detail


class GatewayFault(SmgError):
    """We cannot take or finish the request."""

    code = "gateway_error"
    status = 503


class NoReadyWorker(GatewayFault):
    """Workers for the model exist, but none is ready."""

    code = "no_available_workers"
    retryable = True


class TokenizerNotRegistered(GatewayFault):
    """The model is to be served, but its tokenizer is still on its way; ``state`` says how far it has come."""

    code = "tokenizer_not_registered"

    def __init__(self, model: str, state: str) -> None:
        super().__init__(f"The tokenizer of model `{model}` is not yet registered: {state}.")
        self.model = model


class Overloaded(GatewayFault):
    """A bounded queue is full or was waited in too long; ``retry_after_s`` goes into Retry-After."""

    code = "overloaded"
    status = 429

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class PixelFormMissing(GatewayFault):
    """No engine that is ready takes media in a form that they were prepared in; ``forms``: what the engines take."""

    code = "media_form_missing"
    retryable = True

    def __init__(self, message: str, forms: frozenset[PixelForm]) -> None:
        super().__init__(message)
        self.forms = forms


class MediaMismatch(GatewayFault):
    """What was prepared of a request's media would end an engine, or have it answer wrongly: a fault of ours.

    Attributes:
        detail: what is wrong, for the log.
    """

    code = "internal_error"
    status = 500

    def __init__(self, request_id: str, detail: str) -> None:
        super().__init__(f"The media of request {request_id} were not prepared correctly, so it was not sent.")
        self.detail = detail


class RateLimited(Overloaded):
    """The caller has used up what its key may use."""

    code = "rate_limit_exceeded"


class BudgetExceeded(GatewayFault):
    """One request may cost more than its key may use in a whole minute: it would be refused at any time."""

    code = "rate_limit_exceeded"
    status = 429
    # OpenAI's and Anthropic's clients would try any other 429 again.
    headers = MappingProxyType({"x-should-retry": "false"})


class PayloadMemoryFull(Overloaded):
    """Request bodies hold all the memory that they may."""

    code = "payload_memory_full"
    status = 503


class ShuttingDown(GatewayFault):
    """The gateway drains: new work is refused, and what outlives the grace period is ended."""

    code = "shutting_down"


class SlowConsumer(GatewayFault):
    """The client did not read for so long that its pending outputs passed the stated bound."""

    code = "slow_consumer"


class ConfigError(SmgError):
    """A setting is wrong; raised at start only.

    Attributes:
        option: the flag.
        problem: what is wrong, with the value unless it is secret.
        remedy: what to do.
        origin: where the value came from, if not from the flag: a variable, a file and key.
    """

    code = "config_error"

    def __init__(self, option: str, problem: str, remedy: str = "", *, origin: str = "") -> None:
        where = f" (from {origin})" if origin else ""
        super().__init__(f"{option}{where}: {problem}" + (f" {remedy}" if remedy else ""))
        self.option = option
        self.origin = origin
        self.problem = problem
        self.remedy = remedy
