"""``string`` and ``bytes``: one column."""

import pyarrow as pa
import pytest

from headrace.errors import InvalidConfig
from headrace_streams.core.formats import bytes as raw
from headrace_streams.core.formats import string
from headrace_streams.core.formats.port import Decoded, Format, Problem


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_values_are_one_column(kind: pa.DataType) -> None:
    values = pa.array([b"a", b"", "é".encode()], kind)
    text: Format = string
    assert text.decode(values) == Decoded(pa.table({"value": ["a", "", "é"]}))
    assert raw.decode(values) == Decoded(pa.table({"value": values.cast(pa.binary())}))
    assert string.decode(values[:0]).table.schema == string.schema


def test_text_that_is_not_utf8_is_a_problem_of_its_value() -> None:
    assert string.decode(pa.array([b"a", b"b\xff", b"c"])) == Decoded(
        pa.table({"value": ["a", "c"]}), [Problem(1, "the value is not UTF-8: invalid start byte at byte 1")]
    )
    assert raw.decode(pa.array([b"\xff"])).problems == []


def test_null_is_written_as_null() -> None:
    expected = pa.array([b"a", None], pa.binary())
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        assert string.encode(pa.table({"x": pa.array(["a", None], kind)})) == expected
    assert raw.encode(pa.table({"x": pa.array([b"a", None], pa.large_binary())})) == expected


@pytest.mark.parametrize(
    ("format", "columns", "message"),
    [
        (string, {"n": [1]}, "string does not write column 'n', which is int64; cast it to string, or write json"),
        (raw, {"n": ["a"]}, "bytes does not write column 'n', which is string; cast it to binary, or write json"),
        (string, {"a": ["x"], "b": ["y"]}, r"string writes one column, not 2 \(a, b\); select one, or write json"),
    ],
)
def test_other_columns_are_refused(format: Format, columns: dict[str, list[object]], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        format.encode(pa.table(columns))
