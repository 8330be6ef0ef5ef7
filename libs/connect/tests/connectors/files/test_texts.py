"""CSV against Python's csv module, JSON lines, encodings, types."""

from __future__ import annotations

import csv
import io
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_connect.connectors.files.csv_text import CsvFormat, CsvScanner, read_header
from headrace_connect.connectors.files.encodings import find_encoding
from headrace_connect.connectors.files.line_text import JsonFormat, LineFormat
from headrace_connect.connectors.files.typed import parse_types

SCANNER = CsvScanner(",", '"')
any_csv = st.text(st.sampled_from(['"', ",", "\n", "\r", "a", "é", " "]), max_size=30)


def csv_format(*names: str, **types: pa.DataType) -> CsvFormat:
    return CsvFormat(SCANNER, ",", '"', names, types)


def read_csv(text: str) -> list[list[str]]:
    """Python's csv module; a record that its text ends within quotes is one too."""
    return list(csv.reader(io.StringIO(text, newline=""), strict=False))


@given(any_csv)
def test_records_end_where_those_of_the_csv_module_do(text: str) -> None:
    whole = SCANNER.end_of_records(text.encode())
    before, behind = text.encode()[:whole].decode(), text.encode()[whole:].decode()
    records = SCANNER.split(before.encode())
    assert b"".join(record for _, record in records) == before.encode()
    rows = [read_csv(record.decode()) for _, record in records]
    assert [row for one in rows for row in one] == read_csv(before), "each cut is between two records"
    assert all(len(one) == 1 for one in rows)
    assert read_csv(before) + read_csv(behind) == read_csv(text)
    assert len(read_csv(behind)) <= 1 or behind.endswith("\r"), "nothing whole is left"


@given(any_csv)
def test_rows_are_those_of_the_csv_module(text: str) -> None:
    whole = text.encode()[: SCANNER.end_of_records(text.encode())]
    parsed = csv_format("x", "y").parse(whole)
    rows = [row for row in read_csv(whole.decode()) if row]
    assert isinstance(parsed.rows, pa.Table)
    assert [list(row.values()) for row in parsed.rows.to_pylist()] == [row for row in rows if len(row) == 2]
    assert len(parsed.damage) == sum(len(row) != 2 for row in rows)
    for one in parsed.damage:
        assert whole[one.offset :].startswith(one.raw)


def test_a_row_is_wrong_alone_and_says_where() -> None:
    text = b'1,one\n2\n3,"three\n3"\nx,four\n5,\xff\n6,six\n'
    parsed = csv_format("n", "name", n=pa.int64()).parse(text)
    assert isinstance(parsed.rows, pa.Table)
    assert parsed.rows.to_pylist() == [{"n": 1, "name": "one"}, {"n": 3, "name": "three\n3"}, {"n": 6, "name": "six"}]
    assert [(one.offset, one.raw) for one in parsed.damage] == [(6, b"2\n"), (20, b"x,four\n"), (27, b"5,\xff\n")]
    assert "1 fields" in parsed.damage[0].reason
    assert "'x' is no int64" in parsed.damage[1].reason
    assert "encoding" in parsed.damage[2].reason


def test_quotes_that_never_close_are_damage_at_the_end() -> None:
    parsed = csv_format("a", "b").parse(b'1,2\n3,"4\n', half=True)
    assert [(one.offset, one.reason) for one in parsed.damage] == [(4, "the record ends within quotes")]


def test_the_last_record_may_have_no_line_end() -> None:
    parsed = csv_format("a", "b").parse(b"1,2\n3,4", half=True)
    assert isinstance(parsed.rows, pa.Table)
    assert parsed.rows.to_pylist() == [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]


