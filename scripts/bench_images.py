"""Times an image from its ``data:`` URL to the tensors for the engine, beside vLLM's own front end.

    python scripts/bench_images.py [--image photo.jpg] [--vllm-python path/to/venv/bin/python --model-path qwen2-vl]

Without an image, noisy gradients of 1 and 12 megapixels are used, as JPEG of quality 90. The model of vLLM must be a
Qwen2-VL; its environment needs torchvision. Both sides take turns, so that a change in the machine meets both. CPU
time is that of all processes: of the gateway's side that is this one and the helper's.
"""

from __future__ import annotations

import argparse
import base64
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import trio
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from smg_trio.core.media import MediaSource, PixelForm
from smg_trio.media.families import Family, find_family
from smg_trio.media.processor import MediaProcessor
from smg_trio.media.reader import MediaReader
from smg_trio.settings.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
FORMS = {"raw": PixelForm.UINT8, "bfloat16": PixelForm.NORMALISED}
MAX_PIXELS = 12_845_056
"""Of Qwen2-VL: images up to this size are not made smaller."""


def main() -> None:
    """Take turns and print a line for each side."""
    parser = argparse.ArgumentParser(description="an image's way to the engine")
    parser.add_argument("--image", type=Path, default=None)
    parser.add_argument("--repeat", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vllm-python", type=Path, default=None)
    parser.add_argument("--model-path", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        images = (
            [options.image]
            if options.image
            else [_photo(Path(directory), *size) for size in ((1152, 896), (4000, 3000))]
        )
        for image in images:
            print(f"{image.name}, {image.stat().st_size >> 10} KiB")
            for _ in range(options.rounds):
                for name, form in FORMS.items():
                    print(f"  gateway, {name:8} {trio.run(_gateway, image.read_bytes(), form, options.repeat)}")
                if options.vllm_python and options.model_path:
                    print(f"  vLLM               {_vllm(options, image)}", flush=True)


def _photo(directory: Path, width: int, height: int) -> Path:
    random = np.random.default_rng(1)
    x, y = np.linspace(0, 20, width)[None], np.linspace(0, 15, height)[:, None]
    colours = np.stack([np.sin(x + y), np.cos(x * 1.3 - y), np.sin(x * y / 10)], -1) * 100 + 128
    colours += random.normal(0, 8, colours.shape)
    path = directory / f"{width}x{height}.jpg"
    Image.fromarray(colours.clip(0, 255).astype(np.uint8)).save(path, quality=90)
    return path


def _family() -> Family:
    config = {"model_type": "qwen2_vl", "vision_config": {}, "image_token_id": 6}
    family = find_family(config, {"min_pixels": 3136, "max_pixels": MAX_PIXELS}, lambda text: (len(text),))
    assert family is not None
    return family


async def _gateway(file: bytes, form: PixelForm, repeat: int) -> str:
    settings = Settings(mm_cache_bytes=0, mm_max_inflight_bytes=1 << 30)
    processor = MediaProcessor(MediaReader(settings), settings)
    source = MediaSource("image", "data:image/jpeg;base64," + base64.b64encode(file).decode(), "image")
    family = _family()

    async def once() -> None:
        with processor.budget.hold() as hold:
            await processor.process([source], family, frozenset([form]), "model", hold=hold)

    async with trio.open_nursery() as nursery:
        await nursery.start(processor.run)
        await once()
        times = []
        before = _cpu_s(processor.helpers.pids)
        for _ in range(repeat):
            began = time.perf_counter()
            await once()
            times.append(time.perf_counter() - began)
        cpu = (_cpu_s(processor.helpers.pids) - before) / repeat
        nursery.cancel_scope.cancel()
    return f"p50 {statistics.median(times) * 1e3:6.1f} ms  CPU {cpu * 1e3:6.1f} ms"


def _cpu_s(pids: set[int]) -> float:
    """Of this process and the others."""
    total = time.process_time()
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def _vllm(options: argparse.Namespace, image: Path) -> str:
    command = [options.vllm_python, ROOT / "scripts" / "bench" / "vllm_images.py", options.model_path, image]
    ran = subprocess.run([*map(str, command), str(options.repeat)], capture_output=True, text=True, check=False)
    return ran.stdout.strip().splitlines()[-1] if ran.returncode == 0 else f"failed: {ran.stderr[-400:]}"


if __name__ == "__main__":
    main()
