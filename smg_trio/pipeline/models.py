"""Models as clients name them, with everything the gateway must know to speak for one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from smg_trio.core.errors import ModelNotFound
from smg_trio.text.model_files import ModelText


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One model.

    Attributes:
        model_id: its first name, which workers are registered under.
        aliases: further names for the same model.
        text: tokenizer, template and defaults.
        root: where it was loaded from, as `/v1/models` shows it.
        created: seconds since the epoch.
        tool_parser, reasoning_parser: what the operator named, None to choose by model and template.
    """

    model_id: str
    text: ModelText
    root: str
    created: int
    aliases: tuple[str, ...] = ()
    tool_parser: str | None = None
    reasoning_parser: str | None = None


class ModelCatalog:
    """Models by every name they answer to."""

    def __init__(self) -> None:
        self._by_name: dict[str, ServedModel] = {}

    def add(self, model: ServedModel) -> None:
        """Offer a model under its id and aliases; a name given twice means the later model."""
        for name in (model.model_id, *model.aliases):
            self._by_name[name] = model

    def find(self, name: str) -> ServedModel:
        """The model of that name; "" means the only one. Raises ModelNotFound."""
        if not name:
            models = list(self)
            if len(models) == 1:
                return models[0]
        try:
            return self._by_name[name]
        except KeyError:
            raise ModelNotFound(name) from None

    def __iter__(self) -> Iterator[ServedModel]:
        seen: set[str] = set()
        for model in self._by_name.values():
            if model.model_id not in seen:
                seen.add(model.model_id)
                yield model

    def names(self) -> Iterable[str]:
        """Every name, ids before their aliases, in order of addition."""
        return self._by_name.keys()
