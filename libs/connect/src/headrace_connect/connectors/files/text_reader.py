"""
Reads text files, from the end of one record to the end of another.

What it returns does not depend on how the file came to be: any cutting into appends and reads gives the same records.
For this, a record is at most ``batch_bytes`` long, and each window begins with a record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from headrace_connect.connectors.files.contents import Codec, CompressedContents, Contents, PlainContents, Read
from headrace_connect.connectors.files.encodings import Encoding
from headrace_connect.connectors.files.identity import SAMPLE_BYTES, FilePosition, sample
from headrace_connect.connectors.files.parsed import Damage, Rows, TextFormat
from headrace_connect.connectors.files.reading import Piece, Step
from headrace_connect.connectors.places import OpenFile

HALF: Final = "half"
SKIP: Final = "skip"
REFUSED: Final = "refused"
_SHOWN_BYTES: Final = 1_024

FormatOf = Callable[[bytes | None], TextFormat]
"""The format of a file, from its header, if it has one. Raises ValueError for a header that cannot be used."""


class TextReader:
    """Satisfies ``Reader``."""

    def __init__(
        self,
        format_of: FormatOf,
        encoding: Encoding,
        batch_bytes: int,
        codec: Codec | None = None,
        end_of_header: Callable[[bytes], int] | None = None,
    ) -> None:
        """
        Args:
            end_of_header: where a header ends with which a text begins, 0: it is not whole; None: files have none.
        """
        self._format_of = format_of
        self._encoding = encoding
        self._batch_bytes = batch_bytes
        self._contents: Contents = PlainContents() if codec is None else CompressedContents(codec)
        self._compressed = codec is not None
        self._end_of_header = end_of_header
        self._format: tuple[str, str, TextFormat] | None = None

    def step(self, file: OpenFile, position: FilePosition, complete: bool) -> Step:
        """See ``Reader``."""
        if position.state == REFUSED:
            return Step()
        if position.offset == 0:
            return self._begin(file, position, complete)
        read = self._contents.read(file, position.offset, self._batch_bytes, complete)
        if position.state in (HALF, SKIP):
            return self._go_on_behind(file, position, read, complete)
        format_ = self._known_format(file, position, complete)
        return self._read_records(file, position, format_, read, complete)

    def _begin(self, file: OpenFile, position: FilePosition, complete: bool) -> Step:
        """The byte order mark and the header."""
        read = self._contents.read(file, 0, self._batch_bytes, complete)
        mark = self._encoding.mark_bytes(read.data)
        text = self._encoding.to_utf8(read.data[mark:])
        if not text:
            return self._end(file, position, read, complete)
        if self._end_of_header is None:
            if not mark:
                return self._read_records(file, position, self._format_of(None), read, complete)
            return Step(self._piece(file, position, mark), more=True)
        end = self._end_of_header(text)
        too_long = end == 0 and len(read.data) >= self._batch_bytes
        if end == 0 and not too_long and read.cut_off:
            return self._end(file, position, read, complete)
        if end == 0 and not too_long and not complete:
            return Step(waiting="the header has no end yet")
        header = text[: end or len(text)]
        try:
            if too_long:
                raise ValueError(f"its header is longer than batch.bytes ({self._batch_bytes})")
            self._format_of(header)
        except ValueError as wrong:
            damage = Damage(mark, f"the file is not read: {wrong}", header[:_SHOWN_BYTES])
            return Step(self._piece(file, position, mark or 1, damage=[damage], state=REFUSED))
        offset = mark + self._encoding.raw_bytes(header)
        return Step(self._piece(file, position, offset, state="" if end else HALF), more=True)

    def _known_format(self, file: OpenFile, position: FilePosition, complete: bool) -> TextFormat:
        """The header is read again after a restart, for positions do not have it."""
        if self._end_of_header is None:
            return self._format_of(None)
        if self._format is None or self._format[:2] != (position.id, position.head):
            read = self._contents.read(file, 0, self._batch_bytes, complete)
            text = self._encoding.to_utf8(read.data[self._encoding.mark_bytes(read.data) :])
            header = text[: self._end_of_header(text) or len(text)]
            self._format = (position.id, position.head, self._format_of(header))
        return self._format[2]

    def _read_records(
        self, file: OpenFile, position: FilePosition, format_: TextFormat, read: Read, complete: bool
    ) -> Step:
        text = self._encoding.to_utf8(read.data)
        end = format_.end_of_records(text)
        if end:
            return Step(self._parse(file, position, format_, text[:end]), more=True)
        if len(read.data) >= self._batch_bytes:
            return Step(self._skip_record(file, position, text), more=True)
        if not complete or not text or read.cut_off:
            return self._end(file, position, read, complete)
        return Step(self._parse(file, position, format_, text, half=True), more=True)

    def _parse(
        self, file: OpenFile, position: FilePosition, format_: TextFormat, text: bytes, half: bool = False
    ) -> Piece:
        parsed = format_.parse(text, half)
        damage = [replace(one, offset=self._behind(position, text[: one.offset])) for one in parsed.damage]
        return self._piece(file, position, self._behind(position, text), parsed.rows, damage, HALF if half else "")

    def _skip_record(self, file: OpenFile, position: FilePosition, text: bytes) -> Piece:
        """A window without the end of a record: its first line is damage, reading goes on with the next one."""
        end = text.find(b"\n") + 1
        record = text[:end] if end else text
        damage = Damage(
            position.offset,
            f"a record of more than batch.bytes ({self._batch_bytes}) begins here, or a quote that is never closed",
            record,
        )
        offset = self._behind(position, record)
        return self._piece(file, position, offset, damage=[damage], state="" if end else SKIP)

    def _go_on_behind(self, file: OpenFile, position: FilePosition, read: Read, complete: bool) -> Step:
        """What comes behind a record that had no end: its end, or what does not belong to a record any more."""
        text = self._encoding.to_utf8(read.data)
        if position.state == HALF and text[:1] in (b"\n", b"\r"):
            breaks = 2 if text.startswith(b"\r\n") else 1
            if text == b"\r" and not complete:
                return Step(waiting="a line feed may follow the carriage return")
            return Step(self._piece(file, position, self._behind(position, text[:breaks])), more=True)
        end = text.find(b"\n") + 1
        window_is_full = len(read.data) >= self._batch_bytes
        if not end and not window_is_full and (not complete or not text or read.cut_off):
            return self._end(file, position, read, complete)
        rest = text[:end] if end else text
        state = "" if end else SKIP
        offset = self._behind(position, rest)
        if position.state == SKIP:
            return Step(self._piece(file, position, offset, state=state), more=True)
        damage = Damage(position.offset, "the record before had no end and was read; this came behind it", rest)
        return Step(self._piece(file, position, offset, damage=[damage], state=state), more=True)

    def _end(self, file: OpenFile, position: FilePosition, read: Read, complete: bool) -> Step:
        """Nothing can be read now."""
        wrong = read.damage or ("the compressed stream has no end" if read.truncated and complete else None)
        if wrong is not None:
            offset = position.offset + len(read.data)
            damage = Damage(offset, f"what follows cannot be decompressed: {wrong}", read.data)
            return Step(self._piece(file, position, offset, damage=[damage], state=REFUSED))
        if read.truncated:
            return Step(waiting="the compressed stream has no end yet")
        return Step(waiting="the last record has no end yet" if read.data else None)

    def _behind(self, position: FilePosition, text: bytes) -> int:
        return position.offset + self._encoding.raw_bytes(text)

    def _piece(
        self,
        file: OpenFile,
        position: FilePosition,
        offset: int,
        rows: Rows | None = None,
        damage: Sequence[Damage] = (),
        state: str = "",
    ) -> Piece:
        # Which bytes of a compressed file a record comes from is not known: only its start tells it apart.
        tail_end = min(SAMPLE_BYTES, file.seen.size) if self._compressed else offset
        at = FilePosition(file.seen.id, offset, state=state, **sample(file.read_at, tail_end, position))
        return Piece(at, [] if rows is None else rows, damage)
