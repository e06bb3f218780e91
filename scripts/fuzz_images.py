"""Gives the process that decodes images many broken ones; 1 if one of them ended it or got a wrong answer.

python scripts/fuzz_images.py [--images 10000] [--seed 1]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.fuzz.image_runs import run_images


def main() -> int:
    """Run and print what came of them."""
    parser = argparse.ArgumentParser(description="broken images for the process that decodes images")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began = time.monotonic()
    results = trio.run(run_images, options.images, options.seed)
    for answer, count in results.answers.most_common():
        print(f"{count:7} {answer}")
    for wrong in results.wrong:
        print("WRONG", wrong)
    print(f"{options.images} images in {time.monotonic() - began:.0f} s, {results.replaced} processes replaced")
    return int(bool(results.wrong))


if __name__ == "__main__":
    sys.exit(main())
