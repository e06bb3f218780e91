"""The bundled demo model is what its script makes, and stays small."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEMO_MODEL = ROOT / "smg_trio" / "testing" / "demo_model"


def test_the_bundled_demo_model_is_what_the_script_makes(tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "make_demo_model.py"))
    script["main"](tmp_path)
    made = {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()}
    bundled = {path.name: path.read_text("utf-8") for path in DEMO_MODEL.iterdir()}
    assert made == bundled
    assert sum(len(text.encode()) for text in bundled.values()) < 150_000
