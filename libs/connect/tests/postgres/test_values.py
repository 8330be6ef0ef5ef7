"""What each text of PostgreSQL becomes, and what is refused."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_common.core.errors import InvalidConfig
from headrace_connect.core.pgoutput.messages import UNCHANGED, Binary, Column, Relation, Value
from headrace_connect.core.values import Columns, ValueModes
from headrace_connect.core.values.arrays import items_of
from headrace_connect.core.values.placeholders import find_placeholders, placeholder_for

DAY_US = 86_400_000_000
OIDS = {
    "bool": 16, "bytea": 17, "int8": 20, "int2": 21, "int4": 23, "text": 25, "oid": 26, "json": 114, "float4": 700,
    "float8": 701, "money": 790, "date": 1082, "time": 1083, "timestamp": 1114, "timestamptz": 1184, "interval": 1186,
    "timetz": 1266, "bit": 1560, "varbit": 1562, "numeric": 1700, "uuid": 2950, "jsonb": 3802, "int4range": 3904,
    "bool[]": 1000, "float8[]": 1022, "timestamptz[]": 1185, "time[]": 1183, "int8[]": 1016,
    "int4[]": 1007, "text[]": 1009, "numeric[]": 1231, "date[]": 1182, "uuid[]": 2951, "bytea[]": 1001, "enum": 70_000,
}  # fmt: skip


def numeric(precision: int, scale: int) -> int:
    return (precision << 16 | scale & 0x7FF) + 4


def columns(type_: str, modifier: int = -1, **modes: Any) -> Columns:
    relation = Relation(1, "s", "t", "d", (Column("c", OIDS[type_], modifier, False),))
    return Columns(relation, ValueModes(**modes))


def convert(texts: list[Value], type_: str, modifier: int = -1, **modes: Any) -> tuple[pa.Array[Any], dict[int, str]]:
    of = columns(type_, modifier, **modes)
    rows, problems = of.convert([[text] for text in texts])
    assert rows.type == pa.struct(list(of.schema))
    return rows.field("c"), problems


def stored(array: pa.Array[Any]) -> list[Any]:
    """The numbers of dates and times, which Python's own types cannot all hold."""
    if pa.types.is_temporal(array.type):
        array = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    return array.to_pylist()


MS, US, UTC_US = pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("us", "UTC")
D52 = pa.decimal128(5, 2)


