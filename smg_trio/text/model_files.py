"""Reads what text work needs out of a model directory: tokenizer, chat template, defaults, limits.

Blocking file IO (0.2 to 1.5 s for large vocabularies); callers run it in a thread. Only directories: names on a hub are
what the hub room makes directories of.

Precedence follows the loaders users know: the template from ``--chat-template``, ``chat_template.json``,
``chat_template.jinja``, any other ``*.jinja``, then ``tokenizer_config.json``. Mistral's own encoding comes right after
``--chat-template`` for models published in Mistral's format, and last for others with its tokenizers. End-of-sequence
ids as vLLM 0.32 takes them (the tokenizer's is the primary one, ``generation_config.json`` adds more, ``config.json``
stands in where that file is absent); sampling defaults as vLLM's ``--generation-config auto``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from smg_trio.core.errors import ConfigError
from smg_trio.text.chat_template import ChatTemplate
from smg_trio.text.mistral_chat import MistralChat, MistralLibraryMissing
from smg_trio.text.model_directory import existing_directory, read_json, read_text
from smg_trio.text.pooling_files import PoolingTraits, read_pooling_traits
from smg_trio.text.tokenizer_files import load_tokenizer, locate_tokenizer

if TYPE_CHECKING:
    from smg_trio.text.tokenizer import Tokenizer

SAMPLING_DEFAULTS: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "max_new_tokens",
)
"""Keys of ``generation_config.json`` that become request defaults."""

_CONTEXT_KEYS: Final = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
_TEMPLATE_MARKS: Final = ("{", "}", "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelText:
    """What one model directory says about text.

    Attributes:
        tokenizer: loaded tokenizer.
        chat_template: the default template, or Mistral's own encoding; None if the model has neither.
        no_chat: why it has neither where it could have, and what to do; empty otherwise.
        tool_chat_template: a template of its own for requests with tools, where the model names one.
        eos_token_ids: ids that end a sequence, the primary one first; empty if the model names none.
        default_sampling: defaults for fields a request leaves out, by `SAMPLING_DEFAULTS` key.
        vocab_size: rows of the model's output layer, None if not stated; may exceed the tokenizer's.
        context_length: tokens, prompt and answer together, None if not stated. The engine's own limit,
            reported at its handshake, may be lower.
        model_type, architectures: hints for choosing parsers.
        pooling: for embeddings, scores and classes.
        named_template: the chat template was named by the operator; pairs of texts are rendered with no other.
    """

    tokenizer: Tokenizer
    chat_template: ChatTemplate | MistralChat | None
    tool_chat_template: ChatTemplate | None = None
    eos_token_ids: tuple[int, ...] = ()
    default_sampling: Mapping[str, int | float] = field(default_factory=dict)
    vocab_size: int | None = None
    context_length: int | None = None
    model_type: str | None = None
    architectures: tuple[str, ...] = ()
    pooling: PoolingTraits = field(default_factory=PoolingTraits)
    named_template: bool = False
    no_chat: str = ""

    def template_for(self, *, tools: bool) -> ChatTemplate | MistralChat | None:
        """The template for a request with or without tools."""
        return self.tool_chat_template if tools and self.tool_chat_template else self.chat_template


def load_model_text(
    model_path: str | Path,
    *,
    tokenizer_path: str | Path | None = None,
    chat_template_path: str | Path | None = None,
    generation_config: str = "auto",
) -> ModelText:
    """Loads a model's text files.

    Args:
        model_path: the model's directory.
        tokenizer_path: directory or ``tokenizer.json`` to take the tokenizer from instead.
        chat_template_path: template file (``.jinja``, or ``.json`` with a ``chat_template`` key), or the
            template itself.
        generation_config: ``auto`` (from the model), ``vllm`` (no sampling defaults), or a directory that
            holds another ``generation_config.json``.

    Raises:
        ConfigError: something is missing or broken; names the option and what to do.
    """
    model_dir = existing_directory(model_path, "--model-path")
    location = locate_tokenizer(model_dir, tokenizer_path)
    tokenizer_dir = location.directory
    settings = read_json(tokenizer_dir / "tokenizer_config.json")
    config = _model_config(model_dir)
    tokenizer = load_tokenizer(location, settings, _str_or_none(config.get("model_type")))
    generation = _generation_config(model_dir, generation_config)
    default, for_tools = _templates((tokenizer_dir, model_dir), settings, chat_template_path)
    chat: ChatTemplate | MistralChat | None = _compiled(default, tokenizer)
    no_chat = ""
    if chat_template_path is None and location.has_official_chat(without_template=chat is None):
        try:
            chat, for_tools = MistralChat(location.main_file, tokenizer), None
        except MistralLibraryMissing as error:
            no_chat = "" if chat else f"{error.problem} {error.remedy}"
    return ModelText(
        tokenizer=tokenizer,
        chat_template=chat,
        tool_chat_template=_compiled(for_tools, tokenizer),
        eos_token_ids=_eos_token_ids(tokenizer, config if generation is None else generation),
        default_sampling={} if generation_config == "vllm" else _default_sampling(generation or {}),
        vocab_size=_int_of(config, ("vocab_size",)),
        context_length=_int_of(config, _CONTEXT_KEYS),
        model_type=_str_or_none(config.get("model_type")),
        architectures=tuple(config.get("architectures") or ()),
        pooling=read_pooling_traits(model_dir, config),
        named_template=chat_template_path is not None,
        no_chat=no_chat,
    )


def _compiled(source: str | None, tokenizer: Tokenizer) -> ChatTemplate | None:
    if source is None:
        return None
    template = ChatTemplate(source, tokenizer.special_tokens)
    template.find_traits()
    return template


# --- template ------------------------------------------------------------------------------------


def _templates(
    directories: Iterable[Path], settings: Mapping[str, Any], override: str | Path | None
) -> tuple[str | None, str | None]:
    """The default template and one for requests with tools, each as source or None."""
    if override is not None:
        return _template_option(override), None
    for directory in dict.fromkeys(directories):
        found = _template_files(directory)
        if found is not None:
            tools = directory / "additional_chat_templates" / "tool_use.jinja"
            return found, read_text(tools) if tools.is_file() else None
    return _named_templates(settings.get("chat_template"))


def _template_option(value: str | Path) -> str:
    option = "--chat-template"
    if isinstance(value, str) and any(mark in value for mark in _TEMPLATE_MARKS):
        return value
    path = Path(value).expanduser()
    if not path.is_file():
        raise ConfigError(option, f"'{value}' is not a file.", "Pass a .jinja file or the template itself.")
    return _template_in_json(path, option) if path.suffix == ".json" else read_text(path, option)


def _template_in_json(path: Path, option: str = "--model-path") -> str:
    default, _ = _named_templates(read_json(path).get("chat_template"))
    if default is None:
        raise ConfigError(option, f"'{path}' has no `chat_template`.", "Restore the file, or pass --chat-template.")
    return default


def _template_files(directory: Path) -> str | None:
    if (directory / "chat_template.json").is_file():
        return _template_in_json(directory / "chat_template.json")
    if (directory / "chat_template.jinja").is_file():
        return read_text(directory / "chat_template.jinja")
    others = sorted(directory.glob("*.jinja"))
    return read_text(others[0]) if others else None


def _named_templates(value: Any) -> tuple[str | None, str | None]:
    """A template, or several by name: as a list of ``{"name", "template"}`` or as a mapping."""
    if isinstance(value, str):
        return value, None
    if isinstance(value, list):
        entries = [entry for entry in value if isinstance(entry, dict)]
        value = {entry.get("name"): entry.get("template") for entry in entries}
    if not isinstance(value, dict):
        return None, None
    texts = {name: text for name, text in value.items() if isinstance(text, str)}
    only = next(iter(texts.values())) if len(texts) == 1 else None
    return texts.get("default", only), texts.get("tool_use")


# --- config --------------------------------------------------------------------------------------


def _model_config(model_dir: Path) -> dict[str, Any]:
    """``config.json``, or what ``params.json`` says in its words where Mistral's format has no other.

    Architectures as vLLM 0.32 takes them (``transformers_utils/configs/mistral.py``), which has 128,000 tokens for a
    context length that is not stated.
    """
    config = read_json(model_dir / "config.json")
    params = {} if config else read_json(model_dir / "params.json")
    if not params:
        return config
    if params.get("vision_encoder") or (params.get("multimodal") or {}).get("vision_encoder_args"):
        model_type, architecture = "pixtral", "PixtralForConditionalGeneration"
    else:
        model_type, architecture = "mistral", "MixtralForCausalLM" if params.get("moe") else "MistralForCausalLM"
    return {"model_type": model_type, "architectures": [architecture], "hidden_size": params.get("dim")} | {
        key: params[key] for key in ("vocab_size", *_CONTEXT_KEYS) if key in params
    }


def _generation_config(model_dir: Path, choice: str) -> dict[str, Any] | None:
    """The generation config, None where the directory has none."""
    directory = model_dir if choice in ("auto", "vllm") else existing_directory(choice, "--generation-config")
    file = directory / "generation_config.json"
    if not file.is_file() and directory is not model_dir:
        raise ConfigError("--generation-config", f"'{file}' does not exist.", "Pass auto, vllm or a directory.")
    return read_json(file) if file.is_file() else None


def _eos_token_ids(tokenizer: Tokenizer, listed: Mapping[str, Any]) -> tuple[int, ...]:
    value = listed.get("eos_token_id")
    if value is None and isinstance(listed.get("text_config"), dict):
        value = listed["text_config"].get("eos_token_id")
    ids = value if isinstance(value, list) else [value]
    first = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return tuple(dict.fromkeys(first + [token_id for token_id in ids if type(token_id) is int]))


def _default_sampling(generation: Mapping[str, Any]) -> dict[str, int | float]:
    values = {key: generation.get(key) for key in SAMPLING_DEFAULTS}
    return {key: value for key, value in values.items() if type(value) in (int, float)}  # type: ignore[misc]


def _int_of(config: Mapping[str, Any], keys: Iterable[str]) -> int | None:
    """The first of `keys` that is set; multimodal models keep them under ``text_config``."""
    nested = config.get("text_config")
    for source in (config, nested if isinstance(nested, dict) else {}):
        for key in keys:
            if type(source.get(key)) is int:
                return int(source[key])
    return None


def _str_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None
