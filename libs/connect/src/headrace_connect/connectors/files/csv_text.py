"""
CSV: where its records end, and its rows as columns.

Quoting is that of Python's csv module: a quote opens a quoted field only where a field begins, two of them in a quoted
field are one, and what follows the closing quote belongs to the field. Line breaks in quotes belong to the field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Final

import pyarrow as pa
from pyarrow import csv

from headrace_connect.connectors.files.parsed import Damage, Parsed, why_not_utf8
from headrace_connect.connectors.files.typed import cast_columns

_BREAKS: Final = b"\r\n"


class CsvScanner:
    """Finds the ends of fields and records; all in the engine of ``re``, without a loop in Python for each record."""

    def __init__(self, delimiter: str, quote: str | None) -> None:
        """
        Args:
            delimiter, quote: one ASCII character each; without ``quote``, quotes are characters like others.
        """
        comma = re.escape(delimiter.encode())
        plain = rb"[^%b\r\n]*+" % comma
        field = plain
        if quote is not None:
            mark = re.escape(quote.encode())
            field = rb"(?>%b(?>[^%b]++|%b%b)*+%b%b|(?!%b)%b)" % (mark, mark, mark, mark, mark, plain, mark, plain)
        record = rb"%b(?>%b%b)*+" % (field, comma, field)
        # A line feed may still follow a carriage return that is the last byte.
        whole = rb"%b(?>\r\n|\n|\r(?=[^\n]))" % record
        self._delimiter = delimiter.encode()
        self._field = re.compile(field)
        self._record = re.compile(whole)
        self._records = re.compile(rb"(?>%b)*+" % whole)

    def end_of_records(self, text: bytes) -> int:
        """Where the last record of ``text`` that has a line end is over."""
        match = self._records.match(text)
        return match.end() if match else 0

    def end_of_record(self, text: bytes, start: int = 0) -> int | None:
        """Where the record that begins at ``start`` is over; None: it is not whole."""
        match = self._record.match(text, start)
        return match.end() if match else None

    def end_of_header(self, text: bytes) -> int:
        """Where the first record that is not blank is over; 0: it is not whole."""
        blank = len(text) - len(text.lstrip(_BREAKS))
        return self.end_of_record(text, blank) or 0

    def split(self, text: bytes) -> list[tuple[int, bytes]]:
        """Each record of ``text`` and where it begins; the last one may lack its line end or closing quote."""
        records = []
        start = 0
        while start < len(text):
            end = self.end_of_record(text, start) or len(text)
            records.append((start, text[start:end]))
            start = end
        return records

    def count_fields(self, record: bytes) -> int | None:
        """How many fields it has; None: it ends within quotes."""
        count, at = 0, 0
        while True:
            match = self._field.match(record, at)
            if match is None:
                return None
            count += 1
            at = match.end()
            if record[at : at + 1] != self._delimiter:
                return count
            at += 1


class CsvFormat:
    """Satisfies ``TextFormat``: rows have a column for each name, of text or of the type that is given for it."""

    def __init__(
        self,
        scanner: CsvScanner,
        delimiter: str,
        quote: str | None,
        names: Sequence[str],
        types: Mapping[str, pa.DataType],
    ) -> None:
        self._scanner = scanner
        self._names = list(names)
        self._types = types
        self._parsing = csv.ParseOptions(
            delimiter=delimiter,
            quote_char=quote if quote is not None else False,
            double_quote=True,
            newlines_in_values=True,
            ignore_empty_lines=True,
        )
        self._converting = csv.ConvertOptions(
            column_types=dict.fromkeys(self._names, pa.string()), strings_can_be_null=False, check_utf8=True
        )
        self._schema = pa.schema([(name, pa.string()) for name in self._names])

    def end_of_records(self, text: bytes) -> int:
        """See ``TextFormat``."""
        return self._scanner.end_of_records(text)

    def parse(self, text: bytes, half: bool = False) -> Parsed:
        """See ``TextFormat``; blank lines are no records."""
        damage: list[Damage] = []
        starts: list[tuple[int, bytes]] | None = None
        table = None if half else self._read(text)
        if table is None:
            starts, damage = self._sort_out(text)
            table = self._read(b"".join(record for _, record in starts))
            assert table is not None, "what is left has the right number of fields, in UTF-8"
        table, wrong = cast_columns(table, self._types)
        if wrong:
            if starts is None:
                starts = [one for one in self._scanner.split(text) if one[1].strip(_BREAKS)]
            damage += [Damage(starts[row][0], reason, starts[row][1]) for row, reason in wrong.items()]
            damage.sort(key=lambda one: one.offset)
        return Parsed(table, damage)

    def _read(self, text: bytes) -> pa.Table | None:
        if not text.strip(_BREAKS):
            return self._schema.empty_table()
        reading = csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=self._names)
        try:
            return csv.read_csv(
                BytesIO(text),
                read_options=reading,
                parse_options=self._parsing,
                convert_options=self._converting,
            )
        except pa.ArrowInvalid:
            return None

    def _sort_out(self, text: bytes) -> tuple[list[tuple[int, bytes]], list[Damage]]:
        good: list[tuple[int, bytes]] = []
        damage = []
        for start, record in self._scanner.split(text):
            if not record.strip(_BREAKS):
                continue
            reason = self._why_not(record)
            if reason is None:
                good.append((start, record if record.endswith((b"\r", b"\n")) else record + b"\n"))
            else:
                damage.append(Damage(start, reason, record))
        return good, damage

    def _why_not(self, record: bytes) -> str | None:
        count = self._scanner.count_fields(record)
        if count is None:
            return "the record ends within quotes"
        if count != len(self._names):
            return f"the record has {count} fields, and there are {len(self._names)} columns"
        return why_not_utf8(record)


def read_header(scanner: CsvScanner, record: bytes, delimiter: str, quote: str | None) -> list[str]:
    """
    The names in a header.

    Raises:
        ValueError: a name is missing, or comes twice, or is not of the file's encoding.
    """
    record = record.lstrip(_BREAKS)
    count = scanner.count_fields(record)
    if count is None:
        raise ValueError("the header ends within quotes")
    numbered = [str(column) for column in range(count)]
    parsed = CsvFormat(scanner, delimiter, quote, numbered, {}).parse(record)
    if parsed.damage or len(parsed.rows) != 1:
        raise ValueError(parsed.damage[0].reason if parsed.damage else "the header is empty")
    assert isinstance(parsed.rows, pa.Table)
    names = [str(name) for name in parsed.rows.to_pylist()[0].values()]
    for place, name in enumerate(names):
        if not name.strip():
            raise ValueError(f"column {place + 1} of the header has no name")
        if name in names[:place]:
            raise ValueError(f"the header has the column {name!r} twice")
    return names
