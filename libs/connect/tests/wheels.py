"""Wheels, made without a build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from zipfile import ZipFile


def write_wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, str],
    requires: Sequence[str] = (),
    connectors: Mapping[str, str] | None = None,
) -> Path:
    """
    Args:
        files: by their path in the package's folder of modules.
        connectors: entry points.
    """
    info = f"{name}-{version}.dist-info"
    points = "".join(f"{point} = {where}\n" for point, where in (connectors or {}).items())
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    content = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[headrace.connectors]\n{points}" if points else "",
    }
    content[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*content, f"{info}/RECORD"])
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"{name}-{version}-py3-none-any.whl"
    with ZipFile(made, "w") as archive:
        for path, text in content.items():
            archive.writestr(path, text)
    return made
