"""Times vLLM's own way of an image, in an environment with vLLM: from its ``data:`` URL to the encoded features.

python vllm_images.py MODEL IMAGE REPEAT
"""

from __future__ import annotations

import base64
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torchvision  # noqa: F401 - without it vLLM's processors fail late
from vllm.config import ModelConfig
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.media import MediaConnector
from vllm.multimodal.processing.context import TimingContext
from vllm.multimodal.processing.inputs import ProcessorInputs
from vllm.v1.serial_utils import MsgpackEncoder


def main(model: str, image: Path, repeat: int) -> None:
    """Print the median and the CPU time of one."""
    config = ModelConfig(model=model, tokenizer=model, dtype="bfloat16", limit_mm_per_prompt={"image": 1})
    processor = MULTIMODAL_REGISTRY.create_processor(config)
    url = "data:image/jpeg;base64," + base64.b64encode(image.read_bytes()).decode()
    connector = MediaConnector()
    placeholder = processor.info.get_hf_config().image_token_id

    def once() -> Any:
        items = processor.info.parse_mm_data({"image": [connector.fetch_image(url)]})
        inputs = ProcessorInputs(prompt=[placeholder], mm_data_items=items)
        made = processor.apply(inputs, TimingContext(enabled=False))
        return MsgpackEncoder().encode([made["mm_kwargs"]["image"][0]])

    once()
    times = []
    before = time.process_time()
    for _ in range(repeat):
        began = time.perf_counter()
        once()
        times.append(time.perf_counter() - began)
    cpu = (time.process_time() - before) / repeat
    print(f"p50 {statistics.median(times) * 1e3:6.1f} ms  CPU {cpu * 1e3:6.1f} ms")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
