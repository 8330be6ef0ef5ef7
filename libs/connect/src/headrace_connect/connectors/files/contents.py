"""Bytes of a text file by their offset, decompressed where it is compressed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import pyarrow as pa

from headrace_connect.connectors.places import OpenFile

Codec = Literal["gzip", "zstd"]
_PIECES_BYTES: Final = (64 << 10, 1 << 10, 16, 1)
"""How much is decompressed at once; less where something is wrong, to get all that is before it."""
_TRUNCATED: Final = "Truncated"


@dataclass(frozen=True, slots=True)
class Read:
    """What was read, and how it ended."""

    data: bytes
    truncated: bool = False
    """The compressed stream has no end yet: more of ``data`` may follow."""
    damage: str | None = None
    """What follows ``data`` cannot be decompressed."""

    @property
    def cut_off(self) -> bool:
        """Whether the file has more bytes than could be read."""
        return self.truncated or self.damage is not None


class Contents(Protocol):
    """Gives bytes by their offset."""

    def read(self, file: OpenFile, start: int, count: int, complete: bool) -> Read:
        """
        Up to ``count`` bytes from ``start`` on; fewer at the end.

        Args:
            complete: the file will not change, so all that can be had is wanted.
        """
        ...


class PlainContents:
    """Satisfies ``Contents``."""

    def read(self, file: OpenFile, start: int, count: int, complete: bool) -> Read:
        """See ``Contents``."""
        return Read(file.read_at(start, min(count, max(0, file.seen.size - start))))


class CompressedContents:
    """
    Satisfies ``Contents`` for gzip and zstd, also for several streams one behind another.

    It goes on where it stands in a file that stays open, else it decompresses from the start.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._file: OpenFile | None = None
        self._stream: Any = None
        self._at = 0
        self._held = bytearray()
        """Bytes before ``_at`` that are not consumed yet."""

    def read(self, file: OpenFile, start: int, count: int, complete: bool) -> Read:
        """See ``Contents``."""
        wrong: str | None = None
        for piece_bytes in _PIECES_BYTES:
            if wrong is not None or self._file is not file or start < self._at - len(self._held):
                self._rewind(file)
            wrong = self._fill(start, start + count, piece_bytes)
            if wrong is None or (_TRUNCATED in wrong and not complete):
                break
        if wrong is not None:
            self._file = None
        data = bytes(self._held[:count]) if self._at > start else b""
        if wrong is None or len(data) == count:
            return Read(data)
        return Read(data, truncated=True) if _TRUNCATED in wrong else Read(data, damage=wrong)

    def _rewind(self, file: OpenFile) -> None:
        self._file, self._at, self._held = file, 0, bytearray()
        self._stream = None
        if file.seen.size:
            self._stream = pa.CompressedInputStream(file.file.get_stream(0, file.seen.size), self._codec)

    def _fill(self, start: int, end: int, piece_bytes: int) -> str | None:
        """Decompress up to ``end``, keep what is behind ``start``; return what is wrong."""
        while True:
            begin = self._at - len(self._held)
            del self._held[: max(0, start - begin)]
            if self._at >= end or self._stream is None:
                return None
            try:
                data = self._stream.read(min(piece_bytes, end - self._at))
            except (OSError, pa.ArrowException) as error:
                return str(error)
            if not data:
                return None
            self._held += data
            self._at += len(data)
