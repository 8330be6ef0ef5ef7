"""Values in columns: exact, or refused; never cut or rounded."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_connect.connectors.sql_sink.fitting import fit
from headrace_connect.connectors.sql_sink.kinds import Kind, kind_for, wider

NS, US = pa.timestamp("ns"), pa.timestamp("us")
NAN = float("nan")


@pytest.mark.parametrize(
    ("kind", "values", "fitted", "wrong"),
    [
        (Kind("int16"), pa.array([32_767, 32_768, None]), [32_767, None, None], [1]),
        (Kind("int64"), pa.array([1.0, 1.5, 1e30, NAN]), [1, None, None, None], [1, 2, 3]),
        (Kind("int64"), pa.array([2**63, 5], pa.uint64()), [None, 5], [0]),
        (Kind("int64"), pa.array([Decimal("7.00"), Decimal("7.01")]), [7, None], [1]),
        (Kind("int64"), pa.array(["-12", "1.5", "0x10", "", "9223372036854775808"]), [-12, *[None] * 4], [1, 2, 3, 4]),
        (Kind("int64"), pa.array([True, False]), [None, None], [0, 1]),
        (Kind("float64"), pa.array([2**53, 2**53 + 1]), [2.0**53, None], [1]),
        (Kind("float64"), pa.array([NAN, float("inf")]), [NAN, float("inf")], []),
        (
            Kind("float64"),
            pa.array(["0.1", "0.12345678901234567890", "1e400", "x"]),
            [0.1, None, None, None],
            [1, 2, 3],
        ),
        (Kind("float64"), pa.array([Decimal("0.1"), Decimal("0.1") ** 30]), [0.1, 1e-30], []),
        (Kind("float32"), pa.array([0.5, 0.1, NAN]), [0.5, None, NAN], [1]),
        (
            Kind("numeric", 5, 2),
            pa.array([Decimal("123.45"), Decimal("1234.50"), Decimal("1.50")]),
            ["123.45", None, "1.50"],
            [1],
        ),
        (Kind("numeric", 5, 2), pa.array([Decimal("1.234"), Decimal("1.230")]), [None, "1.230"], [0]),
        (Kind("numeric", 5, 2), pa.array([0.1, NAN, 1000.0]), ["0.1", None, None], [1, 2]),
        (Kind("numeric", 3, -2), pa.array([12_300, 12_340]), ["12300", None], [1]),
        (Kind("numeric"), pa.array([2**64 - 1], pa.uint64()), [str(2**64 - 1)], []),
        (
            Kind("numeric"),
            pa.array(["9" * 1_000, "1e999999999", "1e5", "inf"]),
            ["9" * 1_000, None, "100000", None],
            [1, 3],
        ),
        (Kind("text", 3), pa.array(["äöü", "abcd", "abc "]), ["äöü", None, None], [1, 2]),
        (Kind("text"), pa.array([1e20, 0.1]), ["1e+20", "0.1"], []),
        (Kind("text"), pa.array([b"x"]), [None], [0]),
        (Kind("text"), pa.array([5], pa.duration("s")), [None], [0]),
        (Kind("text"), pa.array([{"a": ["é", "x"], "b": None}]), ['{"a":["é","x"],"b":null}'], []),
        (Kind("json"), pa.array([{"a": 1.5}, {"a": NAN}]), ['{"a":1.5}', None], [1]),
        (Kind("boolean"), pa.array(["true", "maybe"]), [True, None], [1]),
        (Kind("boolean"), pa.array([1, 0]), [None, None], [0, 1]),
        (Kind("bytes"), pa.array(["x"]), [None], [0]),
        (Kind("date"), pa.array([0, 86_400, 86_401], pa.timestamp("s")), ["1970-01-01", "1970-01-02", None], [2]),
        (Kind("date"), pa.array(["2024-02-29", "2023-02-29"]), ["2024-02-29", None], [1]),
        (Kind("date"), pa.array([-800_000, 20_000_000], pa.date32()), [None, None], [0, 1]),
        (Kind("timestamp", 6), pa.array([1_001, 1_000], NS), [None, "1970-01-01 00:00:00.000001"], [0]),
        (Kind("timestamp", 3), pa.array([1_000, 1_001], US), ["1970-01-01 00:00:00.001000", None], [1]),
        (Kind("timestamp", 4), pa.array([1_100, 1_110], US), ["1970-01-01 00:00:00.001100", None], [1]),
        (Kind("timestamp", 6), pa.array([2**62], US), [None], [0]),
        (Kind("timestamp", 6), pa.array([date(2024, 1, 1)]), ["2024-01-01 00:00:00.000000"], []),
        (
            Kind("timestamptz", 6),
            pa.array([0], pa.timestamp("s", "Europe/Berlin")),
            ["1970-01-01 00:00:00.000000+00"],
            [],
        ),
        (
            Kind("timestamptz", 6),
            pa.array(["2024-01-01T01:00:00+02:00", "2024-01-01T01:00:00", "2024-01-01T00:00:00.1234567Z", "soon"]),
            ["2023-12-31 23:00:00.000000+00", "2024-01-01 01:00:00.000000+00", None, None],
            [2, 3],
        ),
        (
            Kind("number"),
            pa.array(["007", "7", "7.50", "x", "1e3", "9223372036854775808"]),
            [None, "7", "7.50", "x", None, None],
            [0, 4, 5],
        ),
        (Kind("number"), pa.array([NAN, float("inf")]), [None, float("inf")], [0]),
        (
            Kind("number"),
            pa.array([Decimal("1.10"), Decimal("0.1234567890123456789")]),
            ["1.1000000000000000000", None],
            [1],
        ),
        (Kind("other"), pa.array(["10:00:00.123456", "10:00:00.1234567"]), ["10:00:00.123456", None], [1]),
        (Kind("other"), pa.array([5]), [None], [0]),
        (Kind("unsupported"), pa.array(["x", None]), [None, None], [0]),
        (Kind("int64"), pa.array([None, None]), [None, None], []),
        (Kind("text"), pa.array(["a", None, "a"]).dictionary_encode(), ["a", None, "a"], []),
    ],
)
def test_a_value_is_exact_or_refused(kind: Kind, values: pa.Array[Any], fitted: list[Any], wrong: list[int]) -> None:
    got, reasons = fit(values, kind)
    assert sorted(reasons) == wrong
    assert repr(got.to_pylist()) == repr(fitted)
    assert all("does not fit" in reason for reason in reasons.values())


any_number = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**12), max_value=10**12),
)


@given(
    st.lists(any_number, min_size=1, max_size=4),
    st.sampled_from(
        [Kind("int16"), Kind("int64"), Kind("float32"), Kind("float64"), Kind("numeric", 8, 2), Kind("number")]
    ),
)
def test_what_fits_is_the_same_number(numbers: list[Any], kind: Kind) -> None:
    for number in numbers:
        got, wrong = fit(pa.array([number]), kind)
        if not wrong:
            (kept,) = got.to_pylist()
            same = {Decimal(number), Decimal(str(number))}
            assert Decimal(str(kept)) in same or Decimal(kept) in same


@pytest.mark.parametrize(
    "type_",
    [
        pa.int8(),
        pa.uint32(),
        pa.uint64(),
        pa.float32(),
        pa.decimal128(10, 2),
        pa.bool_(),
        US,
        pa.string(),
        pa.binary(),
    ],
)
def test_a_column_that_is_made_for_a_type_takes_it(type_: pa.DataType) -> None:
    kind = kind_for(type_)
    value = {pa.bool_(): True, pa.string(): "x", pa.binary(): b"x", pa.decimal128(10, 2): Decimal("1.50")}
    one = pa.array([value.get(type_, 100)], type_)
    assert not fit(one, kind)[1]
    while (kind_or_none := wider(kind)) is not None:
        kind = kind_or_none
        assert not fit(one, kind)[1]
