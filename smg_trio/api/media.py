"""Media in requests: the parts in which clients of each API send pictures, to what they hold. Pure.

Where a part's bytes come from (a URL, base64) is only noted here; `media.reader` reads them. Nothing is decoded, and
what a client says about its own data (types, names) is not relied on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from smg_trio.api.parameters.fields import describe, filled_string, mapping, one_of, refuse, string, take
from smg_trio.core.errors import UnsupportedContent
from smg_trio.core.media import MediaPart, MediaSource, Modality

_MODALITIES: Final[Mapping[str, Modality]] = {
    "image_url": "image",
    "input_image": "image",
    "video_url": "video",
}
"""Kinds of parts that are read, in chat messages and in items of the Responses API; the member of that name (of
``input_image``: ``image_url``) holds the URL, or an object with it as ``url``."""
_REFUSED: Final[Mapping[str, str]] = {
    "audio_embeds": "audio is",
    "audio_url": "audio is",
    "input_audio": "audio is",
    "file": "files are",
    "input_file": "files are",
    "image_embeds": "embeddings of images are",
    "video_embeds": "embeddings of videos are",
    "prompt_embeds": "embeddings of prompts are",
}
_DETAILS: Final = ("auto", "low", "high", "original")
_SCHEME_CHARS: Final = 16


def is_media(kind: str) -> bool:
    """Whether parts of that kind hold media, be it of a kind that is refused."""
    return kind in _MODALITIES or kind in _REFUSED


def read_part(part: Mapping[str, Any], param: str) -> MediaPart:
    """A media part of a chat message, or of an item of the Responses API.

    ``detail`` has no effect, as in vLLM 0.32; ``uuid`` is not used: by it a client could get at another one's picture.

    Raises:
        InvalidRequest: it has no URL, or is malformed.
        UnsupportedContent: media of a kind that is not read; the kind is named.
    """
    kind = part["type"]
    modality = _MODALITIES.get(kind)
    if modality is None:
        raise UnsupportedContent(f"{param}: {_REFUSED[kind]} not supported (content of type '{kind}').", param=param)
    member = "image_url" if modality == "image" else kind
    take(part, "detail", one_of(_DETAILS), prefix=f"{param}.")
    return _part(modality, _url(part, member, param), param)


def read_source(block: Mapping[str, Any], param: str) -> MediaPart:
    """An image block of Anthropic's API: base64 or a URL; see `read_part`."""
    source = take(block, "source", mapping, prefix=f"{param}.")
    if source is None:
        raise refuse(f"{param}.source", "is required")
    kind = take(source, "type", string, prefix=f"{param}.source.")
    if kind == "base64":
        return MediaPart(MediaSource("image", _filled(source, "data", f"{param}.source"), param, bare_base64=True))
    if kind == "url":
        return _part("image", _filled(source, "url", f"{param}.source"), param)
    if kind is None:
        raise refuse(f"{param}.source.type", "is required")
    raise UnsupportedContent(f"{param}: images of source type {describe(kind)} are not supported.", param=param)


def read_image_data(value: Any, prompts: int) -> list[list[MediaSource]]:
    """``image_data`` of ``/generate``: a URL or base64, or an array of these; for several prompts, one for each.

    Args:
        value: the JSON value; null is no image.
        prompts: how many prompts there are. A flat array belongs to the only one; to several, one image each.

    Raises:
        InvalidRequest: another shape, or another number of images than prompts.
    """
    if value is None:
        return [[] for _ in range(prompts)]
    if not isinstance(value, list):
        if prompts > 1:
            raise refuse("image_data", f"expected an array with the images of each of {prompts} prompts")
        return [[_datum(value, "image_data")]]
    if prompts == 1 and not any(isinstance(entry, list) for entry in value):
        return [[_datum(entry, f"image_data[{index}]") for index, entry in enumerate(value)]]
    if len(value) != prompts:
        raise refuse("image_data", f"has {len(value)} entries for {prompts} prompts")
    return [_data(entry, f"image_data[{index}]") for index, entry in enumerate(value)]


def _data(value: Any, param: str) -> list[MediaSource]:
    if value is None:
        return []
    if not isinstance(value, list):
        return [_datum(value, param)]
    return [_datum(entry, f"{param}[{index}]") for index, entry in enumerate(value)]


def _datum(value: Any, param: str) -> MediaSource:
    if isinstance(value, Mapping):
        value = value.get("url")
    location = filled_string(value, param)
    has_scheme = ":" in location[:_SCHEME_CHARS]  # which is no character of base64
    return MediaSource("image", location, param, bare_base64=not has_scheme)


def _part(modality: Modality, location: str, param: str) -> MediaPart:
    return MediaPart(MediaSource(modality, location, param))


def _url(part: Mapping[str, Any], member: str, param: str) -> str:
    value, path = part.get(member), f"{param}.{member}"
    if isinstance(value, Mapping):
        take(value, "detail", one_of(_DETAILS), prefix=f"{path}.")
        value, path = value.get("url"), f"{path}.url"
    if value is None:
        for reference in ("file_id", "uuid"):
            if part.get(reference) is not None:
                problem = f"{param}: '{reference}' without data is not supported; send a URL or base64 data."
                raise UnsupportedContent(problem, param=f"{param}.{reference}")
        raise refuse(path, "is required")
    return string(value, path)


def _filled(obj: Mapping[str, Any], key: str, param: str) -> str:
    if obj.get(key) is None:
        raise refuse(f"{param}.{key}", "is required")
    return filled_string(obj[key], f"{param}.{key}")