@pytest.mark.parametrize(
    ("header", "error"),
    [
        (b"a,,c\n", "column 2 of the header has no name"),
        (b"a,b,a\n", "the header has the column 'a' twice"),
        (b"a,\xff\n", "encoding"),
        (b'a,"b\n', "within quotes"),
    ],
)
def test_a_header_that_names_no_columns(header: bytes, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        read_header(SCANNER, header, ",", '"')


def test_a_header_may_be_quoted() -> None:
    assert read_header(SCANNER, b'"a, b","c\nd"\r\n', ",", '"') == ["a, b", "c\nd"]


def test_lines_are_text_as_it_is() -> None:
    parsed = LineFormat().parse("a\r\n\n\xe9 \n".encode() + b"\xff\nlast")
    assert isinstance(parsed.rows, pa.Table)
    assert parsed.rows.column("value").to_pylist() == ["a", "", "\xe9 ", "last"]
    assert [(one.offset, one.raw) for one in parsed.damage] == [(8, b"\xff\n")]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a":[1\n', "no JSON"),
        (b"2]}\n", "no JSON"),
        (b"[1]\n", "no object"),
        (b'{"a":9223372036854775808}\n', "beyond 64 bits"),
        (b'{"a":' + b"9" * 5_000 + b"}\n", "beyond 64 bits"),
        (b'{"a":0.12345678901234567890}\n', "all digits"),
        (b'{"a":1e400}\n', "all digits"),
        (b'{"a":NaN}\n', "NaN is no JSON"),
        (b'{"a":-Infinity}\n', "-Infinity is no JSON"),
        (b'{"a":"\xff"}\n', "encoding"),
        (b'{"a":' + b"[" * 100_000 + b"\n", "recursion"),
    ],
)
def test_a_line_of_json_is_wrong_alone(line: bytes, reason: str) -> None:
    good = b'{"a":9223372036854775807,"b":1.5e3}\n\n'
    parsed = JsonFormat().parse(good + line + good)
    assert parsed.rows == [{"a": (1 << 63) - 1, "b": 1500.0}] * 2
    assert [(one.offset, one.raw) for one in parsed.damage] == [(len(good), line)]
    assert reason in parsed.damage[0].reason


@given(st.text(max_size=20), st.sampled_from(["utf-8", "utf-16-le", "utf-16-be"]), st.data())
def test_offsets_in_text_are_offsets_in_the_file(text: str, name: str, data: Any) -> None:
    encoding = find_encoding(name)
    raw = text.encode(name)
    cut = data.draw(st.integers(0, len(raw)))
    piece = encoding.to_utf8(raw[:cut])
    assert text.encode().startswith(piece) or name == "utf-8"
    end = encoding.raw_bytes(piece)
    assert cut - 3 <= end <= cut
    assert piece + encoding.to_utf8(raw[end:]) == text.encode()


@pytest.mark.parametrize("name", ["latin-1", "cp1252", "koi8-r", "iso-8859-15"])
def test_one_byte_for_each_character(name: str) -> None:
    encoding = find_encoding(name)
    raw = bytes(range(256))
    text = encoding.to_utf8(raw)
    assert encoding.raw_bytes(text) == 256
    assert text.decode("utf-8", "surrogatepass").encode(name, "surrogateescape") == raw


@pytest.mark.parametrize("name", ["shift_jis", "gb18030", "utf-7", "rot13", "base64", "nonsense", "utf-16"])
def test_encodings_without_offsets_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="encoding"):
        find_encoding(name)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("int64", "-5", "9223372036854775808"),
        ("int64", "7", "0x10"),
        ("int32", "5", "2147483648"),
        ("double", "1.5", "1e400"),
        ("double", "2", "nan"),
        ("decimal(6,2)", "1.20", "1.234"),
        ("decimal(3,2)", "1.2", "12.34"),
        ("decimal(50,1)", "1.2", "x"),
        ("date", "2024-02-29", "2023-02-29"),
        ("timestamp", "2024-01-01 00:00:00.123456", "2024-01-01 00:00:00.1234567"),
        ("timestamptz", "2024-01-01T00:00:00+02:00", "2024-01-01T00:00:00"),
        ("boolean", "true", "yes"),
    ],
)
def test_what_does_not_fit_its_type_exactly_is_wrong(kind: str, good: str, bad: str) -> None:
    types = parse_types(f"a:{kind}, b:string")
    parsed = csv_format("a", "b", **types).parse(f"{good},1\n{bad},2\n,3\n".encode())
    assert isinstance(parsed.rows, pa.Table)
    assert parsed.rows.column("b").to_pylist() == ["1", "3"]
    assert parsed.rows.column("a")[0].as_py() is not None
    assert parsed.rows.column("a")[1].as_py() is None
    assert len(parsed.damage) == 1


@pytest.mark.parametrize(
    "text", ["a", "a:", ":int64", "a:int64,a:int64", "a:decimal(0,0)", "a:decimal(2,3)", "a:float"]
)
def test_types_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"NAME:TYPE|twice|decimal|no type"):
        parse_types(text)
