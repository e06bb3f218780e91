"""Write the software bill of materials of a wheel: CycloneDX 1.6 JSON of what installing it brings, resolved today.

``python scripts/make_sbom.py dist/smg_trio-0.2.0-py3-none-any.whl sbom.cdx.json``. Run by ``nox -s sbom``, which has
`cyclonedx-bom` installed. The wheel goes into an empty environment without pip, so that nothing else is listed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

NAME = "smg-trio"


def main() -> int:
    """Make the document and check it against CycloneDX' schema."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheel", type=Path, help="the built wheel")
    parser.add_argument("output", type=Path, help="where the document goes")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        python = _installed(given.wheel.resolve(), Path(directory))
        bom = rooted(_listed(python), NAME)
    text = json.dumps(bom, indent=2, sort_keys=True) + "\n"
    _validate(text)
    given.output.write_text(text, encoding="utf-8")
    print(f"{given.output}: {NAME} {bom['metadata']['component']['version']} and {len(bom['components'])} packages")
    return 0


def rooted(bom: dict[str, Any], name: str) -> dict[str, Any]:
    """The document of an environment as the document of one package in it: that is what it is about, the rest parts.

    References to local files, such as the wheel's own place, are left out.
    """
    (root,) = (component for component in bom["components"] if component["name"] == name)
    components = [_portable(component) for component in bom["components"] if component is not root]
    metadata = bom.get("metadata", {}) | {"component": _portable(root) | {"type": "application"}}
    return bom | {"components": components, "metadata": metadata}


def _portable(component: dict[str, Any]) -> dict[str, Any]:
    references = [one for one in component.get("externalReferences", ()) if not one["url"].startswith("file:")]
    kept = {key: value for key, value in component.items() if key not in ("externalReferences", "purl")}
    if references:
        kept["externalReferences"] = references
    # A package URL may name the file that it was installed from; name and version are what it is known by.
    return kept | {"purl": component.get("purl", "").partition("?")[0]} if component.get("purl") else kept


def _installed(wheel: Path, directory: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    python = directory / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", wheel], check=True)
    return python


def _listed(python: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--sv", "1.6"]
    done = subprocess.run([*command, "--of", "JSON", "-o", "-", python], check=True, stdout=subprocess.PIPE)
    bom: dict[str, Any] = json.loads(done.stdout)
    return bom


def _validate(text: str) -> None:
    """Raises SystemExit with the fault if the document is not CycloneDX."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if fault is not None:
        raise SystemExit(f"not CycloneDX: {fault}")


if __name__ == "__main__":
    sys.exit(main())
