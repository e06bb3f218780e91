"""Models as clients name them, with everything the gateway must know to speak for one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from smg_trio.core.errors import ModelNotFound
from smg_trio.core.requests import LoraAdapter
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
        lora: the adapter that its answers are made with. Such a model has the id of the one it adapts, since that is
            what its workers are registered under, and goes by the adapter's name.
    """

    model_id: str
    text: ModelText
    root: str
    created: int
    aliases: tuple[str, ...] = ()
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    lora: LoraAdapter | None = None


class ModelCatalog:
    """Models by every name they answer to."""

    def __init__(self) -> None:
        self._by_name: dict[str, ServedModel] = {}
        self._adapted: dict[str, ServedModel] = {}

    def add(self, model: ServedModel) -> None:
        """Offer a model under its id and aliases; a name given twice means the later model."""
        for name in (model.model_id, *model.aliases):
            self._by_name[name] = model

    def remove(self, model_id: str) -> None:
        """Offer the model no more, under whatever name, adapted or not; requests that have begun go on."""
        for names in (self._by_name, self._adapted):
            for name in [name for name, model in names.items() if model.model_id == model_id]:
                del names[name]

    def find(self, name: str) -> ServedModel:
        """The model of that name; "" means the only one. Raises ModelNotFound."""
        if not name:
            models = list(self)
            if len(models) == 1:
                return models[0]
        try:
            return self._by_name[name] if name in self._by_name else self._adapted[name]
        except KeyError:
            raise ModelNotFound(name) from None

    def add_adapter(self, base: ServedModel, adapter: LoraAdapter, created: int) -> None:
        """Offer `base` with the adapter under the adapter's name; what had it is replaced. `created`: epoch seconds."""
        self._adapted[adapter.name] = replace(base, lora=adapter, aliases=(), root=adapter.path, created=created)

    def adapted(self, name: str) -> ServedModel | None:
        """The model with the adapter of that name, if there is one."""
        return self._adapted.get(name)

    def remove_adapter(self, name: str) -> None:
        """Offer it no more; requests that have begun go on."""
        self._adapted.pop(name, None)

    def __iter__(self) -> Iterator[ServedModel]:
        seen: set[str] = set()
        for model in self._by_name.values():
            if model.model_id not in seen:
                seen.add(model.model_id)
                yield model

    def names(self) -> Iterable[str]:
        """Every name, ids before their aliases, in order of addition; adapters last."""
        return [*self._by_name, *self._adapted]
