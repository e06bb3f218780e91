"""The reference of each command, `docs/commands/`, made from the parsers; exit codes come from `docs/exit-codes.md`.

Never from argparse's own help: that looks different in every version of Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from smg_trio.cli.main import make_parser
from smg_trio.core.engines import EngineProtocol
from smg_trio.launcher.serve_options import make_parser as make_serve_parser
from smg_trio.settings.settings import options

DOCS = Path(__file__).resolve().parents[1] / "docs"
PROGRAM: Final = "smg-trio"

_SETTINGS: Final = (
    "Every [setting of the gateway](../cli.md#settings-of-the-gateway) may stand in a TOML file, which `--config` or "
    "the variable `SMG_TRIO_CONFIG` names, or in a variable `SMG_TRIO_NAME`; "
    "[the later source wins](../cli.md#where-settings-come-from)."
)
ENVIRONMENT: Final[Mapping[str, str]] = {
    "serve": "`SMG_DEFAULT_BACKEND` is the default of `--backend`, `SMG_ZMQ_SOCKET_DIR` the directory of the sockets "
    "(by default `/tmp/smg-zmq-UID`). " + _SETTINGS.replace("`--config`", "`--router-config`"),
    "top": "`SMG_TRIO_API_KEY` is the key where `--api-key` gives none.",
}
"""Beyond what follows from a command's options."""
EXAMPLES: Final[Mapping[str, Sequence[tuple[str, str]]]] = {
    "launch": (
        ("One worker, clients on this host only", "smg-trio launch --worker-urls ipc:///run/smg/w0 --backend vllm "
         "--model-path /models/m --host 127.0.0.1"),
        ("Two workers behind one port, with keys and TLS", "smg-trio launch --worker-urls ipc:///run/smg/w0 "
         "ipc:///run/smg/w1 --backend vllm --model-path /models/m --api-key-file /etc/smg-trio/keys.toml "
         "--tls-cert-path cert.pem --tls-key-path key.pem"),
        ("Settings from a file", "smg-trio launch --config /etc/smg-trio/smg-trio.toml"),
    ),
    "serve": (
        ("One engine", "smg-trio serve --backend vllm --model Qwen/Qwen3-0.6B --port 30000"),
        ("Two engines of two GPUs each; vLLM lives in another environment", "smg-trio serve --backend vllm "
         "--engine-python /opt/vllm/bin/python --model /models/m --data-parallel-size 2 --tensor-parallel-size 2"),
    ),
    "doctor": (
        ("Before a launch", "smg-trio doctor --config /etc/smg-trio/smg-trio.toml"),
        ("What is wrong, as JSON", "smg-trio doctor --config /etc/smg-trio/smg-trio.toml --json"),
    ),
    "config check": (("A file", "smg-trio config check /etc/smg-trio/smg-trio.toml"),),
    "config show": (("What holds, and where it comes from", "smg-trio config show --port 8000"),),
    "demo": (("On another port", "smg-trio demo --port 30001"),),
    "fake-engine": (
        ("An engine for the worker ipc:///tmp/smg-zmq/engine-0", "smg-trio fake-engine --handshake "
         "tcp://127.0.0.1:22670 --answer echo --model-path /models/m"),
    ),
    "handshake-port": (("For an engine's command line", "smg-trio handshake-port ipc:///run/smg/w0"),),
    "chat": (("With a gateway elsewhere", "smg-trio chat --url http://gw.example:30000 --model m"),),
    "top": (
        ("In a terminal", "smg-trio top --url http://127.0.0.1:30000"),
        ("For a script", "smg-trio top --once"),
    ),
    "plugins": (("What is installed", "smg-trio plugins"),),
    "plugins check": (
        ("A parser that was written just now", "smg-trio plugins check tool_parser my-format --plugin-file "
         "my_format.py"),
    ),
    "completion": (("For this session", 'eval "$(smg-trio completion bash)"'),),
}  # fmt: skip
SEE_ALSO: Final[Mapping[str, Sequence[tuple[str, str]]]] = {
    "launch": (("A vLLM engine", "../howto/vllm.md"), ("Workers", "../howto/workers.md"), ("doctor", "doctor.md")),
    "serve": (("Getting started", "../getting-started.md"), ("launch", "launch.md")),
    "doctor": (("Check a launch", "../howto/doctor.md"), ("Troubleshooting", "../troubleshooting.md")),
    "top": (("The live page and top", "../dashboard.md"),),
    "demo": (("Getting started", "../getting-started.md"),),
    "chat": (("Getting started", "../getting-started.md"),),
}  # fmt: skip


def command_pages() -> dict[str, str]:
    """The pages of all commands, by their names below `docs/`."""
    codes = _exit_codes((DOCS / "exit-codes.md").read_text(encoding="utf-8"))
    return {
        page_of(path): "\n".join(_page(path, parser, summary, codes)).rstrip() + "\n"
        for path, parser, summary in commands()
    }


def command_index() -> Iterator[str]:
    """A table of all commands for the page of the command line."""
    yield from ("| command | what it does |", "|---|---|")
    for path, _, summary in commands():
        yield f"| [`{path}`]({page_of(path)}) | {cell(summary)} |"


def commands() -> Iterator[tuple[str, argparse.ArgumentParser, str]]:
    """Every command: its words, its parser and what it does in a line."""
    return _parsers(make_parser(serve=make_serve_parser(EngineProtocol.VLLM)), "")


def flags_of_parser(parser: argparse.ArgumentParser) -> list[str]:
    """Every flag of a command."""
    return [flag for action in parser._actions for flag in action.option_strings]


