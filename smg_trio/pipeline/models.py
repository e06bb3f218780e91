"""Models as clients name them, with everything the gateway must know to speak for one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from smg_trio.core.errors import ModelNotFound, TokenizerNotRegistered

if TYPE_CHECKING:
    from smg_trio.core.requests import LoraAdapter
    from smg_trio.hub.locating import FilesAt
    from smg_trio.media.families import Family
    from smg_trio.parsers.registry import ParserName
    from smg_trio.text.model_files import ModelText


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One model.

    Attributes:
        model_id: its first name, which workers are registered under.
        aliases: further names for the same model.
        text: tokenizer, template and defaults.
        root: the directory or the name on the hub that was given for it.
        files: where its files were found; None if unknown.
        created: seconds since the epoch.
        tool_parser, reasoning_parser: what the operator named (plug-ins loaded), None to choose by model and template.
        family: how it takes media; None for a model that takes none, or of a family that is not known.
        lora: the adapter that its answers are made with. Such a model has the id of the one it adapts, since that is
            what its workers are registered under, and goes by the adapter's name.
    """

    model_id: str
    text: ModelText
    root: str
    created: int
    files: FilesAt | None = None
    aliases: tuple[str, ...] = ()
    tool_parser: ParserName | None = None
    reasoning_parser: ParserName | None = None
    family: Family | None = None
    lora: LoraAdapter | None = None

    @property
    def modalities(self) -> list[str]:
        """What prompts may hold: ``text``, and what the family takes."""
        return ["text", *sorted(self.family.modalities if self.family is not None else ())]


@dataclass(frozen=True, slots=True)
class AwaitedModel:
    """A model whose files are not all on this disk yet. `state` says in words how far they have come."""

    model_id: str
    aliases: tuple[str, ...]
    state: Callable[[], str]


class ModelCatalog:
    """Models by every name they answer to."""

    def __init__(self) -> None:
        self._by_name: dict[str, ServedModel] = {}
        self._adapted: dict[str, ServedModel] = {}
        self._awaited: dict[str, AwaitedModel] = {}

    def add(self, model: ServedModel) -> None:
        """Offer a model under its id and aliases; a name given twice means the later model."""
        self._awaited.pop(model.model_id, None)
        for name in (model.model_id, *model.aliases):
            self._by_name[name] = model

    def revise(self, model: ServedModel) -> None:
        """Offer a model in place of the one that has its id, also as what adapters adapt.

        Requests that have begun go on with what they have.
        """
        self.add(model)
        for name, adapted in self._adapted.items():
            if adapted.model_id == model.model_id:
                self._adapted[name] = replace(
                    model, lora=adapted.lora, aliases=(), root=adapted.root, created=adapted.created
                )

    def expect(self, model: AwaitedModel) -> None:
        """Know of a model that is going to be offered: requests for it are told to wait."""
        self._awaited[model.model_id] = model

    def awaited(self, name: str) -> AwaitedModel | None:
        """The awaited model of that name, if it is one and none is offered by that name already."""
        if name in self._by_name or name in self._adapted:
            return None
        return next((one for one in self._awaited.values() if name in (one.model_id, *one.aliases)), None)

    def all_awaited(self) -> list[AwaitedModel]:
        """Every awaited model."""
        return list(self._awaited.values())

    def remove(self, model_id: str) -> None:
        """Offer the model no more, under whatever name, adapted or not; requests that have begun go on."""
        self._awaited.pop(model_id, None)
        for names in (self._by_name, self._adapted):
            for name in [name for name, model in names.items() if model.model_id == model_id]:
                del names[name]

    def find(self, name: str, *, stands_in_for: str | None = None) -> ServedModel:
        """The model of that name; "" means the only one.

        Args:
            name: as the client wrote it.
            stands_in_for: names that begin so mean the only model as well, if they are not known.

        Raises:
            ModelNotFound: nothing is served under the name.
            TokenizerNotRegistered: its files are not there yet.
        """
        found = self._by_name.get(name) or self._adapted.get(name)
        if found is not None:
            return found
        if not name or (stands_in_for is not None and name.startswith(stands_in_for) and self.awaited(name) is None):
            models = list(self)
            if len(models) + len(self._awaited) == 1:
                if models:
                    return models[0]
                name = self.all_awaited()[0].model_id
        awaited = self.awaited(name)
        if awaited is not None:
            raise TokenizerNotRegistered(name, awaited.state())
        raise ModelNotFound(name)

    def add_adapter(self, base: ServedModel, adapter: LoraAdapter, created: int) -> None:
        """Offer `base` with the adapter under the adapter's name; what had it is replaced. `created`: epoch seconds."""
        self._adapted[adapter.name] = replace(base, lora=adapter, aliases=(), root=adapter.path, created=created)

    def adapted(self, name: str) -> ServedModel | None:
        """The model with the adapter of that name, if there is one."""
        return self._adapted.get(name)

    def adapters(self) -> list[ServedModel]:
        """Every model with an adapter."""
        return list(self._adapted.values())

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