@pytest.mark.parametrize(
    ("type_", "modifier", "modes", "text", "arrow", "value"),
    [
        ("bool", -1, {}, b"t", pa.bool_(), True),
        ("bool", -1, {}, b"f", pa.bool_(), False),
        ("int2", -1, {}, b"-32768", pa.int16(), -32768),
        ("int4", -1, {}, b"2147483647", pa.int32(), 2**31 - 1),
        ("int8", -1, {}, b"-9223372036854775808", pa.int64(), -(2**63)),
        ("oid", -1, {}, b"4294967295", pa.int64(), 2**32 - 1),
        ("float4", -1, {}, b"0.5", pa.float32(), 0.5),
        ("float8", -1, {}, b"-Infinity", pa.float64(), float("-inf")),
        ("float8", -1, {}, b"5e-324", pa.float64(), 5e-324),
        ("numeric", numeric(5, 2), {}, b"-999.99", D52, Decimal("-999.99")),
        ("numeric", numeric(2, -3), {}, b"99000", pa.decimal128(5, 0), Decimal(99000)),
        ("numeric", numeric(3, 5), {}, b"0.00999", pa.decimal128(5, 5), Decimal("0.00999")),
        ("numeric", numeric(60, 1), {}, b"9" * 59 + b".5", pa.decimal256(60, 1), Decimal("9" * 59 + ".5")),
        ("numeric", numeric(77, 0), {}, b"9" * 77, pa.string(), "9" * 77),
        ("numeric", -1, {}, b"1" + b"0" * 1_000, pa.string(), "1" + "0" * 1_000),
        ("numeric", -1, {}, b"NaN", pa.string(), "NaN"),
        ("numeric", numeric(5, 2), {"decimals": "string"}, b"NaN", pa.string(), "NaN"),
        ("numeric", numeric(5, 2), {"decimals": "double"}, b"1.25", pa.float64(), 1.25),
        ("money", -1, {}, b"-$1,234,567.80", pa.decimal128(19, 2), Decimal("-1234567.80")),
        ("money", -1, {"decimals": "string"}, b"$0.05", pa.string(), "0.05"),
        ("date", -1, {}, b"1970-01-02", pa.date32(), 1),
        ("date", -1, {}, b"0001-12-31 BC", pa.date32(), date(1, 1, 1).toordinal() - 719_163 - 1),
        ("date", -1, {}, b"4714-11-24 BC", pa.date32(), -2_440_588),
        ("date", -1, {}, b"10000-01-01", pa.date32(), date.max.toordinal() - 719_163 + 1),
        ("date", -1, {}, b"5874897-12-31", pa.date32(), 2_147_483_493 - 2_440_588),
        ("date", -1, {"times": "isostring"}, b"infinity", pa.string(), "infinity"),
        ("time", -1, {}, b"23:59:59.999999", pa.time64("us"), DAY_US - 1),
        ("time", 3, {}, b"00:00:00.001", pa.time32("ms"), 1),
        ("time", 3, {"times": "adaptive_time_microseconds"}, b"00:00:00.001", pa.time64("us"), 1_000),
        ("time", -1, {"times": "connect"}, b"00:00:01", pa.time32("ms"), 1_000),
        ("timetz", -1, {}, b"10:00:00+02", pa.string(), "10:00:00+02"),
        ("timestamp", -1, {}, b"1969-12-31 23:59:59.999999", US, -1),
        ("timestamp", 3, {}, b"1970-01-01 00:00:00.5", MS, 500),
        ("timestamp", 6, {}, b"1970-01-01 00:00:00.5", US, 500_000),
        ("timestamp", -1, {"times": "connect"}, b"1970-01-01 00:00:00.5", MS, 500),
        ("timestamp", -1, {}, b"10000-01-01 00:00:00", US, (date.max.toordinal() - 719_162) * DAY_US),
        ("timestamp", -1, {}, b"0001-12-31 23:59:59.5 BC", US, (1 - 719_163) * DAY_US - 500_000),
        ("timestamptz", -1, {}, b"1970-01-01 00:00:00+00", UTC_US, 0),
        ("timestamptz", -1, {}, b"1970-01-01 05:30:00+05:30", UTC_US, 0),
        ("timestamptz", -1, {}, b"1969-12-31 23:00:00.000001-01", UTC_US, 1),
        ("timestamptz", -1, {}, b"1970-01-01 00:53:28+00:53:28", UTC_US, 0),
        ("timestamptz", -1, {"times": "isostring"}, b"infinity", pa.string(), "infinity"),
        ("interval", -1, {}, b"1 mon -1 days +00:00:00.1", pa.string(), "1 mon -1 days +00:00:00.1"),
        ("bit", 1, {}, b"1", pa.bool_(), True),
        ("bit", 4, {}, b"0101", pa.string(), "0101"),
        ("varbit", 1, {}, b"", pa.string(), ""),
        ("bytea", -1, {}, b"\\x00ff", pa.binary(), b"\0\xff"),
        ("bytea", -1, {"bytes": "base64"}, b"\\xfbff", pa.string(), "+/8="),
        ("bytea", -1, {"bytes": "base64-url-safe"}, b"\\xfbff", pa.string(), "-_8="),
        ("bytea", -1, {"bytes": "hex"}, b"\\xFBff", pa.string(), "fbff"),
        ("json", -1, {}, b'{"a": 1.0}', pa.string(), '{"a": 1.0}'),
        ("uuid", -1, {}, b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", pa.string(), "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("int4range", -1, {}, b"[1,3)", pa.string(), "[1,3)"),
        ("enum", -1, {}, "froh ☀".encode(), pa.string(), "froh ☀"),
        ("int4[]", -1, {}, b"{1,NULL,-3}", pa.list_(pa.int32()), [1, None, -3]),
        ("int4[]", -1, {}, b"{}", pa.list_(pa.int32()), []),
        ("int4[]", -1, {"arrays": "text"}, b"[0:1]={1,2}", pa.string(), "[0:1]={1,2}"),
        ("text[]", -1, {}, b'{a,"b \\"c\\\\",NULL,"NULL","","{,}"}', pa.list_(pa.string()),
         ["a", 'b "c\\', None, "NULL", "", "{,}"]),
        ("numeric[]", numeric(5, 2), {}, b"{1.50,0.01}", pa.list_(D52), [Decimal("1.50"), Decimal("0.01")]),
        ("date[]", -1, {}, b"{1970-01-02}", pa.list_(pa.date32()), [date(1970, 1, 2)]),
        ("bytea[]", -1, {}, b'{"\\\\x0001"}', pa.list_(pa.binary()), [b"\0\1"]),
    ],
)  # fmt: skip
def test_a_value(
    type_: str, modifier: int, modes: dict[str, Any], text: bytes, arrow: pa.DataType, value: object
) -> None:
    array, problems = convert([text, None, text], type_, modifier, **modes)
    assert not problems
    assert array.type == arrow
    assert stored(array) == [value, None, value]


@pytest.mark.parametrize(
    ("type_", "modifier", "modes", "text", "cause"),
    [
        ("bool", -1, {}, b"yes", "neither t nor f"),
        ("int4", -1, {}, b"2147483648", "int32"),
        ("numeric", numeric(5, 2), {}, b"NaN", "'NaN' cannot be represented"),
        ("numeric", numeric(5, 2), {}, b"1.234", "data loss"),
        ("numeric", numeric(5, 2), {}, b"1234.00", "precision"),
        ("money", -1, {}, "1.234,50 €".encode(), "lc_monetary must be C"),
        ("date", -1, {}, b"infinity", "infinity is none"),
        ("date", -1, {}, b"31.12.2024", "DateStyle must be ISO"),
        ("date", -1, {}, b"2023-02-29", "day"),
        ("time", -1, {}, b"24:00:00", "24:00:00 is not within a day"),
        ("time", -1, {"times": "connect"}, b"00:00:00.0001", "has microseconds"),
        ("timestamp", -1, {}, b"-infinity", "infinity is none"),
        ("timestamp", -1, {}, b"294276-12-31 23:59:59.999999", "too far from 1970"),
        ("timestamp", -1, {"times": "connect"}, b"2024-01-01 00:00:00.0001", "has microseconds"),
        ("timestamptz", -1, {}, b"infinity", "infinity is none"),
        ("bytea", -1, {}, b"abc", "bytea_output must be hex"),
        ("text", -1, {}, b"\xff", "UTF8"),
        ("int4[]", -1, {}, b"{{1},{2}}", "several dimensions"),
        ("int4[]", -1, {}, b"[0:0]={1}", "begin at index 1"),
        ("int4[]", -1, {}, b"{1,x}", "int32"),
        ("int4", -1, {}, Binary(b"\0\0\0\1"), "binary form"),
        ("int4", -1, {}, UNCHANGED, "REPLICA IDENTITY FULL"),
        ("text", -1, {"placeholder": None}, UNCHANGED, "its table does not have it"),
        ("int4[]", -1, {"placeholder": None}, UNCHANGED, "its table does not have it"),
    ],
)  # fmt: skip
def test_what_cannot_be_represented_is_told_with_its_row(
    type_: str, modifier: int, modes: dict[str, Any], text: Value, cause: str
) -> None:
    array, problems = convert([None, text, None, text, text], type_, modifier, **modes)
    assert list(problems) == [1, 3, 4]
    assert all(problem.startswith("s.t.c: ") and cause in problem for problem in problems.values())
    assert array.null_count == 5


def test_rows_beside_a_bad_one_are_as_they_were() -> None:
    texts: list[Value] = [b"2024-01-01", b"infinity", b"0044-03-15 BC", None, b"2024-01-02"]
    array, problems = convert(texts, "date")
    assert list(problems) == [1]
    assert stored(array) == [19_723, None, -735_160, None, 19_724]


def test_a_long_value_is_not_repeated_whole() -> None:
    _, problems = convert([b"9" * 10_000], "int4")
    assert len(problems[0]) < 500


CODES = list(b"__debezium_unavailable_value")
LONG = int.from_bytes(bytes(CODES))


@pytest.mark.parametrize(
    ("type_", "modifier", "modes", "other", "value"),
    [
        ("text", -1, {}, b"x", "__debezium_unavailable_value"),
        ("jsonb", -1, {}, b"{}", "__debezium_unavailable_value"),
        ("numeric", -1, {}, b"1.5", "__debezium_unavailable_value"),
        ("numeric", numeric(40, 2), {}, b"1.5", Decimal(f"{LONG % 10**40}e-2")),
        ("numeric", numeric(40, 2), {"decimals": "double"}, b"1.5", float(LONG)),
        ("bytea", -1, {"placeholder": "?"}, b"\\x00", b"?"),
        ("bytea", -1, {"placeholder": "?", "bytes": "hex"}, b"\\x00", "3f"),
        ("bytea", -1, {"placeholder": "??>", "bytes": "base64"}, b"\\x00", "Pz8+"),
        ("bytea", -1, {"placeholder": "??>", "bytes": "base64-url-safe"}, b"\\x00", "Pz8-"),
        ("text[]", -1, {}, b"{x}", ["__debezium_unavailable_value"]),
        ("bytea[]", -1, {"placeholder": "?"}, b'{"\\\\x00"}', [b"?"]),
        ("bytea[]", -1, {"placeholder": "?", "bytes": "hex"}, b'{"\\\\x00"}', ["3f"]),
        ("int4[]", -1, {}, b"{1}", CODES),
        ("int8[]", -1, {}, b"{1}", CODES),
        ("float8[]", -1, {}, b"{1}", [float(code) for code in CODES]),
        ("numeric[]", numeric(5, 2), {}, b"{1}", [Decimal(code).scaleb(-2) for code in CODES]),
        ("numeric[]", numeric(2, 0), {"placeholder": "z"}, b"{1}", [Decimal(22)]),
        ("date[]", -1, {"placeholder": "?"}, b"{2024-01-01}", [date(1970, 1, 1) + timedelta(days=63)]),
        ("time[]", -1, {"placeholder": "?"}, b"{10:00:00}", [time(0, 0, 0, 63)]),
        ("timestamptz[]", -1, {"placeholder": "?"}, b"{}", [datetime(1970, 1, 1, 0, 0, 0, 63, UTC)]),
        ("bool[]", -1, {"placeholder": "?"}, b"{t}", [bool(63 >> bit & 1) for bit in (7, 6, 5, 4, 3, 2, 1, 0)]),
    ],
)  # fmt: skip
def test_a_large_value_that_did_not_change_has_a_placeholder_of_its_type(
    type_: str, modifier: int, modes: dict[str, Any], other: bytes, value: object
) -> None:
    array, problems = convert([UNCHANGED, other, None, UNCHANGED], type_, modifier, **modes)
    assert not problems
    assert [array[row].as_py() for row in (0, 2, 3)] == [value, None, value]
    found = find_placeholders(array, modes.get("placeholder", ValueModes().placeholder))
    assert found is not None
    assert found.to_pylist() == [True, False, False, True]
    assert find_placeholders(array.slice(1, 2), modes.get("placeholder", ValueModes().placeholder)) is None


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.large_binary(), pa.large_list(pa.int16())])
def test_placeholders_are_found_in_other_forms_of_columns(kind: pa.DataType) -> None:
    one = placeholder_for(kind, "?!")
    assert one is not None
    assert find_placeholders(pa.concat_arrays([pa.nulls(1, kind), one]), "?!") == pa.array([False, True])
    assert find_placeholders(pa.array(["x", "?!", None]).dictionary_encode(), "?!") == pa.array([False, True, False])


