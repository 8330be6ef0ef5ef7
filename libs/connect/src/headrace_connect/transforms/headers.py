"""Headers: HeaderFrom, InsertHeader, DropHeaders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import compute

from headrace_common.core.batch.arrow_schema import headers_type, pair_fields
from headrace_connect.core.batch import HEADERS, Batch
from headrace_connect.core.halving import Unfit
from headrace_connect.core.options import NULL_DEFAULT, REQUIRED, BadOption, Option, OptionType
from headrace_connect.core.texts import text_of
from headrace_connect.transforms.port import OfRecord, OfSide, Settings

pc: Any = compute  # its stubs are narrower than it is
arrow: Any = pa
_WHOLE: Final = 2**63


WriteHeader: TypeAlias = Callable[[Any], Any]
"""A column as a binary array of header values. Raises ``Unfit``: a value cannot be one."""


def simple(column: Any) -> Any:
    """Bytes as they are, anything else as ``Cast`` to ``string`` makes it."""
    kind = column.type
    types = pa.types
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return column.cast(pa.binary())
    return text_of(column).cast(pa.binary())


class HeaderFrom(OfSide):
    """Headers of fields."""

    write_header: WriteHeader = staticmethod(simple)

    options: ClassVar[tuple[Option, ...]] = (
        Option("fields", "The fields.", OptionType.LIST, REQUIRED),
        Option("headers", "The names of the headers, as many as there are fields.", OptionType.LIST, REQUIRED),
        Option("operation", "Whether the fields stay: copy, or go: move.", default=REQUIRED, choices=("move", "copy")),
        NULL_DEFAULT,
    )

    def __init__(self, settings: Settings, side: str) -> None:
        super().__init__(settings, side)
        self._fields, self._headers = settings["fields"], settings["headers"]
        self._moves = settings["operation"] == "move"
        if len(self._fields) != len(self._headers):
            raise BadOption(
                "headers", f"has {len(self._headers)} names, and fields has {len(self._fields)}; one for each field"
            )

    def apply(self, batch: Batch) -> Batch:
        """See ``Transform``."""
        given = self.fields(batch)
        if given.nulls.any():
            raise Unfit(f"the {self.side} is null, so it has no fields for headers", given.nulls)
        pairs: list[tuple[str, Any]] = []
        for name, header in zip(self._fields, self._headers, strict=True):
            at = given.index(name)
            if at < 0 and not batch.is_open(self.side) and len(batch):
                raise Unfit(f"the {self.side} has no field {name!r}", ~given.nulls)
            pairs.append(
                (header, pa.nulls(len(batch), pa.binary()) if at < 0 else self.write_header(given.columns[at]))
            )
        changed = batch.replace(HEADERS, appended(batch.column(HEADERS), pairs))
        if not self._moves:
            return changed
        stays = [at for at, field in enumerate(given.fields) if field.name not in self._fields]
        given.fields = [given.fields[at] for at in stays]
        given.columns = [given.columns[at] for at in stays]
        return changed.replace(self.side, given.array(self.array(batch)))


class InsertHeader(OfRecord):
    """One header more, even where there is one of that name. A literal that is a number or a boolean is one."""

    write_header: WriteHeader = staticmethod(simple)

    options: ClassVar[tuple[Option, ...]] = (
        Option("header", "Its name.", default=REQUIRED),
        Option("value.literal", "Its value, as text in UTF-8.", default=REQUIRED),
    )

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._header = settings["header"]
        self._value = settings["value.literal"]
        if not self._header:
            raise BadOption("header", "is empty")

    def apply(self, batch: Batch) -> Batch:
        """See ``Transform``."""
        value: Any = self._value if self.write_header is simple else _parsed(self._value)
        values = self.write_header(pa.array([value] * len(batch), None if len(batch) else pa.string()))
        return batch.replace(HEADERS, appended(batch.column(HEADERS), [(self._header, values)]))


class DropHeaders(OfRecord):
    """All headers of these names go."""

    options: ClassVar[tuple[Option, ...]] = (Option("headers", "Their names.", OptionType.LIST, REQUIRED),)

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._names = pa.array(settings["headers"], pa.string())

    def apply(self, batch: Batch) -> Batch:
        """See ``Transform``."""
        headers = batch.column(HEADERS)
        pairs = headers.flatten()
        stays = pc.invert(pc.is_in(pc.struct_field(pairs, 0), self._names))
        rows = _rows(headers)[stays.to_numpy(zero_copy_only=False)]
        return batch.replace(HEADERS, _lists(rows, pairs.filter(stays), len(headers)))


def appended(headers: Any, pairs: Sequence[tuple[str, Any]]) -> Any:
    """Headers with others behind them: each a name, and a value for each row."""
    count = len(headers)
    kind = pa.struct(pair_fields())
    old = headers.flatten().cast(kind)
    new = [
        arrow.StructArray.from_arrays([pa.array([name] * count, pa.string()), values], fields=list(kind))
        for name, values in pairs
    ]
    rows = np.concatenate([_rows(headers), *(np.arange(count) for _ in new)])
    order = np.argsort(rows, kind="stable")
    return _lists(rows[order], pa.concat_arrays([old, *new]).take(pa.array(order)), count)


def has_header(headers: Any, name: str) -> Any:
    """True for each row with a header of this name."""
    pairs = headers.flatten()
    found = np.zeros(len(headers), bool)
    if len(pairs):
        found[_rows(headers)[pc.equal(pc.struct_field(pairs, 0), name).to_numpy(zero_copy_only=False)]] = True
    return found


def _rows(headers: Any) -> Any:
    """The row of each pair."""
    lengths = pc.list_value_length(headers).fill_null(0).to_numpy(zero_copy_only=False)
    return np.repeat(np.arange(len(headers)), lengths)


def _lists(rows: Any, pairs: Any, count: int) -> Any:
    ends = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=count))]).astype(np.int32)
    return arrow.ListArray.from_arrays(pa.array(ends), pairs, type=headers_type())


def _parsed(literal: str) -> Any:
    """As Kafka reads one: a boolean, a number, else text."""
    if literal in ("true", "false"):
        return literal == "true"
    for read in (int, float):
        try:
            value = read(literal)
        except ValueError:
            continue
        return value if str(value) == literal and abs(value) < _WHOLE else literal
    return literal
