"""What readers of files have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace_connect.connectors.files.identity import FilePosition
from headrace_connect.connectors.files.parsed import Damage, Rows
from headrace_connect.connectors.places import OpenFile


@dataclass(frozen=True, slots=True)
class Piece:
    """Records one behind another, and where reading goes on behind them."""

    position: FilePosition
    rows: Rows = field(default_factory=list)
    damage: Sequence[Damage] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """What was read at once."""

    piece: Piece | None = None
    waiting: str | None = None
    """Something at the end of the file that is not whole yet; None: all that there is was read."""
    more: bool = False
    """Whether there may be more to read now."""


class Reader(Protocol):
    """Reads one format of files. What it keeps of a file it can also read anew."""

    def step(self, file: OpenFile, position: FilePosition, complete: bool) -> Step:
        """
        Read some records behind ``position``, which belongs to this file.

        Args:
            complete: the file will not change: what is not whole is damaged, and a last record needs no end.

        Raises:
            RetriableError: the place cannot be read now.
        """
        ...
