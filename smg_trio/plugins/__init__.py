"""What a plug-in may import, and all that it may: the plug-in API.

A plug-in is an entry point of an installed distribution, in one of five groups. It is loaded only if a flag, or a label
of a worker, names it; see docs/howto/plugins.md for each kind and an example.

==============================  ================================================  ==========================
group                           what the entry point is                           named by
==============================  ================================================  ==========================
``smg_trio.tool_parsers``       a factory, `ParserContext` → `Parser`             ``--tool-call-parser NAME``
``smg_trio.reasoning_parsers``  a factory, `ParserContext` → `Parser`             ``--reasoning-parser NAME``
``smg_trio.policies``           a factory, `PolicyContext` → `Policy`             ``--policy NAME``
``smg_trio.auth``               an async function, `Credentials` → `Identity`,    ``--auth NAME``
                                or None for one that it does not know
``smg_trio.hooks``              an object with ``on_request`` and ``on_answer``,  ``--hook NAME``
                                or one of them
==============================  ================================================  ==========================

The module of the entry point says which version of this API it is written for: ``smg_trio_api = 1``. Within one
version, names, fields with defaults and methods with defaults may be added here; nothing is removed or renamed.
"""

from __future__ import annotations

from typing import Final

from smg_trio.core.events import ContentDelta, ParserEvent, ReasoningDelta, ToolCallArguments, ToolCallStart
from smg_trio.parsers.base import Parser
from smg_trio.parsers.plugin import ParserContext
from smg_trio.plugins.auth import Credentials, Identity
from smg_trio.plugins.buffered import buffered
from smg_trio.plugins.hooks import AnswerView, Changes, Refuse, RequestView
from smg_trio.routing.policies.base import CacheStatistics, Candidate, Policy, PolicyStatistics, RoutingContext
from smg_trio.routing.policies.plugin import PolicyContext

API_VERSION: Final = 1
"""The version of all that this module exports."""

__all__ = [
    "API_VERSION",
    "AnswerView",
    "CacheStatistics",
    "Candidate",
    "Changes",
    "ContentDelta",
    "Credentials",
    "Identity",
    "Parser",
    "ParserContext",
    "ParserEvent",
    "Policy",
    "PolicyContext",
    "PolicyStatistics",
    "ReasoningDelta",
    "Refuse",
    "RequestView",
    "RoutingContext",
    "ToolCallArguments",
    "ToolCallStart",
    "buffered",
]
