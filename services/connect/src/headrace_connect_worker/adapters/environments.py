"""
Virtual environments of connectors: which of them has a connector.

Folders of ``plugin.path`` are environments themselves, or have environments in them. Nothing of them is run or imported
to tell what they have.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import DistributionFinder, MetadataPathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from headrace_connect.runtime.catalog import GROUP, list_connectors

_PYTHON: Final = Path("bin/python")


@dataclass(frozen=True, slots=True)
class Environment:
    """Something that can run a host."""

    python: Path
    home: Path | None = None
    """Of a virtual environment; None: the worker's own."""

    @property
    def name(self) -> str:
        """Unique on the machine."""
        return str(self.home or "")

    def _packages(self) -> list[Path]:
        assert self.home is not None, "the worker's own is asked otherwise"
        return sorted(self.home.glob("lib/python3.*/site-packages"))

    def stamp(self) -> object:
        """Another one when packages were installed in it; of the worker's own always the same, for it runs on it."""
        if self.home is None:
            return ()
        return [(info.name, info.stat().st_mtime_ns) for one in self._packages() for info in sorted(one.glob("*-info"))]

    def has(self, connector_class: str) -> bool:
        """Whether a connector of this name, or ``package.module:Class``, is there. Files are the worker's own."""
        module, colon, _ = connector_class.partition(":")
        top = module.partition(".")[0]
        if colon and (module.endswith(".py") or not top.isidentifier()):
            return self.home is None
        if self.home is None:
            return find_spec(top) is not None if colon else connector_class in {one.name for one in list_connectors()}
        packages = self._packages()
        if colon:
            return any((path / top).is_dir() or (path / f"{top}.py").is_file() for path in packages)
        context = DistributionFinder.Context(path=[str(path) for path in packages])
        found = MetadataPathFinder.find_distributions(context)
        return any(
            point.group == GROUP and point.name == connector_class for one in found for point in one.entry_points
        )


OWN: Final = Environment(Path(sys.executable))


class Environments:
    """Those of a worker; looked for anew each time, so that new ones are found."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders

    def all(self) -> list[Environment]:
        """The worker's own first."""
        return [OWN, *(Environment(home / _PYTHON, home) for home in self._homes())]

    def _homes(self) -> Iterator[Path]:
        for folder in self._folders:
            if (folder / _PYTHON).exists():
                yield folder.absolute()
            elif folder.is_dir():
                yield from sorted(one.absolute() for one in folder.iterdir() if (one / _PYTHON).exists())

    def find(self, connector_class: str) -> Environment:
        """The first that has the connector; the worker's own where none has it, which then says so."""
        return next((one for one in self.all() if one.has(connector_class)), OWN)
