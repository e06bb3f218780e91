"""Which plug-in a name means, and what is said where it means none that can be used."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from smg_trio.core.errors import ConfigError
from smg_trio.gateway.plugin_set import PluginSet
from smg_trio.parsers.plugin import ParserPlugin
from smg_trio.plugins.installed import InstalledPlugins
from smg_trio.plugins.kinds import AUTH, HOOK, KINDS, POLICY, TOOL_PARSER, Kind
from smg_trio.plugins.loading import PluginLoader
from smg_trio.settings.settings import Settings

from .conftest import FakeDistributions

PARSER = """
from smg_trio.plugins import buffered
smg_trio_api = 1
def shout(context):
    return buffered(lambda text: [])
"""
RAISES = "raise RuntimeError('never imported')"
TOOLS = "smg_trio.tool_parsers"


def problem(named: str, kind: Kind = TOOL_PARSER) -> str:
    """What is said of a name that cannot be loaded."""
    with pytest.raises(ConfigError) as refused:
        PluginLoader().load(kind, named)
    assert refused.value.option == kind.flag
    return refused.value.message


def test_a_name_that_nobody_has(distributions: FakeDistributions) -> None:
    distributions.install("other", {TOOLS: {"whisper": "other:whisper"}}, other=RAISES)
    said = problem("shout")
    assert "install a package that provides entry point smg_trio.tool_parsers:shout" in said
    assert "whisper" in said
    assert "qwen" in said
    assert "Did you mean cache_aware?" in problem("cache_awar", POLICY)
    assert "Known: none" in problem("x", HOOK)


def test_a_built_in_name_wins_unless_the_distribution_is_named(
    distributions: FakeDistributions, caplog: pytest.LogCaptureFixture
) -> None:
    distributions.install("my-shouting", {TOOLS: {"qwen": "shouting:shout"}}, shouting=PARSER)
    with caplog.at_level(logging.WARNING):
        assert PluginLoader().load(TOOL_PARSER, "qwen") is None
    assert "my-shouting:qwen" in caplog.text
    loaded = PluginLoader().load(TOOL_PARSER, "My_Shouting:qwen")
    assert loaded is not None
    assert (loaded.name, loaded.origin, loaded.api) == ("qwen", "my-shouting 1.0", 1)


def test_two_distributions_of_one_name(distributions: FakeDistributions) -> None:
    distributions.install("one", {TOOLS: {"shout": "shouting:shout"}}, shouting=PARSER)
    distributions.install("two", {TOOLS: {"shout": "shouting:shout"}}, version="2.0")
    said = problem("shout")
    assert "both one 1.0 and two 2.0" in said or "both two 2.0 and one 1.0" in said
    assert "one:shout" in said
    loaded = PluginLoader().load(TOOL_PARSER, "two:shout")
    assert loaded is not None
    assert loaded.origin == "two 2.0"


BROKEN = {
    "it cannot be imported": ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of"),
    "its import ends the process": ("raise SystemExit(3)", "SystemExit: 3"),
    "its source is not Python": ("def (", "SyntaxError"),
    "it has no such object": ("smg_trio_api = 1", "AttributeError"),
    "it says no version": ("def shout(context): ...", "does not say which plug-in API"),
    "it is for a later version": (PARSER.replace("api = 1", "api = 2"), "plug-in API 2; this version of"),
    "it is for no version": (PARSER.replace("api = 1", "api = 'one'"), "does not say which plug-in API"),
    "it cannot be called": ("smg_trio_api = 1\nshout = 5", "an object of class int, which cannot be called"),
    "it makes something else": ("smg_trio_api = 1\ndef shout(context): return 5", "class int without needs_special"),
    "a member is missing": (
        "smg_trio_api = 1\nclass shout:\n needs_special_tokens = False\n def __init__(self, context): ...\n"
        " def feed(self, text): return []",
        "class shout without finish",
    ),
    "a member cannot be called": (
        "smg_trio_api = 1\nclass shout:\n needs_special_tokens = False\n feed = finish = 5\n"
        " def __init__(self, context): ...",
        "whose feed cannot be called",
    ),
    "its factory takes something else": ("smg_trio_api = 1\ndef shout(): ...", "TypeError: shout() takes 0"),
    "its factory raises": ("smg_trio_api = 1\ndef shout(context): 1/0", "ZeroDivisionError: division by zero"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_used_is_never_skipped(distributions: FakeDistributions, case: str) -> None:
    source, words = BROKEN[case]
    distributions.install("my-shouting", {TOOLS: {"shout": "shouting:shout"}}, version="3.1", shouting=source)
    said = problem("shout")
    assert "'shout' of my-shouting 3.1" in said
    assert words in said
    assert "Traceback" not in said


MEMBERS = {
    "a policy that does not derive from Policy": (
        POLICY, "class x:\n def __init__(self, context): ...\n def choose(self, c, context, now): ...", "without forget"
    ),
    "an auth that is not async": (AUTH, "def x(credentials): ...", "is not an async function"),
    "a hook with nothing to call": (HOOK, "class x: ...", "neither on_request nor on_answer"),
    "a hook whose method is none": (HOOK, "class x:\n on_answer = 5", "whose on_answer cannot be called"),
    "a hook that cannot be made": (HOOK, "class x:\n def __init__(self, a): ...", "TypeError"),
}  # fmt: skip


@pytest.mark.parametrize("case", MEMBERS)
def test_each_kind_has_members_of_its_own(distributions: FakeDistributions, case: str) -> None:
    kind, source, words = MEMBERS[case]
    distributions.install("d", {kind.group: {"x": "of_d:x"}}, of_d=f"smg_trio_api = 1\n{source}")
    assert words in problem("x", kind)


def test_nothing_is_imported_that_no_flag_names(distributions: FakeDistributions) -> None:
    groups = {kind.group: {"boom": "explosive:boom"} for kind in KINDS}
    distributions.install("explosive-things", groups, explosive=RAISES)
    PluginSet(Settings())
    assert {found.name for found in InstalledPlugins().all()} >= {"boom"}
    with pytest.raises(ConfigError, match="never imported"):
        PluginSet(Settings(tool_call_parser="boom"))


def test_a_plug_in_set_holds_what_settings_name(
    distributions: FakeDistributions, caplog: pytest.LogCaptureFixture
) -> None:
    source = PARSER + (
        "from smg_trio.plugins import Policy\n"
        "class First(Policy):\n def __init__(self, context): self.context = context\n"
        " def choose(self, candidates, context, now): return candidates[0]\n"
        "async def door(credentials): return None\n"
        "class Hook:\n def on_answer(self, view): ...\n"
    )
    groups = {
        TOOLS: {"shout": "all_five:shout"}, "smg_trio.reasoning_parsers": {"deep": "all_five:shout"},
        POLICY.group: {"first": "all_five:First"}, AUTH.group: {"door": "all_five:door"},
        HOOK.group: {"hook": "all_five:Hook"},
    }  # fmt: skip
    distributions.install("all-five", groups, all_five=source)
    settings = Settings(
        tool_call_parser="shout", reasoning_parser="deep", policy="first", auth="door", hook=("hook",),
        plugin_option=("first.prefer=w0=1", "shout.loud=yes", "typo.a=b"),
    )  # fmt: skip
    with caplog.at_level(logging.WARNING):
        plugins = PluginSet(settings)
    assert "typo" in caplog.text
    shout = plugins.parser(TOOL_PARSER, "shout")
    assert isinstance(shout, ParserPlugin)
    assert shout.options == {"loud": "yes"}
    assert plugins.parser(TOOL_PARSER, "hermes") == "hermes"
    assert plugins.policy is not None
    assert plugins.policy.options == {"prefer": "w0=1"}
    assert plugins.auth is not None
    assert [hook.on_request for hook in plugins.hooks] == [None]
    kinds = [calls.kind for calls in plugins.calls]
    assert kinds == ["tool parser", "reasoning parser", "policy", "auth", "hook"]


@pytest.mark.parametrize("text", ["first", "first.prefer", "=x", ".key=x", "first.=x"])
def test_options_have_a_form(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--plugin-option: .* is not of the form NAME\.key=value"):
        PluginLoader(options=(text,))


class TestFiles:
    """`--plugin-file`."""

    def test_its_tables_are_looked_up_like_entry_points(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.py"
        file.write_text(PARSER + "tool_parsers = {'shout': shout}\n")
        loaded = PluginLoader(files=(str(file),)).load(TOOL_PARSER, "shout")
        assert loaded is not None
        assert loaded.origin == str(file)

    def test_its_version_is_looked_at_too(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.py"
        file.write_text("tool_parsers = {'shout': print}\n")
        loader = PluginLoader(files=(str(file),))
        with pytest.raises(ConfigError, match="does not say which plug-in API"):
            loader.load(TOOL_PARSER, "shout")

    @pytest.mark.parametrize("which", ["file", "folder"])
    def test_it_is_refused_where_others_can_write(self, tmp_path: Path, which: str) -> None:
        folder = tmp_path / "shared"
        folder.mkdir()
        file = folder / "mine.py"
        file.write_text(RAISES)
        (file if which == "file" else folder).chmod(0o777)
        link = tmp_path / "link.py"
        link.symlink_to(file)
        for name in (file, link):
            with pytest.raises(ConfigError, match="every user of this host can write"):
                PluginLoader(files=(str(name),))

    @pytest.mark.parametrize(
        ("source", "words"),
        [
            (RAISES, "cannot be run: RuntimeError: never imported"),
            ("raise SystemExit(0)", "cannot be run: SystemExit: 0"),
            ("x = 1", "has no table of plug-ins"),
            ("tool_parsers = 5", "tool_parsers of .* is not a table"),
            ("tool_parsers = {5: 5}", "tool_parsers of .* is not a table"),
        ],
    )
    def test_what_is_wrong_with_it_is_said(self, tmp_path: Path, source: str, words: str) -> None:
        file = tmp_path / "mine.py"
        file.write_text(source)
        with pytest.raises(ConfigError, match=words):
            PluginLoader(files=(str(file),))

    def test_one_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="--plugin-file: cannot read"):
            PluginLoader(files=(str(tmp_path / "none.py"),))