def test_types_whose_values_are_never_large_have_no_placeholder() -> None:
    kinds: list[Any] = [pa.int64(), pa.bool_(), pa.date32(), pa.timestamp("us"), pa.float32(), pa.null()]
    kinds += [pa.struct([("a", pa.string())]), pa.list_(pa.list_(pa.string())), pa.list_(pa.null())]
    assert [placeholder_for(kind, "?") for kind in kinds] == [None] * len(kinds)
    assert all(find_placeholders(pa.nulls(2, kind), "?") is None for kind in kinds)


def test_a_domain_is_what_is_below_it() -> None:
    relation = Relation(1, "s", "t", "d", tuple(Column(f"c{n}", 90_000 + n, -1, False) for n in range(4)))
    names = [("pg_catalog", "int4"), ("public", "int4"), ("pg_catalog", "varchar"), ("pg_catalog", "_int4")]
    found = Columns(relation, ValueModes(), {90_000 + n: name for n, name in enumerate(names)})
    assert found.schema.types == [pa.int32(), pa.string(), pa.string(), pa.list_(pa.int32())]


def test_a_row_that_is_none_is_null_and_a_column_knows_its_logical_type() -> None:
    of = columns("date")
    rows, problems = of.convert([None, [b"1970-01-02"], None])
    assert rows.to_pylist() == [None, {"c": date(1970, 1, 2)}, None]
    assert not problems
    assert of.schema.field("c").metadata == {b"connect.name": b"io.debezium.time.Date", b"connect.version": b"1"}
    assert len(of.convert([])[0]) == 0


