"""The bill of materials is about this package, and tells of no place on the machine it was made on."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "make_sbom.py"


@pytest.fixture(scope="module")
def make_sbom() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_sbom", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def environment() -> dict[str, Any]:
    local = [{"type": "distribution", "url": "file:///somewhere/smg_trio.whl"}]
    return {
        "bomFormat": "CycloneDX",
        "components": [
            {"name": "trio", "version": "1", "type": "library", "bom-ref": "trio==1", "purl": "pkg:pypi/trio@1",
             "externalReferences": [{"type": "website", "url": "https://trio"}, *local]},
            {"name": "smg-trio", "version": "2", "type": "library", "bom-ref": "smg-trio==2",
             "purl": "pkg:pypi/smg-trio@2?file_name=x.whl", "externalReferences": local},
        ],
        "dependencies": [{"ref": "smg-trio==2", "dependsOn": ["trio==1"]}, {"ref": "trio==1"}],
    }  # fmt: skip


def test_the_document_is_about_this_package_and_the_rest_are_its_parts(make_sbom: ModuleType) -> None:
    bom = make_sbom.rooted(environment(), "smg-trio")
    root = bom["metadata"]["component"]
    assert (root["name"], root["version"], root["type"]) == ("smg-trio", "2", "application")
    assert [component["name"] for component in bom["components"]] == ["trio"]
    assert bom["dependencies"] == environment()["dependencies"]


def test_no_place_of_the_machine_is_told(make_sbom: ModuleType) -> None:
    bom = make_sbom.rooted(environment(), "smg-trio")
    assert "file:" not in str(bom)
    assert bom["components"][0]["externalReferences"] == [{"type": "website", "url": "https://trio"}]
    assert bom["metadata"]["component"]["purl"] == "pkg:pypi/smg-trio@2"


def test_a_document_without_the_package_is_refused(make_sbom: ModuleType) -> None:
    with pytest.raises(ValueError, match="unpack"):
        make_sbom.rooted({"components": []}, "smg-trio")
