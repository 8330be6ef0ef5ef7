"""Which Arrow type a column of PostgreSQL has, and how its text becomes values of it."""

from __future__ import annotations

from base64 import standard_b64encode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headrace_connect.core.batch import NAME, VERSION
from headrace_connect.core.pgoutput.messages import Column
from headrace_connect.core.values.arrays import items_of
from headrace_connect.core.values.modes import ValueModes
from headrace_connect.core.values.moments import days_of, time_us_of, timestamp_us_of
from headrace_connect.core.values.placeholders import is_bytes, is_text, placeholder_for

Array: TypeAlias = "pa.Array[Any]"
Bulk: TypeAlias = "Callable[[Array], Array]"
"""From the text of values (binary) to values. Raises ValueError (Arrow's errors are such) if one of them has none."""
_DECIMAL_DIGITS_MAX: Final = 76
_US: Final = pa.timestamp("us")
_IN_MS: Final = (pa.timestamp("ms"), pa.time32("ms"))
_TYPES: Final = {
    16: "bool", 17: "bytea", 20: "int8", 21: "int2", 23: "int4", 26: "oid", 700: "float4", 701: "float8",
    790: "money", 1082: "date", 1083: "time", 1114: "timestamp", 1184: "timestamptz", 1560: "bit", 1700: "numeric",
    114: "json", 142: "xml", 2950: "uuid", 3802: "jsonb",
}  # fmt: skip
"""Those whose values are not text, or whose text has a name, by oid; their numbers are fixed for ever."""
_NAMED_TEXTS: Final = {"json": "Json", "jsonb": "Json", "xml": "Xml", "uuid": "Uuid"}
_ARRAYS: Final = {
    1000: 16, 1001: 17, 1016: 20, 1005: 21, 1007: 23, 1028: 26, 1021: 700, 1022: 701, 791: 790, 1182: 1082,
    1183: 1083, 1115: 1114, 1185: 1184, 1561: 1560, 1231: 1700, 143: 142, 199: 114, 2951: 2950, 3807: 3802,
    **dict.fromkeys((1002, 1003, 1009, 1014, 1015, 651, 1040, 1041, 1187, 1270, 1563), 25),
}  # fmt: skip
"""Arrays that are built in, and the types of their items."""
_OIDS: Final = {name: oid for oid, name in _TYPES.items()}


@dataclass(frozen=True, slots=True)
class ColumnType:
    arrow: pa.DataType
    bulk: Bulk
    logical: str | None = None
    """The name that Debezium or Kafka Connect gives the type, where it has one."""
    placeholder: Array | None = None
    """An array of one: stands for a large value that an update did not touch. None: this type has no large values."""


def schema_metadata(logical: str | None) -> dict[bytes, bytes] | None:
    """Of a field whose type has that name."""
    return None if logical is None else {NAME: logical.encode(), VERSION: b"1"}


def column_type(column: Column, modes: ValueModes, domains: Mapping[int, tuple[str, str]]) -> ColumnType:
    """
    The type of a column. What has no exact type of Arrow is text.

    Args:
        domains: schema and name of types that are not built in, by oid, as Type messages say: of a domain it is the
            name of the type below it.
    """
    oid = column.type_oid
    schema, name = domains.get(oid, ("", ""))
    if schema == "pg_catalog":
        oid = _OIDS.get(name.removeprefix("_"), 25) if not name.startswith("_") else _array_oid(name[1:])
    if oid in _ARRAYS and modes.arrays == "list":
        return _array(_scalar(_TYPES.get(_ARRAYS[oid], ""), column.type_modifier, modes), modes)
    return _scalar(_TYPES.get(oid, ""), column.type_modifier, modes)


def _array_oid(item: str) -> int:
    of = _OIDS.get(item, 25)
    return next(oid for oid, item_oid in _ARRAYS.items() if item_oid == of)


