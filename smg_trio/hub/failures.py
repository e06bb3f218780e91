"""What a failed look at the hub means, in words that say what to do. Pure.

A `ConfigError` is for good: the same request fails tomorrow. `HubUnavailable` may pass by itself, so it is tried again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from smg_trio.core.errors import ConfigError, GatewayFault, SmgError

if TYPE_CHECKING:
    from smg_trio.hub.names import HubName

_SHOWN_NAMES: Final = 8
_SHOWN_CHARS: Final = 200
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REFUSED_BY_SYSTEM: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR})
_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"


class HubUnavailable(GatewayFault):
    """The hub could not be reached, was busy, or the disk was full: trying again may help.

    `retry_after_s` is what the hub asks for, None if it says nothing.
    """

    code = "hub_unavailable"

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


def not_a_model(text: str, option: str) -> ConfigError:
    """The refusal of what is neither a directory nor can be a name on the hub."""
    return ConfigError(
        option,
        f"{_shown(text)} is neither a directory nor a model's name.",
        "Pass the path of a directory that holds the model's files, or a name on the Hugging Face hub (ORG/NAME).",
    )


def _shown(text: str) -> str:
    """A client's own words may be long, and have line ends in them."""
    short = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
    return f"'{short}'" if short.isprintable() else repr(short)


def gguf_file(name: str, option: str) -> ConfigError:
    """The refusal of weights in GGUF without a tokenizer beside them."""
    return ConfigError(
        option,
        f"'{name}' is GGUF only; tokenizers are not read from GGUF files.",
        f"Name the model that it was made from with {_tokenizer_option(option)}.",
    )


def no_tokenizer(name: HubName, files: Collection[str], option: str) -> ConfigError:
    """The refusal of a repository without a tokenizer; `files` are all of its files."""
    if any(file.endswith(".gguf") for file in files):
        return gguf_file(str(name), option)
    return ConfigError(
        option,
        f"'{name}' has no tokenizer (no tokenizer.json, tekken.json, tokenizer.model, vocab.txt or the like).",
        f"Name a repository or directory that has one with {_tokenizer_option(option)}.",
    )


def too_large(name: HubName, file: str, size: int, option: str) -> ConfigError:
    """The refusal of a file that cannot be what its name says; `size` in bytes."""
    return ConfigError(
        option,
        f"{file} of '{name}' has {size / 1e6:.0f} MB, more than a tokenizer ever has.",
        f"Name a repository or directory with a smaller one with {_tokenizer_option(option)}.",
    )


def _tokenizer_option(option: str) -> str:
    """Where one would name another tokenizer: beside the flag or the label that named the model."""
    return "--tokenizer-path" if option.startswith("--") else "the label tokenizer_path"


def not_cached(name: HubName, missing: Sequence[str], cache: os.PathLike[str], option: str) -> ConfigError:
    """The refusal of an incomplete cache where the hub must not be asked."""
    return ConfigError(
        option,
        f"'{name}' is incomplete in the cache {os.fspath(cache)} (missing: {listed(missing)}), and HF_HUB_OFFLINE "
        "forbids downloads.",
        f"Unset HF_HUB_OFFLINE, or fill the cache where there is a network: hf download {name.repo}.",
    )


def listed(names: Sequence[str]) -> str:
    """Names in a sentence, the first ones if there are many."""
    more = len(names) - _SHOWN_NAMES
    return ", ".join(names[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")


def explain(error: Exception, name: HubName, *, option: str, endpoint: str, cache: os.PathLike[str]) -> SmgError:
    """What an exception out of `huggingface_hub` means.

    Args:
        error: as it came.
        name: what was asked for.
        option: what named it.
        endpoint: of the hub.
        cache: directory that files are written to.
    """
    causes = list(_chain(error))
    for cause in causes:
        if (found := _explain_refusal(cause, name, option, endpoint)) is not None:
            return found
    for cause in causes:
        if (found := _explain_disk(cause, option, cache)) is not None:
            return found
    root = causes[-1]
    words = str(root).partition("\n")[0].strip()
    reason = f"{type(root).__name__}: {words}" if words else type(root).__name__
    return HubUnavailable(
        f"'{name}' is not a directory here and cannot be fetched from {endpoint} ({reason}).{_hint(reason)}"
    )


def _explain_refusal(error: BaseException, name: HubName, option: str, endpoint: str) -> SmgError | None:
    """What the hub itself answered, if it did."""
    # Imported here: it brings an HTTP client with it, which only a download needs.
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return ConfigError(
            option,
            f"'{name}' is gated, and this account has no access to it.",
            f"Ask for access on {endpoint}/{name.repo}, then set HF_TOKEN to a token of the account that was given it.",
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return ConfigError(
            option,
            f"'{name.repo}' is neither a directory here nor a repository on {endpoint}, or it is private.",
            f"Check the name; for a private repository {_LOG_IN}.",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return ConfigError(
            "--revision", f"'{name.repo}' has no revision '{name.revision}'.", "Name a branch, a tag or a commit."
        )
    if isinstance(error, errors.DisabledRepoError):
        return ConfigError(option, f"'{name}' has been disabled on {endpoint}.", "Use another repository.")
    if isinstance(error, errors.HFValidationError):
        return not_a_model(str(name), option)
    if isinstance(error, errors.HfHubHTTPError) and error.response is not None:
        headers = error.response.headers
        return _explain_status(error.response.status_code, headers.get("retry-after", ""), name, option, endpoint)
    return None


def _explain_status(status: int, retry_after: str, name: HubName, option: str, endpoint: str) -> SmgError:
    if status == 401:
        return ConfigError(
            option,
            f"{endpoint} does not accept the token that it was sent for '{name}'.",
            "Set HF_TOKEN to a valid one (or `hf auth login`); public repositories need none.",
        )
    if status == 403:
        return ConfigError(
            option, f"{endpoint} refuses access to '{name}' (403).", f"Check the permissions of the token: {_LOG_IN}."
        )
    return HubUnavailable(
        f"{endpoint} answered {status} when asked for '{name}'.",
        retry_after_s=float(retry_after) if retry_after.isdigit() else None,
    )


def _explain_disk(error: BaseException, option: str, cache: os.PathLike[str]) -> SmgError | None:
    if not isinstance(error, OSError) or error.errno is None:
        return None
    if error.errno in _NO_SPACE:
        return HubUnavailable(
            f"files cannot be written to the cache {os.fspath(cache)} ({os.strerror(error.errno)}): free some space "
            "there, or set HF_HOME to a directory on a larger disk."
        )
    # Sockets are refused with the same numbers, but have no file name.
    if error.errno in _REFUSED_BY_SYSTEM and error.filename is not None:
        return ConfigError(
            option,
            f"files cannot be written to the cache {os.fspath(cache)} ({os.strerror(error.errno)}).",
            "Let this user write there, or set HF_HOME to another directory.",
        )
    return None


def _hint(reason: str) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return " SSL_CERT_FILE names the certificates that are trusted."
    return ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was raised from, down to the first."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