def page_of(path: str) -> str:
    """The file of a command's page."""
    return f"commands/{path.replace(' ', '-')}.md"


def _page(
    path: str, parser: argparse.ArgumentParser, summary: str, codes: Mapping[str, Sequence[tuple[str, str]]]
) -> Iterator[str]:
    own, settings = _own_actions(parser)
    yield from (f"# {PROGRAM} {path}", "", "This page is made by `scripts/make_docs.py` from the code.", "")
    yield from (sentence(summary), "", "## Synopsis", "", "```text", _usage(path, parser), "```", "")
    if parser.description:
        yield from ("## Description", "", _prose(parser.description), "")
    if own or settings:
        yield from ("## Options", "")
    if own:
        yield from ("| argument | default | meaning |", "|---|---|---|", *map(_argument_row, own), "")
    if settings and path == "serve":
        yield "And every [setting of the gateway](../cli.md#settings-of-the-gateway), as `--router-NAME`; as `--NAME`"
        yield from ("too where the engine has none. What is not known goes to the engine.", "")
    elif settings:
        yield from ("And every [setting of the gateway](../cli.md#settings-of-the-gateway).", "")
    environment = ENVIRONMENT.get(path, _SETTINGS if settings else "")
    if environment:
        yield from ("## Environment and files", "", environment, "")
    yield from _endings(path, codes)


def _endings(path: str, codes: Mapping[str, Sequence[tuple[str, str]]]) -> Iterator[str]:
    """What stands at the end of every page."""
    yield from ("## Exit codes", "")
    if codes.get(path):
        yield from ("| code | when |", "|---|---|", *(f"| {code} | {meaning} |" for code, meaning in codes[path]), "")
    yield from ("Those of all commands are on [a page of their own](../exit-codes.md).", "")
    if path in EXAMPLES:
        yield from ("## Examples", "")
        for title, command in EXAMPLES[path]:
            yield from (f"{title}:", "", "```bash", command, "```", "")
    if path in SEE_ALSO:
        yield from ("## See also", "", ", ".join(f"[{title}]({page})" for title, page in SEE_ALSO[path]), "")


def _exit_codes(page: str) -> dict[str, list[tuple[str, str]]]:
    """Codes 0, 1 and 2 of every command, as the table of exit codes has them."""
    found: dict[str, list[tuple[str, str]]] = {}
    for line in page.splitlines():
        cells = [one.strip() for one in line.strip("|").split("|")]
        if len(cells) == 4 and cells[0].startswith("`"):
            for name in cells[0].replace("`", "").split(", "):
                found[name] = [(str(code), text) for code, text in enumerate(cells[1:]) if text]
    return found


def _prose(text: str) -> str:
    """A text of the help with nothing that Markdown takes for a tag; code stays as it is."""
    pieces = " ".join(text.split()).split("`")
    return "`".join(piece if at % 2 else piece.replace("<", "&lt;") for at, piece in enumerate(pieces))


def _usage(path: str, parser: argparse.ArgumentParser) -> str:
    if parser.usage:
        return " ".join(parser.usage.split())
    positional = [str(one.metavar or one.dest) for one in _own_actions(parser)[0] if not one.option_strings]
    optional = any(one.option_strings for one in _own_actions(parser)[0])
    return " ".join([PROGRAM, path, *(word.upper() for word in positional), *(["[options]"] if optional else [])])


def _parsers(parser: argparse.ArgumentParser, path: str) -> Iterator[tuple[str, argparse.ArgumentParser, str]]:
    """The commands below a parser. argparse has no public way to ask for them, nor for a parser's arguments."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, child in action.choices.items():
                below = list(_parsers(child, f"{path}{name} "))
                # A command that has actions may also do something without one.
                if not below or child.get_default("run") is not None:
                    yield path + name, child, summaries[name]
                yield from below


def _own_actions(parser: argparse.ArgumentParser) -> tuple[list[argparse.Action], bool]:
    """The arguments that are no settings of the gateway, and whether it takes those too."""
    names = {option.name for option in options()}
    unlike = (argparse._HelpAction, argparse._SubParsersAction)
    actions = [action for action in parser._actions if not isinstance(action, unlike)]
    actions = [action for action in actions if action.help is not argparse.SUPPRESS]
    actions = [action for action in actions if action.dest != "smg_translated"]
    takes_settings = any(action.dest == "log_level" for action in actions)
    if not takes_settings:
        return actions, False
    settings = names - {"backend", "host", "port"} if "replicas" in {action.dest for action in actions} else names
    return [action for action in actions if action.dest not in settings], True


def _argument_row(action: argparse.Action) -> str:
    words = list(action.option_strings) or [str(action.metavar or action.dest)]
    meaning = action.help or ""
    if action.choices:
        meaning = f"{meaning}: one of {', '.join(map(str, action.choices))}".strip(": ")
    default = action.default if "(default:" not in meaning or "%(default)s" in meaning else None
    meaning = meaning.replace(" (default: %(default)s)", "").replace("(default: %(default)s)", "").replace("%%", "%")
    shown = "" if default is argparse.SUPPRESS or action.required else default_of(default)
    return f"| {code_of(words)} | {shown} | {cell(meaning)} |"


def sentence(text: str) -> str:
    """The text with a capital and a full stop."""
    return text[:1].upper() + text[1:].rstrip(".") + "."


def code_of(words: Sequence[str]) -> str:
    """Words as code, with commas."""
    return ", ".join(f"`{word}`" for word in words)


def default_of(value: Any) -> str:
    """A default for a table."""
    if value is None or value == () or value == "":
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{' '.join(value) if isinstance(value, tuple) else value}`"


def cell(text: str) -> str:
    """A text as the cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