def _scalar(name: str, modifier: int, modes: ValueModes) -> ColumnType:
    match name:
        case "bool":
            return ColumnType(pa.bool_(), _booleans)
        case "int2" | "int4" | "int8" | "oid" | "float4" | "float8":
            return _cast(_NUMBERS[name])
        case "numeric" | "money":
            return _decimal(*((19, 2) if name == "money" else _precision(modifier)), modes, money=name == "money")
        case "date" if modes.times != "isostring":
            return _moment(pa.date32(), days_of, "Date", modes)
        case "time" if modes.times != "isostring":
            fine = modes.times != "connect" and (modes.times == "adaptive_time_microseconds" or not 0 <= modifier <= 3)
            return _moment(pa.time64("us"), time_us_of, "MicroTime", modes) if fine else _coarse_time(modes)
        case "timestamp" if modes.times != "isostring":
            fine = modes.times != "connect" and not 0 <= modifier <= 3
            arrow, logical = (_US, "MicroTimestamp") if fine else (pa.timestamp("ms"), "Timestamp")
            return _moment(arrow, timestamp_us_of, logical, modes)
        case "timestamptz" if modes.times != "isostring":
            return ColumnType(_ZONED, _moments(_ZONED, timestamp_us_of))
        case "bit" if modifier == 1:
            return ColumnType(pa.bool_(), _bits)
        case "bytea":
            return _bytes(modes)
        case _:
            named = _NAMED_TEXTS.get(name)
            of_text = None if named is None else f"io.debezium.data.{named}"
            return ColumnType(pa.string(), _text, of_text, _stand_in(pa.string(), modes))


_NUMBERS: Final[dict[str, pa.DataType]] = {
    "int2": pa.int16(), "int4": pa.int32(), "int8": pa.int64(), "oid": pa.int64(),
    "float4": pa.float32(), "float8": pa.float64(),
}  # fmt: skip
_ZONED: Final = pa.timestamp("us", "UTC")


def _text(raw: Array) -> Array:
    return pc.cast(raw, pa.string())


def _cast(arrow: pa.DataType) -> ColumnType:
    return ColumnType(arrow, lambda raw: pc.cast(_text(raw), arrow))


def _one_of(raw: Array, true: bytes, false: bytes) -> Array:
    if not pc.all(pc.is_in(raw, pa.array([true, false, None], pa.binary()))).as_py() and len(raw):
        raise ValueError(f"is neither {true.decode()} nor {false.decode()}")
    return pc.equal(raw, pa.scalar(true, pa.binary()))


def _booleans(raw: Array) -> Array:
    return _one_of(raw, b"t", b"f")


def _bits(raw: Array) -> Array:
    return _one_of(raw, b"1", b"0")


def _precision(modifier: int) -> tuple[int, int]:
    """Digits, and digits behind the point, as Arrow counts them; 0, 0: without bounds."""
    if modifier < 4:
        return 0, 0
    precision, scale = (modifier - 4) >> 16, ((modifier - 4 & 0x7FF) ^ 1024) - 1024
    return (precision - scale, 0) if scale < 0 else (max(precision, scale), scale)


def _decimal(digits: int, scale: int, modes: ValueModes, *, money: bool) -> ColumnType:
    plain = _plain_money if money else _text
    if modes.decimals == "double":
        double = _stand_in(pa.float64(), modes)
        return ColumnType(pa.float64(), lambda raw: pc.cast(plain(raw), pa.float64()), placeholder=double)
    if modes.decimals == "string" or not 0 < digits <= _DECIMAL_DIGITS_MAX:
        return ColumnType(pa.string(), plain, placeholder=_stand_in(pa.string(), modes))
    arrow = pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale)
    logical = "org.apache.kafka.connect.data.Decimal"
    return ColumnType(arrow, lambda raw: pc.cast(plain(raw), arrow), logical, _stand_in(arrow, modes))


def _stand_in(arrow: pa.DataType, modes: ValueModes) -> Array | None:
    return None if modes.placeholder is None else placeholder_for(arrow, modes.placeholder)


def _plain_money(raw: Array) -> Array:
    text = _text(raw)
    form = r"^-?\$\d{1,3}(,\d{3})*\.\d\d$"
    if not pc.all(pc.match_substring_regex(text, form)).as_py() and text.null_count < len(text):
        raise ValueError("lc_monetary must be C for the session")
    return pc.replace_substring_regex(text, r"[$,]", "")


