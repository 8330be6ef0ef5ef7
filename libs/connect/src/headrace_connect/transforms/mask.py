"""``MaskField``: values that nobody is to see."""

from __future__ import annotations

from typing import Any, ClassVar

import pyarrow as pa
from pyarrow import compute

from headrace_connect.core.batch import Batch
from headrace_connect.core.halving import Unfit
from headrace_connect.core.kinds import struct_of
from headrace_connect.core.options import NULL_DEFAULT, REQUIRED, BadOption, Option, OptionType
from headrace_connect.transforms.port import OfSide, Settings

pc: Any = compute  # its stubs are narrower than it is


class MaskField(OfSide):
    """
    Zero, false, an empty text or list in the place of a value, or ``replacement``, as the field's type has it.

    Null stays null.
    """

    options: ClassVar[tuple[Option, ...]] = (
        Option("fields", "The fields.", OptionType.LIST, REQUIRED),
        Option("replacement", "What they are instead: of numbers and texts only."),
        NULL_DEFAULT,
    )

    def __init__(self, settings: Settings, side: str) -> None:
        super().__init__(settings, side)
        self._names = set(settings["fields"])
        self._replacement = settings["replacement"]
        if self._replacement == "":
            raise BadOption("replacement", "is empty; leave it out, and texts are masked as empty ones")

    def apply(self, batch: Batch) -> Batch:
        """See ``Transform``."""
        given = self.fields(batch)
        for at, field in enumerate(given.fields):
            if field.name in self._names:
                made = self._masked(given.columns[at], field.name, is_open=batch.is_open(self.side))
                given.columns[at] = made
                given.fields[at] = field.with_type(made.type)
        return batch.replace(self.side, given.array(self.array(batch)))

    def _masked(self, column: Any, name: str, *, is_open: bool) -> Any:
        kind = column.type
        types = pa.types
        if types.is_dictionary(kind):
            return self._masked(column.dictionary_decode(), name, is_open=is_open)
        valid = column.is_valid()
        rows = valid.to_numpy(zero_copy_only=False)
        if not rows.any():
            return column
        if self._replacement is not None:
            number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
            if not number and not types.is_string(kind) and not types.is_large_string(kind):
                raise Unfit(f"{name} is {kind}, which has no replacement; only numbers and texts have", rows)
            try:
                mask = pa.scalar(self._replacement, pa.string()).cast(kind)
            except (pa.ArrowException, ValueError):
                raise Unfit(f"{name} is {kind}, which {self._replacement[:60]!r} is not", rows) from None
        elif types.is_struct(kind):
            if not is_open:
                raise Unfit(f"{name} is a struct, which cannot be masked; flatten it, or drop it", rows)
            empty = [pa.nulls(len(column), field.type) for field in kind]
            return struct_of([field.with_nullable(True) for field in kind], empty, ~rows)
        elif types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
            mask = pa.scalar([], kind)
        elif types.is_string(kind) or types.is_large_string(kind):
            mask = pa.scalar("", kind)
        elif types.is_fixed_size_binary(kind):
            mask = pa.scalar(bytes(kind.byte_width), kind)
        elif types.is_binary(kind) or types.is_large_binary(kind):
            mask = pa.scalar(b"", kind)
        elif types.is_temporal(kind):
            mask = pa.scalar(0, pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)
        else:
            mask = pa.scalar(0, pa.int8()).cast(kind)
        return pc.if_else(valid, pa.repeat(mask, len(column)), pa.nulls(len(column), kind))
