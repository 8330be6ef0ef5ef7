"""``TimestampConverter``: times as text, as numbers, and as Arrow's dates, times and instants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from headrace_connect.core.batch import OPEN, Batch
from headrace_connect.core.halving import Unfit
from headrace_connect.core.options import NULL_DEFAULT, REQUIRED, BadOption, Option
from headrace_connect.transforms.date_patterns import DatePattern
from headrace_connect.transforms.port import OfSide, Settings

_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_UNITS: Final = {"seconds": "s", "milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
_DAY_S: Final = 86_400
_INT64: Final = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _Instants:
    """Numbers since the epoch, in a unit; anything where there is a null."""

    numbers: Any
    unit: str
    valid: Any


class TimestampConverter(OfSide):
    """
    A time in another form. Numbers are since 1970 in ``unix.precision``, texts are by ``format``, all in UTC.

    Digits finer than milliseconds stay where the form has room for them.
    """

    options: ClassVar[tuple[Option, ...]] = (
        Option("field", "The field; empty: the whole key or value.", default=""),
        Option("target.type", "The form.", default=REQUIRED, choices=("string", "unix", "Date", "Time", "Timestamp")),
        Option("format", "Of texts, as Java's SimpleDateFormat.", default=""),
        Option("unix.precision", "Of numbers.", default="milliseconds", choices=tuple(_UNITS)),
        NULL_DEFAULT,
    )

    def __init__(self, settings: Settings, side: str) -> None:
        super().__init__(settings, side)
        self._field, self._target = settings["field"], settings["target.type"]
        self._pattern = DatePattern("format", settings["format"]) if settings["format"].strip() else None
        self._precision = _UNITS[settings["unix.precision"]]
        if self._target == "string" and self._pattern is None:
            raise BadOption("format", "is missing; target.type=string needs it, for example yyyy-MM-dd")

    def apply(self, batch: Batch) -> Batch:
        """See ``Transform``."""
        array = self.array(batch)
        if not self._field:
            kept = {OPEN: b"1"} if batch.is_open(self.side) else {}
            return batch.replace(self.side, self._converted(array, f"the {self.side}"), kept)
        given = self.fields(batch)
        at = given.index(self._field)
        if at < 0:
            return batch
        column = self._converted(given.columns[at], self._field)
        given.columns[at] = column
        given.fields[at] = pa.field(self._field, column.type, given.fields[at].nullable)
        return batch.replace(self.side, given.array(array))

    def _converted(self, column: Any, name: str) -> Any:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        return self._made(self._instants(column, name), name)

    def _instants(self, column: Any, name: str) -> _Instants:
        kind = column.type
        types = pa.types
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        if not valid.any():
            return _Instants(np.zeros(len(column), np.int64), self._unit_of(kind), valid)
        if types.is_string(kind) or types.is_large_string(kind):
            if self._pattern is None:
                raise Unfit(f"{name} is text; set format, so that it can be read", valid)
            return _Instants(_numbers(self._pattern.parse_ms(column)), "ms", valid)
        if kind == pa.int64():
            return _Instants(_numbers(column), self._precision, valid)
        if types.is_date(kind):
            return _Instants(_numbers(column.cast(pa.date32()).cast(pa.int32())) * (_DAY_S * 1_000), "ms", valid)
        if types.is_timestamp(kind) or types.is_time(kind):
            return _Instants(
                _numbers(column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())), kind.unit, valid
            )
        raise Unfit(f"{name} is {kind}, which is no time; it takes text, int64, and dates, times and timestamps", valid)

    def _unit_of(self, kind: Any) -> str:
        """Of what a column of this type gives, whether it has values or not: types do not depend on the rows."""
        if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
            return str(kind.unit)
        return self._precision if kind == pa.int64() else "ms"

    def _made(self, given: _Instants, name: str) -> Any:
        nulls = ~given.valid
        per_second = _PER_SECOND[given.unit]
        match self._target:
            case "string":
                assert self._pattern is not None
                ms = np.where(given.valid, _scaled(given, "ms", name, floor=True), 0)
                texts = self._pattern.format_ms(ms)
                return pa.compute.if_else(pa.array(given.valid), texts, None)
            case "unix":
                return pa.array(_scaled(given, self._precision, name, floor=False), pa.int64(), mask=nulls)
            case "Date":
                days = np.floor_divide(given.numbers, _DAY_S * per_second)
                beyond = given.valid & ((days < -(2**31)) | (days >= 2**31))
                if beyond.any():
                    raise Unfit(f"{name} is beyond the dates that there are", beyond)
                return pa.array(np.where(given.valid, days, 0).astype(np.int32), pa.int32(), mask=nulls).cast(
                    pa.date32()
                )
            case "Time":
                unit = "ms" if given.unit == "s" else given.unit
                whole = np.mod(given.numbers, _DAY_S * per_second) * (_PER_SECOND[unit] // per_second)
                if unit == "ms":
                    return pa.array(whole.astype(np.int32), pa.int32(), mask=nulls).cast(pa.time32("ms"))
                return pa.array(whole, pa.int64(), mask=nulls).cast(pa.time64(unit))
        unit = "ms" if given.unit == "s" else given.unit
        return pa.array(_scaled(given, unit, name, floor=True), pa.int64(), mask=nulls).cast(pa.timestamp(unit, "UTC"))


def _numbers(column: Any) -> Any:
    return column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)


def _scaled(given: _Instants, unit: str, name: str, *, floor: bool) -> Any:
    """
    In another unit. To a coarser one: down, or towards zero as Java's numbers.

    Raises:
        Unfit: a number is too large for 64 bits.
    """
    have, want = _PER_SECOND[given.unit], _PER_SECOND[unit]
    if want >= have:
        factor = want // have
        beyond = given.valid & ((given.numbers > _INT64.max // factor) | (given.numbers < -(_INT64.max // factor)))
        if beyond.any():
            raise Unfit(f"{name} is too large for {unit} in 64 bits", beyond)
        return np.where(given.valid, given.numbers, 0) * factor
    divisor = have // want
    down = np.floor_divide(given.numbers, divisor)
    return down if floor else down + ((given.numbers < 0) & (given.numbers % divisor != 0))