def _moment(arrow: pa.DataType, exact: Callable[[str], int], logical: str, modes: ValueModes) -> ColumnType:
    connect = modes.times == "connect"
    name = f"org.apache.kafka.connect.data.{logical}" if connect else f"io.debezium.time.{logical}"
    return ColumnType(arrow, _moments(arrow, exact), name)


def _coarse_time(modes: ValueModes) -> ColumnType:
    return _moment(pa.time32("ms"), time_us_of, "Time", modes)


def _moments(arrow: pa.DataType, exact: Callable[[str], int]) -> Bulk:
    """Arrow reads what it can; one value that it cannot is read by ``exact``, which gives days or µs."""

    def read(raw: Array) -> Array:
        text = _text(raw)
        try:
            return _times(text, arrow) if pa.types.is_time(arrow) else pc.cast(text, arrow)
        except pa.ArrowInvalid:
            if len(text) != 1:
                raise
        return _stored(exact(text[0].as_py()), arrow)

    return read


def _times(text: Array, arrow: pa.DataType) -> Array:
    join: Callable[..., Array] = pc.binary_join_element_wise
    numbers: Array = pc.cast(join("1970-01-01", text, " "), pa.timestamp(_unit(arrow))).view(pa.int64())
    return _as_stored(numbers, arrow)


def _unit(arrow: pa.DataType) -> Literal["ms", "us"]:
    return "ms" if arrow in _IN_MS else "us"


def _stored(number: int, arrow: pa.DataType) -> Array:
    if arrow in _IN_MS:
        number, below = divmod(number, 1_000)
        if below:
            raise ValueError("has microseconds, and time.precision.mode has none for this column")
    try:
        return _as_stored(pa.array([number], pa.int64()), arrow)
    except OverflowError as cause:
        raise ValueError("is too far from 1970 for 64 bits") from cause


def _as_stored(numbers: Array, arrow: pa.DataType) -> Array:
    return (pc.cast(numbers, pa.int32()) if arrow.bit_width == 32 else numbers).view(arrow)


def _bytes(modes: ValueModes) -> ColumnType:
    def unpack(value: bytes | None) -> bytes | None:
        if value is None:
            return None
        if not value.startswith(b"\\x"):
            raise ValueError("bytea_output must be hex for the session")
        return bytes.fromhex(value[2:].decode())

    def read(raw: Array) -> Array:
        return pa.array([unpack(value) for value in raw.to_pylist()], pa.binary())

    def read_text(raw: Array) -> Array:
        return pa.array([None if value is None else text(value) for value in read(raw).to_pylist()], pa.string())

    match modes.bytes:
        case "bytes":
            return ColumnType(pa.binary(), read, placeholder=_stand_in(pa.binary(), modes))
        case "hex":
            text: Callable[[bytes], str] = bytes.hex
        case "base64":
            text = _base64
        case "base64-url-safe":
            text = _base64_url_safe
    of = modes.placeholder
    return ColumnType(pa.string(), read_text, placeholder=None if of is None else pa.array([text(of.encode())]))


def _base64(data: bytes) -> str:
    return standard_b64encode(data).decode()


def _base64_url_safe(data: bytes) -> str:
    return urlsafe_b64encode(data).decode()


def _array(item: ColumnType, modes: ValueModes) -> ColumnType:
    def read(raw: Array) -> Array:
        lists = [None if text is None else items_of(text) for text in raw.to_pylist()]
        flat = [value for items in lists if items is not None for value in items]
        ends, offsets = 0, [0]
        for items in lists:
            ends += len(items or ())
            offsets.append(ends)
        nulls = pa.array([items is None for items in lists], pa.bool_())
        values = item.bulk(pa.array(flat, pa.binary()))
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, mask=nulls)

    arrow: Any = pa.list_(pa.field("item", item.arrow, metadata=schema_metadata(item.logical)))
    if item.placeholder is not None and (is_text(item.arrow) or is_bytes(item.arrow)):
        alone: Array = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), item.placeholder)
        return ColumnType(arrow, read, placeholder=alone)
    return ColumnType(arrow, read, placeholder=_stand_in(arrow, modes))