@pytest.mark.parametrize(
    ("item", "name"),
    [("date", b"io.debezium.time.Date"), ("uuid", b"io.debezium.data.Uuid"), ("text", None)],
)
def test_the_items_of_an_array_know_their_logical_type(item: str, name: bytes | None) -> None:
    own, listed = columns(item).schema.field("c"), columns(f"{item}[]").schema.field("c")
    assert (own.metadata or {}).get(b"connect.name") == name
    assert listed.metadata is None
    assert (listed.type.value_field.metadata or {}).get(b"connect.name") == name


def test_texts_of_the_catalog_are_known_by_name_too() -> None:
    names = [("pg_catalog", "jsonb"), ("pg_catalog", "_jsonb"), ("pg_catalog", "xml")]
    relation = Relation(1, "s", "t", "d", tuple(Column(f"c{n}", 90_000 + n, -1, False) for n in range(3)))
    found = Columns(relation, ValueModes(), {90_000 + n: name for n, name in enumerate(names)}).schema
    assert found.types == [pa.string(), pa.list_(pa.string()), pa.string()]
    assert found.field(0).metadata[b"connect.name"] == b"io.debezium.data.Json"


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="decimals is 'exact'; it is one of precise, double, string"):
        ValueModes(decimals="exact")  # type: ignore[arg-type]


