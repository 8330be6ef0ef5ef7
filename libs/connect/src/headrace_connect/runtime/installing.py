"""
Makes virtual environments with connectors, for ``plugin_path`` of workers.

What such an environment does not have itself, it takes from the Python that made it: ``headrace-connect`` in the same
version, and what that needs. What is installed in it goes first, so its packages may be others than anywhere else.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import DistributionFinder, MetadataPathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from headrace_common.core.errors import InvalidConfig
from headrace_connect.runtime.catalog import GROUP

PIP_S: Final = 1_800.0
LAST_LINES: Final = 15
LINK: Final = "headrace-worker.pth"
"""In an environment: where else to look for packages."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Index:
    """Where pip finds packages; nothing given: as it is configured."""

    url: str = ""
    links: tuple[str, ...] = ()
    """Files, directories or pages with packages."""
    offline: bool = False
    """Only ``links``."""


def install(folder: Path, name: str, requirements: Sequence[str], index: Index) -> dict[str, str]:
    """
    Make the environment ``folder/name`` and install ``requirements`` in it. If that fails, nothing is left of it.

    Returns:
        Its connectors: by name, where they are (``package.module:Class``).

    Raises:
        InvalidConfig: there is one of this name, pip cannot install that, or there is no connector in it.
    """
    if not _NAME.fullmatch(name):
        raise InvalidConfig(f"{name[:80]!r} is no name of an environment: letters, digits, '.', '_' and '-'")
    home = folder.absolute() / name
    try:
        home.mkdir(parents=True)
    except FileExistsError:
        raise InvalidConfig(f"{home} is there already; delete it, or choose another name (--name)") from None
    except OSError as error:
        raise InvalidConfig(f"{home} cannot be made: {error}") from None
    try:
        _make(home)
        _run_pip(home, requirements, index)
        found = connectors_of(home)
        if not found:
            raise InvalidConfig(f"{', '.join(requirements)[:200]}: there is no connector in it (entry points {GROUP})")
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
    return found


def connectors_of(home: Path) -> dict[str, str]:
    """Those that the packages of an environment have, by their names; nothing is imported."""
    context = DistributionFinder.Context(path=[str(path) for path in _packages(home)])
    found = MetadataPathFinder.find_distributions(context)
    return {point.name: point.value for one in found for point in one.entry_points if point.group == GROUP}


def _packages(home: Path) -> list[Path]:
    return sorted(home.glob("lib/python3.*/site-packages"))


def _make(home: Path) -> None:
    # pip of this Python installs into it, if there is one; an image may have none
    venv.create(home, symlinks=True, with_pip=find_spec("pip") is None)
    (packages,) = _packages(home)
    others = [path for path in sys.path if path and Path(path).is_dir() and Path(path).name in _OF_PACKAGES]
    (packages / LINK).write_text("".join(f"{path}\n" for path in others))


_OF_PACKAGES: Final = ("site-packages", "dist-packages", "src")
"""Folders of ``sys.path`` with what is installed, or with sources that are; not those of Python itself."""


def _run_pip(home: Path, requirements: Sequence[str], index: Index) -> None:
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    if find_spec("pip") is None:
        pip = [str(python), "-m", "pip"]
    command = [*pip, "install", "--no-input", "--disable-pip-version-check", "--no-warn-script-location"]
    command += ["--index-url", index.url] if index.url else []
    command += ["--no-index"] if index.offline else []
    command += [option for link in index.links for option in ("--find-links", link)]
    try:
        done = subprocess.run(
            [*command, "--", *requirements], capture_output=True, text=True, timeout=PIP_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise InvalidConfig(f"pip has not ended within {PIP_S:.0f} s") from None
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-LAST_LINES:])
        raise InvalidConfig(f"pip cannot install {', '.join(requirements)[:200]}:\n{last}")
