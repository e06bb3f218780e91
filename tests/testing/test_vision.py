"""A fake engine's vision is as careless as the real one's: row by row what was seen of vLLM 0.27.1 and 0.32.0."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from smg_trio.core.media import PixelForm
from smg_trio.core.requests import GenerationRequest, SamplingParams
from smg_trio.testing.codec import codec_for
from smg_trio.testing.engine_core import EngineCore
from smg_trio.testing.options import EngineOptions
from smg_trio.testing.pictures import qwen_picture
from smg_trio.testing.script import LengthScript
from smg_trio.testing.vision import VisionModel
from smg_trio.wire.vllm.codec import VllmCodec

PROMPT = [6] * 40
RAW, DONE = (PixelForm.UINT8,), (PixelForm.NORMALISED,)
HASHES = 14


class Bench:
    """An engine that answers at once."""

    def __init__(self, **options: Any) -> None:
        chosen = EngineOptions(**{"vision": VisionModel(), "vocab_size": 1024, "max_model_len": 4000} | options)
        self.core = EngineCore(chosen, codec_for(chosen), lambda request: LengthScript())
        self.said: list[Any] = []

    def add(self, frames: list[bytes]) -> list[int]:
        """Feed a request and run; the tokens of its answer."""
        messages = self.core.receive(frames, 0.0)
        for _ in range(20):
            if self.core.due is None or self.core.doom:
                break
            messages += self.core.step(0.0)
        self.said = [msgpack.unpackb(message[0], strict_map_key=False) for message in messages]
        return [token for batch in self.said for output in batch[1] for token in output[1]]

    @property
    def last(self) -> Any:
        """The last output."""
        return [output for batch in self.said for output in batch[1]][-1]


def frames(*seeds: int, form: tuple[PixelForm, ...] = RAW, request_id: str = "r") -> list[bytes]:
    """A request with pictures at 1, 11, 21, …"""
    media = tuple(qwen_picture(seed, 1 + 10 * number, forms=form) for number, seed in enumerate(seeds))
    sampling = SamplingParams(max_tokens=4)
    request = GenerationRequest(request_id=request_id, prompt_token_ids=PROMPT, media=media, sampling=sampling)
    return [bytes(frame) for frame in VllmCodec().encode_add(request)]


def changed(*seeds: int, change: Callable[[Any], None], request_id: str = "r") -> list[bytes]:
    """The same, with the features changed on the wire."""
    kind, payload, *rest = frames(*seeds, request_id=request_id)
    fields = msgpack.unpackb(payload, strict_map_key=False)
    change(fields[2])
    return [kind, msgpack.packb(fields), *rest]


def position(index: int = 0, **values: Any) -> Callable[[Any], None]:
    return lambda features: features[index]["mm_position"].update(values)


def mask(*flags: int) -> Any:
    return ["bool", [len(flags)], msgpack.ExtType(3, bytes(flags))]


def field(name: str, value: Any) -> Callable[[Any], None]:
    def change(features: Any) -> None:
        features[0]["data"][name]["field"] = value

    return change


def data(name: str, index: int, value: Any) -> Callable[[Any], None]:
    """Change one element (dtype, shape, data) of a tensor."""

    def change(features: Any) -> None:
        features[0]["data"][name]["data"][index] = value

    return change


def without(name: str) -> Callable[[Any], None]:
    return lambda features: features[0]["data"].pop(name)


DEAF = {
    "bytes that do not match the shape": data("pixel_values", 1, [24, 1175]),
    "unknown dtype": data("pixel_values", 0, "uint9"),
    "aux index out of range": data("pixel_values", 2, 7),
    "unknown factory": field("pixel_values", ["stacked", {}]),
    "unknown option of a factory": field("pixel_values", ["batched", {"slices": []}]),
    "no slices": field("pixel_values", ["flat", {"keep_on_cpu": False}]),
    "no position": lambda features: features[0].pop("mm_position"),
    "identifier of another type": lambda features: features[0].update(identifier=5),
}
DEAD = {
    "length larger than the vectors": position(length=9),
    "is_embed shorter than length": position(is_embed=mask(1, 1, 1)),
    "factory of the grid": field("image_grid_thw", ["shared", {"keep_on_cpu": True, "batch_size": 1}]),
    "factory of the pixels": field("pixel_values", ["batched", {"keep_on_cpu": False}]),
    "overlapping ranges": position(1, offset=4),
    "grid that does not match": data("image_grid_thw", 2, msgpack.ExtType(3, bytes([1, *[0] * 7] * 3))),
    "no grid": without("image_grid_thw"),
    "no pixels": without("pixel_values"),
    "row width": data("pixel_values", 1, [1176, 24]),
    "unknown modality": lambda features: features[0].update(modality="foo"),
}
WRONG = {
    "length smaller": position(length=3),
    "is_embed all false": position(is_embed=mask(0, 0, 0, 0, 0, 0)),
    "range past the end": position(1, offset=37),
    "not sorted": lambda features: features.reverse(),
    "wrong place": position(offset=2),
    "the other's identifier": lambda features: features[1].update(identifier=features[0]["identifier"]),
    "pixels of another": lambda features: features[0]["data"].update(features[1]["data"]),
}
HARMLESS = {
    "unknown extra tensor": lambda features: features[0]["data"].update(
        extra={"data": mask(1), "field": ["batched", {}]}
    ),
    "extra key": lambda features: features[0].update(extra_key=1),
    "no mm_hash": lambda features: features[0].pop("mm_hash"),
    "mm_hash nil": lambda features: features[0].update(mm_hash=None),
    "empty slices": field("pixel_values", ["flat", {"keep_on_cpu": False, "slices": [], "dim": 0}]),
    "no keep_on_cpu": field("image_grid_thw", ["batched", {}]),
    "grid in 32 bits": lambda features: features[0]["data"]["image_grid_thw"].update(
        data=["int32", [3], msgpack.ExtType(3, bytes([1, 0, 0, 0, 4, 0, 0, 0, 6, 0, 0, 0]))]
    ),
}


@pytest.mark.parametrize("what", DEAF)
def test_what_does_not_decode_makes_it_deaf(what: str) -> None:
    bench = Bench()
    assert bench.add(changed(0, 1, change=DEAF[what])) == []
    assert bench.core.deaf is not None
    assert bench.core.doom is None


@pytest.mark.parametrize("version", ["0.27.1", "0.32.0"])
@pytest.mark.parametrize("what", DEAD)
def test_what_does_not_fit_ends_it(what: str, version: str) -> None:
    bench = Bench(version=version)
    assert bench.add(changed(0, 1, change=DEAD[what])) == []
    assert bench.core.doom is not None


@pytest.mark.parametrize("what", WRONG)
def test_what_it_does_not_look_at_is_answered_wrongly(what: str) -> None:
    right = Bench().add(frames(0, 1))
    bench = Bench()
    wrong = bench.add(changed(0, 1, change=WRONG[what]))
    assert len(wrong) == 4
    assert wrong != right
    assert bench.core.doom is bench.core.deaf is None


@pytest.mark.parametrize("what", HARMLESS)
def test_what_means_the_same_is_answered_the_same(what: str) -> None:
    assert Bench().add(changed(0, 1, change=HARMLESS[what])) == Bench().add(frames(0, 1))


def test_pictures_are_told_apart_and_so_are_their_order_and_text_alone() -> None:
    answers = [Bench().add(frames(*seeds)) for seeds in ((0, 1), (1, 0), (0,), (1,), (0, 0), ())]
    assert len({tuple(answer) for answer in answers}) == len(answers)


def test_no_features_are_text() -> None:
    def nothing(features: Any) -> None:
        features.clear()

    assert Bench().add(changed(0, change=nothing)) == Bench().add(frames())


def test_a_model_without_vision_dies_of_pictures() -> None:
    bench = Bench(vision=None)
    assert len(bench.add(frames())) == 4
    assert bench.add(frames(0)) == []
    assert bench.core.doom is not None


def test_pixels_in_the_wrong_form_are_answered_wrongly() -> None:
    done = frames(0, form=DONE)
    assert Bench(version="0.32.0").add(done) != Bench(version="0.27.1").add(done)
    assert Bench(normalises=False).add(done) == Bench(version="0.27.1").add(done)


def test_an_unknown_hash_without_data_is_a_miss_that_harms_nobody() -> None:
    for version in ("0.27.1", "0.32.0"):
        bench = Bench(version=version)
        forget = changed(0, change=lambda features: features[0].update(data=None))
        assert bench.add(forget) == []
        assert bench.last[5] == 3
        hashes = bench.last[HASHES] if version == "0.32.0" else bench.last[HASHES:]
        assert hashes == ([qwen_picture(0).identifier] if version == "0.32.0" else [])
        right = bench.add(frames(0, request_id="s"))
        assert len(right) == 4
        # Now it has them.
        again = changed(0, change=lambda features: features[0].update(data=None), request_id="t")
        assert bench.add(again) == right
        bench.add([b"\x03", msgpack.packb([0, 1, "reset_mm_cache", []])])
        assert bench.add([again[0], again[1].replace(b"\xa1t", b"\xa1u"), *again[2:]]) == []


def test_what_was_encoded_is_kept_under_its_identifier_whatever_comes_under_it_later() -> None:
    def as_first(features: Any) -> None:
        features[0]["identifier"] = features[0]["mm_hash"] = qwen_picture(0).identifier

    bench = Bench()
    first = bench.add(frames(0))
    assert bench.add(changed(1, change=as_first, request_id="s")) == first
    bench.add([b"\x03", msgpack.packb([0, 1, "reset_encoder_cache", []])])
    assert bench.add(changed(1, change=as_first, request_id="t")) != first


def test_an_old_engine_keeps_the_first_data_of_a_hash_and_a_new_one_the_last() -> None:
    def as_first(features: Any) -> None:
        features[0]["mm_hash"] = qwen_picture(0).identifier

    for version, keeps in (("0.27.1", True), ("0.32.0", False)):
        bench = Bench(version=version, normalises=True)
        first = bench.add(frames(0))
        # Under another identifier, so that the encoder has to look.
        second = bench.add(changed(1, change=as_first, request_id="s"))
        assert (second == first) is keeps


def test_an_item_larger_than_a_step_is_never_answered_and_others_are() -> None:
    bench = Bench(max_num_batched_tokens=100, vision=VisionModel(largest_item=200))
    grid = (1, 30, 30)
    large = qwen_picture(0, 1, grid=grid, forms=RAW)
    request = GenerationRequest(
        request_id="large", prompt_token_ids=[6] * 300, media=(large,), sampling=SamplingParams(max_tokens=4)
    )
    assert bench.add([bytes(frame) for frame in VllmCodec().encode_add(request)]) == []
    assert len(bench.add(frames(0))) == 4
    assert bench.core.in_flight == 1


def test_pixels_that_are_no_numbers_are_answered_with_one_token() -> None:
    bench = Bench(version="0.27.1")
    kind, payload, pixels = frames(0, form=DONE)
    assert bench.add([kind, payload, b"\xff" * len(pixels)]) == [0]
    assert bench.last[5] == 0


def test_pictures_are_no_common_prefix_and_the_same_picture_is() -> None:
    bench = Bench(prefix_caching=True, block_size=4)
    for request_id, seed, cached in (("a", 0, 0), ("b", 1, 0), ("c", 0, 36)):
        bench.add(frames(seed, request_id=request_id))
        [first] = [output for batch in bench.said for output in batch[1]][:1]
        assert first[11]["num_cached_tokens"] == cached


def test_the_module_tree_says_who_normalises() -> None:
    def told(**options: Any) -> Any:
        bench = Bench(**options)
        args = ["get_model_inspection", None, [], {}]
        bench.add([b"\x03", msgpack.packb([0, 1, "collective_rpc", args])])
        return copy.copy(bench.said[-1][4])

    assert "(input_norm): FusedMMInputNorm()" in told(version="0.32.0")[2][1][0]
    assert "(input_norm): IdentityInputNorm()" in told(normalises=False)[2][1][0]
    assert "input_norm" not in told(version="0.27.1")[2][1][0]
    assert "input_norm" not in told(vision=None)[2][1][0]
    assert "get_model_inspection" in told(inspectable=False)[1]
