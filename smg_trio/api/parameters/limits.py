"""Bounds of a request that the operator sets; the defaults are those of vLLM's own server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """What a request may ask for.

    Attributes:
        max_logprobs: candidates per position; -1 = no bound (then -1, the whole vocabulary, may be asked).
        max_n: choices per prompt (vLLM's bound is 16384; OpenAI's is 128).
        max_stop_strings: stop strings per request.
        max_prompts: prompts in one completions request.
        max_choices: answers in one request, prompts times choices; each is an engine request of its own.
        kv_transfer_params: whether clients may say where an engine gets KV cache from or hands it over to. Parameters
            that do not fit park a request in the engine for good and keep its cache blocks.
        mcp: whether tools of MCP servers are called (--mcp-allow); else they are read as any other hosted tool.
        trust_chat_template: whether a request may bring its own chat template (it runs, sandboxed, here).
    """

    max_logprobs: int = 20
    max_n: int = 128
    max_stop_strings: int = 4
    max_prompts: int = 1024
    max_choices: int = 4096
    kv_transfer_params: bool = False
    trust_chat_template: bool = False
    mcp: bool = False


DEFAULT_LIMITS = RequestLimits()
