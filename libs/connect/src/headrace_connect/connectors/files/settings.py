"""Settings of the two connectors, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from headrace_connect.connectors.files.column_reader import ArrowGroups, ColumnReader, ParquetGroups
from headrace_connect.connectors.files.contents import Codec
from headrace_connect.connectors.files.csv_text import CsvFormat, CsvScanner, read_header
from headrace_connect.connectors.files.encodings import find_encoding
from headrace_connect.connectors.files.line_text import JsonFormat, LineFormat
from headrace_connect.connectors.files.parsed import TextFormat
from headrace_connect.connectors.files.reading import Reader
from headrace_connect.connectors.files.text_reader import TextReader
from headrace_connect.connectors.files.typed import parse_types
from headrace_connect.connectors.places import check_url
from headrace_connect.settings import blame, setting

Compression = Literal["auto", "none", "gzip", "zstd"]
_CODECS: Final[Mapping[str, Codec]] = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_CSV: Final = "csv"


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """Of the source ``files``."""

    path: str
    """The directory: ``/var/spool/orders``, ``s3://BUCKET/PATH``, ``gs://BUCKET/PATH``. Credentials of a bucket are
    those of the environment."""
    format: Literal["lines", "csv", "jsonl", "parquet", "arrow"]
    """What a file holds. ``lines``: a row has one column ``value``."""
    pattern: str = "*"
    """Which files, by their names below ``path``: ``*`` stops at ``/``, ``**`` is any number of directories. Names that
    begin with a dot or end in ``.part`` are never read."""
    compression: Compression = "auto"
    """Of text files. ``auto``: ``.gz`` is gzip, ``.zst`` is zstd, others are not compressed."""
    encoding: str = "utf-8"
    """Of text files: ``utf-8``, ``utf-16-le``, ``utf-16-be``, or one with a byte for each character, as ``latin-1``. A
    byte order mark is skipped."""
    csv_delimiter: str = ","
    """Between fields: one ASCII character; ``\\t`` is a tab."""
    csv_quote: str = '"'
    """Around fields: one ASCII character; empty: quotes are characters like others."""
    csv_columns: tuple[str, ...] = ()
    """Names of the columns, of files without a header. Empty: the first record of each file is its header."""
    csv_types: str = ""
    """Types of columns, as ``id:int64, price:decimal(10,2)``; others are ``string``. There are string, boolean, int32,
    int64, double, date, timestamp, timestamptz, decimal(DIGITS,SCALE). A record that does not fit exactly is bad."""
    batch_bytes: int = setting(1 << 20, low=1 << 10, high=16 << 20)
    """Bytes of a text file that are read at once. A record may not be longer."""
    batch_rows: int = setting(10_000, low=1, high=1_000_000)
    """Rows of a Parquet or Arrow file that are read at once."""
    complete_after_ms: int = setting(-1, low=-1)
    """A local file that has not changed for so long is taken as complete: its last line needs no end, and what is half
    is damaged. -1: it may always grow. An object in a bucket always is complete."""
    identity: Literal["file", "content"] = "file"
    """What makes a file another one. ``file``: its inode, or its ETag in a bucket. ``content``: only other bytes where
    it has been read; for files that are copied whole whenever they have grown."""

    def __post_init__(self) -> None:
        check_url(self.path)
        with blame("encoding"):
            find_encoding(self.encoding)
        types = parse_types(self.csv_types)
        if self.format != _CSV and (types or self.csv_columns):
            raise ValueError(f"csv.columns and csv.types are for format=csv, and it is {self.format}")
        if self.format == _CSV:
            _check_csv(_unescape(self.csv_delimiter), self.csv_quote)
            unknown = [name for name in types if self.csv_columns and name not in self.csv_columns]
            if unknown:
                raise ValueError(f"csv.types has the column {unknown[0]!r}, which is not in csv.columns")
            if len(set(self.csv_columns)) < len(self.csv_columns):
                raise ValueError("csv.columns has a column twice")
        if not self.pattern or self.pattern.startswith("/") or ".." in self.pattern.split("/"):
            raise ValueError(f"pattern is relative to path, as **/*.csv, not {self.pattern!r}")

    def reader(self, name: str) -> Reader:
        """A reader for the file of that name."""
        if self.format == "parquet":
            return ColumnReader(ParquetGroups, self.batch_rows)
        if self.format == "arrow":
            return ColumnReader(ArrowGroups, self.batch_rows)
        encoding = find_encoding(self.encoding)
        codec = find_codec(self.compression, name)
        if self.format == _CSV:
            return self._csv_reader(codec)
        made: TextFormat = LineFormat() if self.format == "lines" else JsonFormat()
        return TextReader(lambda _: made, encoding, self.batch_bytes, codec)

    def _csv_reader(self, codec: Codec | None) -> Reader:
        delimiter, quote = _unescape(self.csv_delimiter), self.csv_quote or None
        scanner = CsvScanner(delimiter, quote)
        types = parse_types(self.csv_types)

        def format_of(header: bytes | None) -> TextFormat:
            names = self.csv_columns if header is None else read_header(scanner, header, delimiter, quote)
            missing = [name for name in types if name not in names]
            if missing:
                raise ValueError(f"the header has no column {missing[0]!r}, which csv.types has")
            return CsvFormat(scanner, delimiter, quote, names, types)

        header = None if self.csv_columns else scanner.end_of_header
        return TextReader(format_of, find_encoding(self.encoding), self.batch_bytes, codec, header)


def find_codec(compression: Compression, name: str) -> Codec | None:
    """How a file is compressed; None: not at all."""
    if compression == "auto":
        return next((codec for ending, codec in _CODECS.items() if name.endswith(ending)), None)
    return None if compression == "none" else compression


def _unescape(delimiter: str) -> str:
    return "\t" if delimiter == "\\t" else delimiter


def _check_csv(delimiter: str, quote: str) -> None:
    for name, char in (("csv.delimiter", delimiter), ("csv.quote", quote)):
        if (char or name == "csv.delimiter") and (len(char) != 1 or not char.isascii() or char in "\r\n\0"):
            raise ValueError(f"{name} is one ASCII character, not {char!r}")
    if delimiter == quote:
        raise ValueError("csv.delimiter and csv.quote are the same character")
