"""What ``smg-trio plugins check`` holds a plug-in to: the contract of its kind, beyond having the right members.

Each check is a function that raises `CheckFailed` with what was seen. Chance comes from one seed, so that a failure is
there again the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

import trio

from smg_trio.plugins.kinds import AUTH, HOOK, POLICY, REASONING_PARSER, TOOL_PARSER, Kind
from smg_trio.testing.parser_checks import PARSER_CHECKS, ParserUnderTest
from smg_trio.testing.plugin_faults import CheckFailed
from smg_trio.testing.policy_checks import POLICY_CHECKS
from smg_trio.testing.request_checks import check_auth, check_on_answer, check_on_request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smg_trio.plugins.loading import Loaded

KIND_NAMES: Final[dict[str, Kind]] = {
    "tool_parser": TOOL_PARSER,
    "reasoning_parser": REASONING_PARSER,
    "policy": POLICY,
    "auth": AUTH,
    "hook": HOOK,
}
"""What the command line calls them."""
SEED: Final = 20_260_101


@dataclass(frozen=True, slots=True)
class Outcome:
    """One check: what it is about, and what was wrong; empty if nothing was."""

    what: str
    problem: str = ""


def check_plugin(loaded: Loaded, options: Mapping[str, str], samples: Sequence[str] = ()) -> Iterator[Outcome]:
    """Every check of a plug-in's kind, one after the other.

    Args:
        loaded: it has the members of its kind.
        options: of ``--plugin-option``.
        samples: texts of the model that a parser is for.
    """
    for what, check in _checks(loaded, options, samples):
        try:
            check()
        except CheckFailed as failure:
            yield Outcome(what, str(failure))
        except Exception as error:  # noqa: BLE001 - another author's code: that it raises is what was wrong
            yield Outcome(what, f"{type(error).__name__}: {error}")
        else:
            yield Outcome(what)


def _checks(
    loaded: Loaded, options: Mapping[str, str], samples: Sequence[str]
) -> Iterator[tuple[str, Callable[[], None]]]:
    if loaded.kind in (TOOL_PARSER, REASONING_PARSER):
        parser = ParserUnderTest(loaded.value, options, samples, finds_calls=loaded.kind is TOOL_PARSER)
        for what, check in PARSER_CHECKS.items():
            yield what, lambda check=check: check(parser, Random(SEED))  # type: ignore[misc]
    elif loaded.kind is POLICY:
        for what, check_policy in POLICY_CHECKS.items():
            yield what, lambda check=check_policy: check(loaded.value, options, Random(SEED))  # type: ignore[misc]
    elif loaded.kind is AUTH:
        yield "tokens that nobody gave out are answered in time", lambda: _run(check_auth, loaded.value, options)
    else:
        for name, what, check_hook in (
            ("on_request", "requests of every API are answered in time", check_on_request),
            ("on_answer", "answers are noted in time", check_on_answer),
        ):
            if hasattr(loaded.value, name):
                function = getattr(loaded.value, name)
                yield what, lambda check=check_hook, function=function: _run(check, function, options)  # type: ignore[misc]


def _run(check: Callable[..., Any], *arguments: object) -> None:
    trio.run(check, *arguments)
