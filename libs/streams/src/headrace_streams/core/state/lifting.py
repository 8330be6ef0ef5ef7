"""Values of a function that an earlier version of the program has written: they become those of its version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from headrace_streams.core.errors import StateFailed, cause_of

Lift = Callable[[dict[str, Any]], Mapping[str, Any]]
"""The values of a key in one version, those that differ from what a new key has: gives those of the next version."""
_MARK: Final = "\2"
"""Among the values of a key: their version, where that is not 1."""
_FIRST: Final = 1


class Lifting:
    """Which version the values of a store have, and how older ones become that. They are lifted when they are read."""

    def __init__(self, version: int = _FIRST, steps: Mapping[int, Lift] | None = None, what: str = "") -> None:
        """
        Args:
            steps: by the version whose values they take.
            what: the node, for messages.
        """
        self._version = version
        self._steps = dict(steps or {})
        self._what = what

    def marked(self, kept: dict[str, Any]) -> dict[str, Any]:
        """Values of a key as they are written: with their version."""
        return kept if self._version == _FIRST else {**kept, _MARK: self._version}

    def lifted(self, key: bytes, kept: dict[str, Any], check: Callable[[str, Any], Any]) -> dict[str, Any]:
        """
        Values of a key as they were written, in the version of the program.

        Args:
            check: a value as it is kept; raises TypeError for what cannot be.

        Raises:
            StateFailed: the program does not know their version, or cannot lift them.
        """
        version = kept.pop(_MARK, _FIRST)
        if version == self._version:
            return kept
        if version > self._version or version not in self._steps:
            raise StateFailed(
                f"{self._what}: the values of key {key!r:.100} are of version {version}, and the program has version "
                f"{self._version}" + (", whose migrate= does not lift them" if version < self._version else "")
            )
        hidden = {name: value for name, value in kept.items() if not name.isidentifier()}
        values = {name: value for name, value in kept.items() if name not in hidden}
        try:
            for step in range(version, self._version):
                values = dict(self._steps[step](values))
            return hidden | {name: check(name, value) for name, value in values.items()}
        except Exception as error:
            raise StateFailed(
                f"{self._what}: the values of key {key!r:.100} cannot be lifted from version {version} to "
                f"{self._version}: {cause_of(error)}"
            ) from error
