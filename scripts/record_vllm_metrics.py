"""Record the metrics that a version of vLLM exports: name, type, labels and buckets, from its own classes.

Run it with a Python in which that version can be imported; no engine is started.

    python scripts/record_vllm_metrics.py tests/gateway/observability/metrics-vllm-0.32.0.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client import REGISTRY
from vllm import __version__
from vllm.config import CacheConfig
from vllm.v1.metrics.loggers import PrometheusStatLogger

MAX_MODEL_LEN = 4096
"""What the buckets of token counts go up to."""


def configuration() -> Any:
    """A server's configuration as far as the logger reads it: adapters and speculative decoding turned on."""
    model = SimpleNamespace(served_model_name="m", max_model_len=MAX_MODEL_LEN, is_diffusion=False)
    observability = SimpleNamespace(
        show_hidden_metrics=False, kv_cache_metrics=False, custom_histogram_buckets=None, enable_mfu_metrics=False
    )
    return SimpleNamespace(
        model_config=model,
        observability_config=observability,
        speculative_config=SimpleNamespace(num_speculative_tokens=2),
        lora_config=SimpleNamespace(max_loras=4),
        cache_config=CacheConfig(),
        kv_transfer_config=None,
        ec_transfer_config=None,
        watermark_config=None,
    )


def recorded() -> dict[str, dict[str, Any]]:
    """The families, by name without ``_total``."""
    logger = PrometheusStatLogger(configuration(), [0])
    logger.log_engine_initialized()
    families: dict[str, dict[str, Any]] = {}
    for collector in list(REGISTRY._collector_to_names):
        name = getattr(collector, "_name", "")
        if name.startswith("vllm:"):
            kind = collector._type
            family = families[name] = {"type": kind, "labels": list(collector._labelnames)}
            if kind == "histogram":
                family["buckets"] = [float(bound) for bound in collector._kwargs["buckets"]]
    return dict(sorted(families.items()))


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    file = parser.parse_args().file
    families = recorded()
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(family)}" for name, family in families.items())
    head = f'"version": {json.dumps(__version__)}, "max_model_len": {MAX_MODEL_LEN}'
    file.write_text(f'{{{head}, "families": {{\n{lines}\n}}}}\n')
    print(f"{len(families)} families of vLLM {__version__}")


if __name__ == "__main__":
    main()