dates = st.dates(date(1, 1, 1), date(9999, 12, 31))


@settings(deadline=None)
@given(st.lists(dates, max_size=5), st.integers(-11, 14_000))
def test_dates_are_those_of_the_calendar_also_cycles_of_400_years_away(days: list[date], cycles: int) -> None:
    texts: list[Value] = []
    for day in days:
        year = day.year + 400 * cycles
        texts.append(b"%04d-%02d-%02d%s" % (year if year > 0 else 1 - year, day.month, day.day, b" BC" * (year <= 0)))
    array, problems = convert(texts, "date")
    assert not problems
    assert stored(array) == [day.toordinal() - 719_163 + cycles * 146_097 for day in days]


EPOCH = datetime.fromisoformat("1970-01-01")
moments = st.datetimes(EPOCH.replace(year=1, day=2), EPOCH.replace(year=9999, month=12, day=30))


@settings(deadline=None)
@given(st.lists(moments, max_size=5), st.integers(-50_000, 50_000))
def test_timestamps_and_their_offsets(moments: list[datetime], offset: int) -> None:
    def text(moment: datetime) -> bytes:
        return moment.strftime("%Y-%m-%d %H:%M:%S.%f").rjust(26, "0").rstrip("0").rstrip(".").encode()

    array, problems = convert([text(moment) for moment in moments], "timestamp")
    assert (stored(array), problems) == ([(moment - EPOCH) // timedelta(microseconds=1) for moment in moments], {})
    sign, size = b"+-"[offset < 0 : (offset < 0) + 1], abs(offset)
    zone = b"%s%02d:%02d:%02d" % (sign, size // 3_600, size // 60 % 60, size % 60)
    array, problems = convert([text(moment) + zone for moment in moments], "timestamptz")
    there = [moment - timedelta(seconds=offset) for moment in moments]
    assert not problems
    assert stored(array) == [(moment - EPOCH) // timedelta(microseconds=1) for moment in there]


@settings(deadline=None)
@given(st.lists(st.times(), max_size=5))
def test_times_of_day(times: list[time]) -> None:
    array, problems = convert([str(at).encode() for at in times], "time")
    assert (array.to_pylist(), problems) == (times, {})


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-999_999_999, max_value=999_999_999)
    )
)
def test_decimals_are_exact(numbers: list[Decimal]) -> None:
    array, problems = convert([f"{number:f}".encode() for number in numbers], "numeric", numeric(12, 3))
    assert (array.to_pylist(), problems) == (numbers, {})


@settings(max_examples=200, deadline=None)
@given(st.lists(st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6)))
def test_arrays_of_text(items: list[str | None]) -> None:
    quoted = [None if item is None else item.replace("\\", "\\\\").replace('"', '\\"') for item in items]
    text = "{" + ",".join("NULL" if item is None else f'"{item}"' for item in quoted) + "}"
    array, problems = convert([text.encode()], "text[]")
    assert (array.to_pylist(), problems) == ([items], {})


@settings(deadline=None)
@given(st.text('{},"\\a N', max_size=12).map(str.encode))
def test_what_is_no_array_is_refused_and_never_cut(text: bytes) -> None:
    try:
        items = items_of(text)
    except ValueError:
        return
    assert text.count(b",") >= len(items) - 1
    assert text.startswith(b"{")
    assert text.endswith(b"}")


@settings(deadline=None)
@given(st.lists(st.one_of(st.just(b"infinity"), st.just(b"1970-01-01"), st.none()), max_size=40))
def test_exactly_the_bad_rows_are_found(texts: list[bytes | None]) -> None:
    array, problems = convert(list(texts), "date")
    assert sorted(problems) == [place for place, text in enumerate(texts) if text == b"infinity"]
    assert stored(array) == [0 if text == b"1970-01-01" else None for text in texts]
