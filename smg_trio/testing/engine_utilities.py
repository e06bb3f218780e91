"""The utility methods of a fake vLLM engine: sleeping, pausing, caches, LoRA. Pure.

Answers are those of vLLM 0.32.0 as captured from a running engine; a wrong name or wrong arguments come back as
a failure message and harm nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from smg_trio.testing.commands import UtilityCall
    from smg_trio.testing.messages import Message
    from smg_trio.testing.options import EngineOptions
    from smg_trio.testing.vision import Vision

_LORA_OFF = (
    "Worker failed with error 'LoRA is not enabled. Use --enable-lora to enable LoRA.', "
    "please check the stack trace above for the root cause"
)


_TREE = """\
{name}(
{norm}  (visual): VisionTransformer(
    (patch_embed): PatchEmbed()
  )
  (language_model): ForCausalLM()
)"""


def _inspection(options: EngineOptions) -> str:
    """The module tree as vLLM 0.32 tells it; models that never normalise in the engine have no line for it."""
    if options.vision is None:
        return "LlamaForCausalLM(\n  (model): LlamaModel()\n)"
    norm = "FusedMMInputNorm" if options.normalises_pixels else "IdentityInputNorm"
    line = f"  (input_norm): {norm}()\n" if options.is_since(0, 32) else ""
    return _TREE.format(name="Qwen2VLForConditionalGeneration", norm=line)


class UtilityFailed(Exception):
    """The method ran and failed; the text goes into the reply."""


class UtilityTarget(Protocol):
    """The engine that utility methods act on; see `EngineCore`."""

    options: EngineOptions
    vision: Vision

    @property
    def in_flight(self) -> int:
        """Requests that have not ended, running and waiting."""
        ...

    def end_all(self, now: float) -> list[Message]:
        """End every request with finish ``abort``."""
        ...

    def clear_cache(self) -> None:
        """Empty the prefix cache."""
        ...

    def reply(self, call: UtilityCall, failure: str | None, result: object, now: float) -> Message:
        """The encoded answer to a utility call."""
        ...


class Utilities:
    """The state behind the utility methods and the methods themselves.

    Attributes:
        refusing: new requests are refused until the pause is over (vLLM since 0.33).
    """

    def __init__(self, core: UtilityTarget) -> None:
        self._core = core
        self._sleeping = False
        self._frozen = False
        self.refusing = False
        self._draining: list[UtilityCall] = []
        self._loras: dict[int, str] = {}
        self._weight_version = "default"
        self._before_reply: list[Message] = []
        self._methods: dict[str, Callable[..., Any]] = {
            "get_supported_tasks": lambda: list(core.options.supported_tasks),
            "reset_prefix_cache": self._reset_prefix_cache,
            "reset_mm_cache": core.vision.forget_received,
            "reset_encoder_cache": core.vision.forget_encoded,
            "collective_rpc": self._collective_rpc,
            "is_sleeping": lambda: self._sleeping,
            "is_scheduler_paused": lambda: self.paused,
            "sleep": self._sleep,
            "wake_up": self._wake_up,
            "resume_scheduler": self._resume,
            "add_lora": self._add_lora,
            "remove_lora": self._remove_lora,
            "pin_lora": self._pin_lora,
            "list_loras": self._list_loras,
            "profile": self._profile,
            "get_weight_version": lambda: self._weight_version,
            "set_weight_version": self._set_weight_version,
            "execute_dummy_batch": lambda: None,
        }

    @property
    def paused(self) -> bool:
        """Whether the engine makes no steps."""
        return self._frozen or self._sleeping

    @property
    def draining(self) -> bool:
        """Whether what waits is not admitted, because a pause waits for what runs."""
        return bool(self._draining)

    def call(self, call: UtilityCall, now: float) -> list[Message]:
        """Run one call; returns its answer, after what the call made the engine say."""
        if call.method == "pause_scheduler":
            return self._pause(call, now)
        if call.method == "pause_generation" and self._core.options.is_since(0, 33):
            # A user's pause: all but "keep" also refuse what comes, until resume.
            self.refusing = (call.args[0] if call.args else "abort") != "keep"
            return self._pause(call, now)
        failure, result = None, None
        self._before_reply = []
        try:
            method = self._methods.get(call.method)
            if method is None:
                raise UtilityFailed(f"'EngineCoreProc' object has no attribute {call.method!r}")
            if call.method in ("sleep", "reset_prefix_cache"):
                result = method(now, *call.args)
            else:
                result = method(*call.args)
        except (UtilityFailed, TypeError, ValueError, IndexError) as error:
            failure = f"Call to {call.method} method failed: {error}"
        return [*self._before_reply, self._core.reply(call, failure, result, now)]

    def drained(self, now: float) -> list[Message]:
        """Answers that waited until nothing is in flight."""
        if not self._draining or self._core.in_flight:
            return []
        calls, self._draining = self._draining, []
        self._frozen = True
        return [self._core.reply(call, None, None, now) for call in calls]

    def _pause(self, call: UtilityCall, now: float) -> list[Message]:
        mode = call.args[0] if call.args else "abort"
        if mode not in ("abort", "wait", "keep"):
            failure = f"Call to pause_scheduler method failed: Invalid pause mode: {mode}"
            return [self._core.reply(call, failure, None, now)]
        if mode == "wait":
            self._draining.append(call)
            return self.drained(now)
        messages = self._core.end_all(now) if mode == "abort" else []
        self._frozen = True
        if mode == "abort" and (len(call.args) < 2 or call.args[1]):
            self._core.clear_cache()
        return [*messages, self._core.reply(call, None, None, now)]

    def _resume(self) -> None:
        self._frozen = self.refusing = False

    def _sleep(self, now: float, level: int = 1, mode: str = "abort") -> None:
        if mode == "abort":
            self._before_reply = self._core.end_all(now)
        self._sleeping = level >= 1
        self._frozen = True
        self._core.clear_cache()

    def _wake_up(self, tags: list[str] | None = None) -> bool | None:
        self._sleeping = self._frozen = False
        return True if self._core.options.is_since(0, 32) else None

    def _reset_prefix_cache(self, now: float, reset_running: bool = False, reset_connector: bool = False) -> bool:
        if self._core.in_flight and not reset_running:
            return False
        self._core.clear_cache()
        return True

    def _need_lora(self) -> None:
        if not self._core.options.supports_lora:
            raise UtilityFailed(_LORA_OFF)

    def _add_lora(self, adapter: list[Any]) -> bool:
        self._need_lora()
        name, adapter_id, path = adapter[0], adapter[1], adapter[2]
        if not path:
            raise UtilityFailed("lora_path cannot be empty")
        self._loras[adapter_id] = name
        return True

    def _remove_lora(self, adapter_id: int) -> bool:
        self._need_lora()
        return self._loras.pop(adapter_id, None) is not None

    def _pin_lora(self, adapter_id: int) -> bool:
        self._need_lora()
        if adapter_id not in self._loras:
            raise UtilityFailed(f"LoRA with id {adapter_id} is not registered.")
        return True

    def _list_loras(self) -> list[int]:
        self._need_lora()
        return sorted(self._loras)

    def _profile(self, is_start: bool = True, prefix: str | None = None, *bounds: int | None) -> None:
        if bounds and not self._core.options.is_since(0, 32):
            raise UtilityFailed("EngineCore.profile() takes from 1 to 3 positional arguments")
        if not self._core.options.profiler:
            raise UtilityFailed("Worker failed with error 'Profiling is not enabled.'")

    def _collective_rpc(
        self, method: str, timeout: float | None = None, args: list[Any] | None = None, kwargs: Any = None
    ) -> list[str]:
        if method != "get_model_inspection" or not self._core.options.inspectable:
            raise UtilityFailed(f"Worker failed with error '{method}', please check the stack trace above")
        return [_inspection(self._core.options)]

    def _set_weight_version(self, version: str) -> None:
        self._weight_version = version
