"""``Cast``: fields, or the whole key or value, as another type."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
from pyarrow import compute

from headrace_connect.core.batch import OPEN, Batch
from headrace_connect.core.halving import Unfit
from headrace_connect.core.options import NULL_DEFAULT, REQUIRED, BadOption, Option, OptionType, near
from headrace_connect.core.texts import text_of
from headrace_connect.transforms.port import OfSide, Settings

pc: Any = compute  # its stubs are narrower than it is
_TYPES: Final[dict[str, pa.DataType]] = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
}


class Cast(OfSide):
    """
    Numbers, booleans and text into each other, times into numbers and text, bytes into base64.

    A fraction is cut off where a whole number is asked for, and a number is rounded to a float; what is beyond the
    type's bounds fails.
    """

    options: ClassVar[tuple[Option, ...]] = (
        Option(
            "spec",
            "Pairs like field:type, or one type for the whole key or value: int8, int16, int32, int64, float32, "
            "float64, boolean, string.",
            OptionType.LIST,
            REQUIRED,
        ),
        NULL_DEFAULT,
    )

    def __init__(self, settings: Settings, side: str) -> None:
        super().__init__(settings, side)
        self._fields: dict[str, pa.DataType] = {}
        self._whole: pa.DataType | None = None
        for pair in settings["spec"]:
            name, colon, kind = pair.rpartition(":")
            if ":" in name:
                raise BadOption("spec", f"{pair[:80]!r} is no pair like field:type")
            made = _TYPES.get(kind.strip().lower())
            if made is None:
                raise BadOption("spec", f"there is no type {kind.strip()[:40]!r}{near(kind.strip().lower(), _TYPES)}")
            if colon:
                self._fields[name.strip()] = made
            else:
                self._whole = made
        if self._whole is not None and len(settings["spec"]) > 1:
            raise BadOption("spec", "a type for the whole key or value stands alone")

    def apply(self, batch: Batch) -> Batch:
        """See ``Transform``."""
        array = self.array(batch)
        if self._whole is not None:
            kept = {OPEN: b"1"} if batch.is_open(self.side) else {}
            return batch.replace(self.side, cast(array, self._whole, f"the {self.side}"), kept)
        given = self.fields(batch)
        for name, kind in self._fields.items():
            at = given.index(name)
            if at >= 0:
                given.columns[at] = cast(given.columns[at], kind, name)
                given.fields[at] = pa.field(name, kind, given.fields[at].nullable)
        return batch.replace(self.side, given.array(array))


def cast(array: Any, kind: Any, name: str) -> Any:
    """
    A column as another type; null stays null.

    Raises:
        Unfit: a value has no such form.
    """
    types = pa.types
    given = array.type
    if types.is_null(given):
        return pa.nulls(len(array), kind)
    if types.is_dictionary(given):
        return cast(array.dictionary_decode(), kind, name)
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    if types.is_nested(given) or (_is_bytes(given) and kind != pa.string()) or types.is_duration(given):
        if not valid.any():
            return pa.nulls(len(array), kind)
        raise Unfit(f"{name} is {given}, which cannot be cast to {kind}", valid)
    if kind == pa.string():
        return text_of(array)
    if types.is_temporal(given):
        array = _as_numbers(array)
    if types.is_string(array.type) or types.is_large_string(array.type):
        return _of_text(array, kind, name, valid)
    if kind == pa.bool_():
        return _as_boolean(array)
    if types.is_boolean(array.type):
        return array.cast(pa.int8()).cast(kind)
    if types.is_integer(kind):
        return _whole(array, kind, name, valid)
    return _float(array, kind, name)


def _is_bytes(kind: Any) -> bool:
    types = pa.types
    return types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)


def _as_numbers(array: Any) -> Any:
    """Days, or milliseconds; times of finer units in their unit."""
    kind = array.type
    if pa.types.is_date(kind):
        return array.cast(pa.date32()).cast(pa.int32())
    if pa.types.is_timestamp(kind) and kind.unit == "s":
        array = array.cast(pa.timestamp("ms", kind.tz))
    if kind == pa.time32("s"):
        array = array.cast(pa.time32("ms"))
    return array.cast(pa.int32() if array.type.bit_width == 32 else pa.int64())


def _of_text(array: Any, kind: Any, name: str, valid: Any) -> Any:
    if kind == pa.bool_():
        lower = pc.utf8_lower(array)
        known = pc.is_in(lower, pa.array(["true", "false"], array.type)).to_numpy(zero_copy_only=False)
        _check(known | ~valid, f"{name} is not true or false", array)
        return pc.equal(lower, "true")
    if pa.types.is_integer(kind):
        good = pc.match_substring_regex(array, r"^[+-]?[0-9]+$").fill_null(True).to_numpy(zero_copy_only=False)
        _check(good, f"{name} is not a whole number", array)
        try:
            return pc.utf8_ltrim(array, "+").cast(kind)
        except pa.ArrowInvalid:
            raise Unfit(f"{name} is beyond the bounds of {kind}") from None
    try:
        return array.cast(pa.float64()) if kind == pa.float64() else _float(array.cast(pa.float64()), kind, name)
    except pa.ArrowInvalid:
        raise Unfit(f"{name} is not a number") from None


def _check(good: Any, message: str, array: Any) -> None:
    if not good.all():
        first = array[int(np.argmin(good))].as_py()
        raise Unfit(f"{message}: {first!r:.60}", ~good)


def _as_boolean(array: Any) -> Any:
    """Not zero, a fraction cut off."""
    if pa.types.is_boolean(array.type):
        return array
    if pa.types.is_floating(array.type):
        whole = pc.trunc(array)
        return pc.and_(pc.not_equal(whole, 0), pc.invert(pc.is_nan(whole)))
    if pa.types.is_decimal(array.type):
        return pc.not_equal(pc.trunc(array), pa.scalar(0, pa.int8()).cast(array.type))
    return pc.not_equal(array, pa.scalar(0, array.type))


def _whole(array: Any, kind: Any, name: str, valid: Any) -> Any:
    if pa.types.is_floating(array.type):
        numbers = np.trunc(array.fill_null(0.0).cast(pa.float64()).to_numpy(zero_copy_only=False))
        low, end = float(-(2 ** (kind.bit_width - 1))), float(2 ** (kind.bit_width - 1))
        _check((numbers >= low) & (numbers < end), f"{name} is beyond the bounds of {kind}", array)
        return pa.array(numbers.astype(np.int64), pa.int64(), mask=~valid).cast(kind)
    if pa.types.is_decimal(array.type):
        array = pc.trunc(array)
    try:
        return array.cast(kind)
    except pa.ArrowInvalid:
        raise Unfit(f"{name} is beyond the bounds of {kind}") from None


def _float(array: Any, kind: Any, name: str) -> Any:
    if pa.types.is_integer(array.type):
        made = array.cast(pa.float64(), safe=False)
        return made if kind == pa.float64() else made.cast(kind, safe=False)
    made = array.cast(kind, safe=False)
    if pa.types.is_floating(array.type):
        finite = pc.is_finite(array).fill_null(False).to_numpy(zero_copy_only=False)
        beyond = finite & ~pc.is_finite(made).fill_null(True).to_numpy(zero_copy_only=False)
        _check(~beyond, f"{name} is beyond the bounds of {kind}", array)
    return made
