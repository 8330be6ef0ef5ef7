"""What a piece of a file says: its rows, and the records that are no rows. Formats return it, readers send it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

Rows = pa.Table | list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Damage:
    """A record that is no row: where it begins, what is wrong with it, and its bytes as they are."""

    offset: int
    """Bytes from the start of what was parsed, or of the file where a reader returns it."""
    reason: str
    raw: bytes


@dataclass(frozen=True, slots=True)
class Parsed:
    """The rows of a piece in the order of the file, without the damaged ones."""

    rows: Rows
    damage: Sequence[Damage] = field(default=())


class TextFormat(Protocol):
    """Records in UTF-8 text, one behind another."""

    def end_of_records(self, text: bytes) -> int:
        """Where the last whole record of ``text`` ends, which begins with a record; 0: there is none."""
        ...

    def parse(self, text: bytes, half: bool = False) -> Parsed:
        """
        The rows of ``text``, which is whole records.

        Args:
            half: the last one has no end, and none will come.
        """
        ...


def why_not_utf8(text: bytes) -> str | None:
    """What is wrong with ``text`` as UTF-8; None: nothing."""
    try:
        text.decode()
    except UnicodeDecodeError as wrong:
        return f"byte {wrong.start} of the record is not of its encoding: {wrong.reason}"
    return None
