"""
The positions of a partition, as a chain of small files: who makes the next one has committed.

``FIRST.commit`` says what the records from offset FIRST up to its ``end`` became; the next one is ``END.commit``. The
chain begins at 0, wherever the topic does. A commit that did not come to be after all is void: then ``FIRST.1.commit``
decides, and so on. A commit with a token counts if the token was used; who makes the token's file decides that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from headrace_common.core.errors import InvalidConfig

VERSION: Final = 1
ENDING: Final = ".commit"
_NAME: Final = re.compile(r"(\d{20})(?:\.([1-9]\d*))?\.commit")


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """A place in the chain, which one commit can take."""

    first: int
    attempt: int = 0
    """How many before it are void."""

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.first:020}{f'.{self.attempt}' if self.attempt else ''}{ENDING}"

    @property
    def again(self) -> Slot:
        """The next one, where this is void."""
        return Slot(self.first, self.attempt + 1)

    @classmethod
    def parse(cls, name: str) -> Slot | None:
        """Of a file's name; None: it is no commit."""
        match = _NAME.fullmatch(name)
        return None if match is None else cls(int(match[1]), int(match[2] or 0))


def last_slot(names: Iterable[str]) -> Slot | None:
    """The last one that is taken."""
    return max((slot for name in names if (slot := Slot.parse(name)) is not None), default=None)


@dataclass(frozen=True, slots=True)
class DataFile:
    """One of a commit."""

    path: str
    """Below the lake's directory."""
    table: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Entry:
    """What a commit says."""

    id: str
    """Of this one alone."""
    end: int | None
    """The position; None: it is void."""
    files: tuple[DataFile, ...] = ()
    token: str = ""
    """It counts if this token was used. Empty: it counts."""

    def to_bytes(self) -> bytes:
        """As it is stored."""
        return json.dumps({"version": VERSION, **asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Self:
        """
        Raises:
            InvalidConfig: it is of a newer version, or no commit.
        """
        stored = read_json(data, name)
        try:
            files = tuple(DataFile(**one) for one in stored["files"])
            end = stored["end"]
            return cls(str(stored["id"]), None if end is None else int(end), files, str(stored["token"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidConfig(f"{name} is no commit: {error!r}; restore it, or write to another path") from error


def read_json(data: bytes, name: str, wanted: int = VERSION) -> dict[str, Any]:
    """
    What a file of ours holds.

    Raises:
        InvalidConfig: it is of a newer version, or damaged.
    """
    try:
        stored = json.loads(data)
        version = stored["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidConfig(f"{name} is damaged: {error!r}; restore it, or write to another path") from error
    if version != wanted:
        raise InvalidConfig(f"{name} is of version {version}, which this version of the connector does not know")
    assert isinstance(stored, dict), "it has a version"
    return stored
