"""Write the pages of `docs/` that are made from the code; ``--check`` only says what is out of date.

`docs/cli.md` is made from the settings, `docs/commands/` in `docs_commands` and `docs/http-api.md` in `docs_http`.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs_commands import cell, code_of, command_index, command_pages, default_of
from docs_http import http_page
from smg_trio.settings.flags import flags_of
from smg_trio.settings.help_text import EXIT_CODES
from smg_trio.settings.settings import options
from smg_trio.settings.smg_flags import NOTE, SWITCHES, TRANSLATED, WITH_VALUE, WITH_VALUES
from smg_trio.settings.sources import variable_of

DOCS = Path(__file__).resolve().parents[1] / "docs"

INTRODUCTION = """\
# Command line and settings

This page is made by `scripts/make_docs.py` from the code.

`python -m smg_trio COMMAND --help` (or `smg-trio COMMAND --help`) shows the options of one command; each has
[a page of its own](#commands).

## Where settings come from

The gateway's settings, which `launch` and `serve` take, have four sources. The later one wins, setting by setting:

1. the defaults below,
2. a TOML file: `--config FILE`, or the variable `SMG_TRIO_CONFIG` (with `serve`: `--router-config FILE`, since vLLM has
   a `--config` of its own),
3. environment variables, `SMG_TRIO_` and the setting's name in capitals,
4. the command line.

In the file each setting is one key at the top level, named as below; relative paths are relative to where the gateway
is started:

```toml
worker_urls = ["ipc:///run/smg/w0", "ipc:///run/smg/w1"]
model_path = "/models/m"
port = 8000
log_json = true
```

In a variable several values are separated with commas or spaces (`SMG_TRIO_WORKER_URLS=ipc:///run/smg/w0,ipc:///run/smg/w1`;
a key that holds a comma belongs into the file of `--api-key-file`), yes and no are `true` and `false`, and an empty one
counts as unset. A key that the file should not have is an error, an unknown variable a warning; both name the
nearest setting. What Kubernetes sets for a service called `smg-trio` is recognised and left alone.

```bash
python -m smg_trio config check FILE   # what is wrong with a file, all of it
python -m smg_trio config show         # every setting that holds, and where it comes from; TOML that can be fed back
```

`serve` works out workers, backend and ranks itself and ignores those settings, with a warning, in file and environment.

## Completion in the shell

`smg-trio completion SHELL` prints a script that completes commands, flags, choices and file names. For this session:

```bash
eval "$(smg-trio completion bash)"
```

To keep it, write it where the shell looks for completions:

```bash
smg-trio completion bash > ~/.local/share/bash-completion/completions/smg-trio
smg-trio completion zsh > ~/.zfunc/_smg-trio    # a directory of $fpath, named before compinit runs
smg-trio completion fish > ~/.config/fish/completions/smg-trio.fish
```

## Exit codes
"""


def cli_page() -> str:
    """The text of `docs/cli.md`."""
    lines = [INTRODUCTION, "| code | meaning |", "|---|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    lines += ["| 128 + N | `serve` was ended by signal N |", "", "## Settings of the gateway", ""]
    group = ""
    for option in options():
        if option.metadata["group"] != group:
            group = option.metadata["group"]
            lines += [f"### {group}", "", "| flag | default | meaning |", "|---|---|---|"]
        lines.append(_setting_row(option))
        if option is options()[-1] or _next(option).metadata["group"] != group:
            lines.append("")
    lines += ["Each is a key of the file, and a variable: " + _example() + ".", ""]
    lines += _translated()
    lines += _without_effect()
    lines += ["## Commands", "", *command_index()]
    return "\n".join(lines).rstrip() + "\n"


def _translated() -> Iterator[str]:
    yield "### Flags of SMG by other names"
    yield ""
    yield "| flag | meaning |"
    yield "|---|---|"
    for name, translation in TRANSLATED.items():
        yield f"| `--{name} {translation.metavar}` | {translation.meaning} |"
    yield ""


def _without_effect() -> Iterator[str]:
    yield "### Flags of SMG without effect"
    yield ""
    yield f"{NOTE} The log names those that were given, as a warning; with `serve` they are `--router-NAME`."
    yield "`--jwt-issuer` and its like have one: they guard the control plane, see [keys](howto/keys-and-tls.md)."
    yield ""
    yield code_of([f"--{name}" for name in sorted((*SWITCHES, *WITH_VALUE, *WITH_VALUES))])
    yield ""


def _next(option: dataclasses.Field[Any]) -> dataclasses.Field[Any]:
    fields = list(options())
    return fields[fields.index(option) + 1]


def _example() -> str:
    return f"`--queue-size 7`, `queue_size = 7`, `{variable_of('queue_size')}=7`"


def _setting_row(option: dataclasses.Field[Any]) -> str:
    flags = list(flags_of(option))
    if isinstance(option.default, bool):
        flags.append(flags[0].replace("--", "--no-", 1))
    meaning = option.metadata["help"]
    if option.metadata["choices"]:
        meaning += f" One of {', '.join(option.metadata['choices'])}."
    return f"| {code_of(flags)} | {default_of(option.default)} | {cell(meaning)} |"


def main() -> int:
    """Write the pages, or check them; 1 if one is out of date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is out of date")
    check = parser.parse_args().check
    outdated = []
    for name, page in {"cli.md": cli_page(), "http-api.md": http_page(), **command_pages()}.items():
        path = DOCS / name
        if not path.exists() or path.read_text(encoding="utf-8") != page:
            outdated.append(name)
            if not check:
                path.parent.mkdir(exist_ok=True)
                path.write_text(page, encoding="utf-8")
    if check and outdated:
        print(f"docs/{', docs/'.join(outdated)}: out of date; run python scripts/make_docs.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
