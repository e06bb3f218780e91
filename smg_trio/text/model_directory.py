"""Reading files of a model's directory, with errors that name the option and what to do. Blocking."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from smg_trio.core.errors import ConfigError


def existing_directory(path: str | Path, option: str) -> Path:
    """The directory. Raises ConfigError if there is none."""
    directory = Path(path).expanduser()
    if directory.is_dir():
        return directory
    raise ConfigError(
        option,
        f"'{path}' is not a directory.",
        "Pass the path of a directory that holds the model's files.",
    )


def file_names(directory: Path) -> set[str]:
    """Names of the files in a directory itself, symbolic links to files among them."""
    return {path.name for path in directory.iterdir() if path.is_file()}


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if there is no such file. Raises ConfigError."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(read_text(path))
    except ValueError as error:
        raise ConfigError("--model-path", f"'{path}' is not valid JSON ({error}).", "Restore the file.") from None
    if not isinstance(content, dict):
        raise ConfigError("--model-path", f"'{path}' does not hold a JSON object.", "Restore the file.")
    return content


def read_text(path: Path, option: str = "--model-path") -> str:
    """A file's text. Raises ConfigError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(option, f"'{path}' cannot be read ({reason}).", "Check the file.") from None
