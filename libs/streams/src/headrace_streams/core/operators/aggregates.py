"""
Aggregate functions over slots.

Each is a list of fields. A field takes one contribution per row, and combines it into its slot in the order of the
rows, one after the other: so it does not matter where a batch was cut, sums of floats included. ``ufunc.at`` does that
for many slots at once, ``ufunc.accumulate`` for many rows of one slot with every value between.

Nulls are left out, as in SQL: ``count()`` counts rows, ``count(x)`` those with an x, and the others are null where no
row had a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from headrace_streams.core.errors import NotAllowed
from headrace_streams.core.operators import sketches
from headrace_streams.core.rows import Numbers
from headrace_streams.core.state.slots import Field, object_array

_I8: Final = np.dtype(np.int64)
_F8: Final = np.dtype(np.float64)
_OBJECT: Final = np.dtype(object)
_LARGEST: Final = 2.0**62
REMOVABLE: Final = ("count", "sum", "mean")
"""The functions that can take a row out again."""


@dataclass(frozen=True, slots=True)
class Values:
    """One input column of a batch."""

    numbers: Numbers
    """A number for each row, 0 where it is null; Python objects for what is no number."""
    valid: Numbers
    """
    Which rows have a value. Of a table that is aggregated, how often it counts: -1 where it is taken out again, and
    then it is negative in ``numbers`` too.
    """


class Refused(Exception):
    """What a slot would become cannot be kept."""

    def __init__(self, slot: int, why: str) -> None:
        """
        Args:
            why: goes on behind the names of the aggregate and the key.
        """
        super().__init__(slot)
        self.slot = slot
        self.why = why


class Combine(Protocol):
    """How a field takes contributions."""

    def at(self, column: Numbers, slots: Numbers, given: Numbers) -> None:
        """Combine each row's into its slot, in order."""

    def accumulate(self, given: Numbers) -> Numbers:
        """What the field is after each row of one slot; the first contribution is what it was before."""


class _Last:
    """A field that keeps the newest contribution; of floats, NaN is none (numbers that are null are NaN here)."""

    def at(self, column: Numbers, slots: Numbers, given: Numbers) -> None:
        column[slots] = given  # of several rows of a slot, numpy keeps the last

    def accumulate(self, given: Numbers) -> Numbers:
        return given


class Function(Protocol):
    """One aggregate function over one column, or over rows."""

    @property
    def fields(self) -> tuple[Field, ...]:
        """What it keeps for each key."""

    @property
    def type(self) -> pa.DataType:
        """Of the result."""

    def add(self, columns: Sequence[Numbers], slots: Numbers, values: Values) -> None:
        """Take the rows in, in their order; a slot may occur any number of times."""

    def running(self, columns: Sequence[Numbers], slot: int, values: Values) -> list[Numbers]:
        """Take rows of one slot in; each field as it was after each of them."""

    def merge(self, columns: Sequence[Numbers], slot: int, later: int) -> None:
        """Take in what another slot has, as if its rows had come later; that one is not to be used any more."""

    def finish(self, columns: Sequence[Numbers]) -> pa.Array[Any]:
        """The result for each slot of these columns."""


class _Numeric:
    """Functions whose fields are numbers that combine by ufuncs."""

    fields: tuple[Field, ...] = ()
    type: pa.DataType = pa.int64()
    combine: tuple[Combine, ...] = ()

    def contributions(self, columns: Sequence[Numbers], slots: Numbers, values: Values) -> list[Numbers]:
        """What each row adds to each field."""
        raise NotImplementedError

    def add(self, columns: Sequence[Numbers], slots: Numbers, values: Values) -> None:
        for column, combine, given in zip(
            columns, self.combine, self.contributions(columns, slots, values), strict=True
        ):
            combine.at(column, slots, given)

    def running(self, columns: Sequence[Numbers], slot: int, values: Values) -> list[Numbers]:
        slots = np.full(len(values.valid), slot)
        states = []
        for column, combine, given in zip(
            columns, self.combine, self.contributions(columns, slots, values), strict=True
        ):
            state = combine.accumulate(np.concatenate([column[slot : slot + 1], given.astype(column.dtype)]))[1:]
            column[slot] = state[-1]
            states.append(state)
        return states

    def merge(self, columns: Sequence[Numbers], slot: int, later: int) -> None:
        for column, combine in zip(columns, self.combine, strict=True):
            column[slot] = combine.accumulate(column[[slot, later]])[-1]

    def finish(self, columns: Sequence[Numbers]) -> pa.Array[Any]:
        raise NotImplementedError


class Count(_Numeric):
    """Rows, or values that are not null."""

    fields = (Field(_I8, 0),)
    combine = (np.add,)
    type = pa.int64()

    def contributions(self, columns: Sequence[Numbers], slots: Numbers, values: Values) -> list[Numbers]:
        return [values.valid.astype(np.int64)]

    def finish(self, columns: Sequence[Numbers]) -> pa.Array[Any]:
        return pa.array(columns[0], pa.int64())


class Sum(_Numeric):
    """Of integers in 64 bits: more is an error, never another number. Of floats in the order of the rows."""

    combine = (np.add, np.add)

    def __init__(self, of: pa.DataType) -> None:
        floats = pa.types.is_floating(of)
        self._dtype = _F8 if floats else _I8
        self.fields = (Field(self._dtype, 0), Field(_I8, 0))
        self.type = pa.float64() if floats else pa.int64()

    def contributions(self, columns: Sequence[Numbers], slots: Numbers, values: Values) -> list[Numbers]:
        numbers = values.numbers.astype(self._dtype, copy=False)
        if self._dtype == _I8 and len(numbers):
            _check_room(columns[0], slots, numbers)
        return [numbers, values.valid.astype(np.int64)]

    def merge(self, columns: Sequence[Numbers], slot: int, later: int) -> None:
        if self._dtype == _I8:
            _check_room(columns[0], np.array([slot]), columns[0][[later]])
        super().merge(columns, slot, later)

    def finish(self, columns: Sequence[Numbers]) -> pa.Array[Any]:
        return pa.array(columns[0], self.type, mask=columns[1] == 0)


def _check_room(column: Numbers, slots: Numbers, numbers: Numbers) -> None:
    """
    Raises:
        Refused: after one of the rows a sum does not fit into 64 bits.
    """
    worst = float(np.abs(column[slots].astype(np.float64)).max()) + float(np.abs(numbers.astype(np.float64)).sum())
    if worst < _LARGEST:
        return
    sums: dict[int, int] = {}
    for slot, number in zip(slots.tolist(), numbers.tolist(), strict=True):
        sums[slot] = sums.get(slot, int(column[slot])) + number
        if not -(2**63) <= sums[slot] < 2**63:
            raise Refused(slot, "does not fit into 64 bits; cast the column to double")


class Mean(_Numeric):
    """Sum and count of values as floats."""

    fields = (Field(_F8, 0.0), Field(_I8, 0))
    combine = (np.add, np.add)
    type = pa.float64()

    def contributions(self, columns: Sequence[Numbers], slots: Numbers, values: Values) -> list[Numbers]:
        return [values.numbers.astype(np.float64, copy=False), values.valid.astype(np.int64)]

    def finish(self, columns: Sequence[Numbers]) -> pa.Array[Any]:
        total, count = columns
        return pa.array(total / np.maximum(count, 1), pa.float64(), mask=count == 0)


class Variance(_Numeric):
    """
    Of a sample (n - 1); null below two values.

    Sums of the differences from a key's first value, and of their squares: so large values of little difference keep
    their digits.
    """

    fields = (Field(_F8, 0.0), Field(_F8, 0.0), Field(_F8, 0.0), Field(_I8, 0))
    combine = (_Last(), np.add, np.add, np.add)
    type = pa.float64()

    def contributions(self, columns: Sequence[Numbers], slots: Numbers, values: Values) -> list[Numbers]:
        numbers = values.numbers.astype(np.float64, copy=False)
        begun = columns[3][slots] > 0
        new = values.valid & ~begun
        # From the last to the first: what stays is the first value of each new slot.
        columns[0][slots[new][::-1]] = numbers[new][::-1]
        first = columns[0][slots]
        apart = np.where(values.valid, numbers - first, 0.0)
        return [first, apart, apart * apart, values.valid.astype(np.int64)]

    def merge(self, columns: Sequence[Numbers], slot: int, later: int) -> None:
        first, total, squares, count = columns
        if count[slot] == 0:
            first[slot] = first[later]
        moved = first[later] - first[slot]  # (x - a) = (x - b) + (b - a), and its square
        squares[slot] += squares[later] + 2 * moved * total[later] + count[later] * moved * moved
        total[slot] += total[later] + count[later] * moved
        count[slot] += count[later]

    def finish(self, columns: Sequence[Numbers]) -> pa.Array[Any]:
        _, total, squares, count = columns
        inner = np.maximum(squares - total * total / np.maximum(count, 1), 0.0)
        return pa.array(inner / np.maximum(count - 1, 1), pa.float64(), mask=count < 2)


class Extreme(_Numeric):
    """Least or greatest number, time or boolean. NaN is greater than every number, as in Spark."""

    def __init__(self, of: pa.DataType, *, greatest: bool) -> None:
        self.type = of
        self._floats = pa.types.is_floating(of)
        dtype = _F8 if self._floats else _I8
        bound: Any = -np.inf if self._floats else np.iinfo(np.int64).min
        if not greatest:
            bound = np.nan if self._floats else np.iinfo(np.int64).max
        self._none = bound
        self.fields = (Field(dtype, bound), Field(_I8, 0))
        self.combine = (np.maximum if greatest else np.fmin, np.add)

    def contributions(self, columns: Sequence[Numbers], slots: Numbers, values: Values) -> list[Numbers]:
        numbers = values.numbers.astype(self.fields[0].dtype, copy=False)
        return [np.where(values.valid, numbers, self._none), values.valid.astype(np.int64)]

    def finish(self, columns: Sequence[Numbers]) -> pa.Array[Any]:
        found, count = columns
        return from_numbers(found, count == 0, self.type)


class Logical(_Numeric):
    """Whether any, or each, value is true."""

    type = pa.bool_()

    def __init__(self, *, each: bool) -> None:
        self._each = each
        self.fields = (Field(_I8, int(each)), Field(_I8, 0))
        self.combine = (np.minimum if each else np.maximum, np.add)

    def contributions(self, columns: Sequence[Numbers], slots: Numbers, values: Values) -> list[Numbers]:
        true = np.where(values.valid, values.numbers != 0, self._each).astype(np.int64)
        return [true, values.valid.astype(np.int64)]

    def finish(self, columns: Sequence[Numbers]) -> pa.Array[Any]:
        return pa.array(columns[0] != 0, pa.bool_(), mask=columns[1] == 0)


class Objects:
    """Functions whose state is one Python object; each row is one call."""

    def __init__(
        self,
        type_: pa.DataType,
        init: Callable[[], Any],
        step: Callable[[Any, Any], Any],
        merge: Callable[[Any, Any], Any],
        result: Callable[[Any], Any] = lambda state: state,
        copy: Callable[[Any], Any] | None = None,
    ) -> None:
        """
        Args:
            step: state and a value that is not null to the next state; may be the same object, changed.
            merge: state and that of later rows to the state of all; may be the first, changed.
            result: of a state, as ``type_`` has it.
            copy: of a state, where ``step`` changes it.
        """
        self.type = type_
        self.fields = (Field(_OBJECT, init, copy),)
        self._step = step
        self._merge = merge
        self._result = result
        self._copy = copy or _same

    def add(self, columns: Sequence[Numbers], slots: Numbers, values: Values) -> None:
        column, step = columns[0], self._step
        for slot, value, valid in zip(slots.tolist(), values.numbers, values.valid.tolist(), strict=True):
            if valid:
                column[slot] = step(column[slot], value)

    def running(self, columns: Sequence[Numbers], slot: int, values: Values) -> list[Numbers]:
        states = np.empty(len(values.valid), object)
        state = columns[0][slot]
        for place, (value, valid) in enumerate(zip(values.numbers, values.valid.tolist(), strict=True)):
            state = self._step(state, value) if valid else state
            states[place] = self._copy(state)
        columns[0][slot] = state
        return [states]

    def merge(self, columns: Sequence[Numbers], slot: int, later: int) -> None:
        columns[0][slot] = self._merge(columns[0][slot], columns[0][later])

    def finish(self, columns: Sequence[Numbers]) -> pa.Array[Any]:
        return pa.array([self._result(state) for state in columns[0]], self.type)


def from_numbers(numbers: Numbers, null: Numbers, type_: pa.DataType) -> pa.Array[Any]:
    """Numbers as a column of the type that they came from."""
    if pa.types.is_floating(type_):
        return pa.array(np.where(null, 0.0, numbers), pa.float64(), mask=null).cast(type_)
    if pa.types.is_boolean(type_):
        return pa.array(numbers != 0, pa.bool_(), mask=null)
    plain = pa.array(np.where(null, 0, numbers), pa.int64(), mask=null)
    if pa.types.is_date32(type_):
        return plain.cast(pa.int32()).cast(type_)
    return plain.cast(type_)


def is_number(type_: pa.DataType) -> bool:
    """Whether slots keep values of this type as numbers."""
    types = pa.types
    plain = types.is_integer(type_) or types.is_floating(type_) or types.is_boolean(type_)
    return plain or types.is_timestamp(type_) or types.is_date32(type_)


def values_of(column: Any, count: int, *, objects: bool) -> Values:
    """
    An input column of ``count`` rows; None: each row counts as a value.

    Args:
        objects: Python's objects, numbers too.
    """
    if column is None:
        return Values(np.zeros(count, np.int64), np.ones(count, bool))
    valid = column.is_valid().to_numpy() if column.null_count else np.ones(count, bool)
    if objects or not is_number(column.type):
        return Values(object_array(column.to_pylist()), valid)
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    if not pa.types.is_floating(column.type):
        column = column.cast(pa.int64())
    if column.null_count:
        column = column.fill_null(0)
    return Values(column.to_numpy(), valid)


def _same(state: Any) -> Any:
    return state


def _first(state: Any, value: Any) -> Any:
    return [value] if state is None else state


def _last(state: Any, value: Any) -> Any:
    return [value]


def _only(state: Any) -> Any:
    return None if state is None else state[0]


def _one_value(step: Callable[[Any, Any], Any]) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    """The step, and how a state that is one value takes in another."""
    return step, lambda state, later: state if later is None else step(state, later[0])


def _least(state: Any, value: Any) -> Any:
    return [value] if state is None or value < state[0] else state


def _greatest(state: Any, value: Any) -> Any:
    return [value] if state is None or value > state[0] else state


def _none() -> Any:
    return None


def function(kind: str, of: pa.DataType | None, what: str, argument: float | None = None) -> Function:
    """
    The aggregate function of that name over a column of type ``of`` (None: over rows).

    Raises:
        NotAllowed: there is no such function of that type.
    """
    match kind:
        case "count":
            return Count()
        case _ if of is None:
            raise NotAllowed(f"{what}: {kind}() needs a column")
        case "sum" | "mean" | "var" | "quantile" if not _is_summable(of):
            raise NotAllowed(f"{what}: {kind}() of {of} is not possible; cast it to bigint or double")
        case "sum":
            return Sum(of)
        case "mean":
            return Mean()
        case "var":
            return Variance()
        case "min" | "max" if is_number(of):
            return Extreme(of, greatest=kind == "max")
        case "any" | "all" if not pa.types.is_boolean(of):
            raise NotAllowed(f"{what}: {kind}() takes a condition, and this is {of}; compare it with something")
        case "any" | "all":
            return Logical(each=kind == "all")
        case _ if not _is_kept(of):
            raise NotAllowed(f"{what}: {kind}() of {of} is not possible; cast it to string, bigint or double")
        case "min" | "max":
            return Objects(of, _none, *_one_value(_least if kind == "min" else _greatest), _only)
        case "first" | "last":
            return Objects(of, _none, *_one_value(_first if kind == "first" else _last), _only)
        case "distinct":
            return Objects(pa.int64(), dict, _add_distinct, dict.__or__, len, dict)
        case "distinct_approx":
            of_sketch = (sketches.take_value, sketches.add_distinct, sketches.distinct_of, sketches.copy_distinct)
            return Objects(pa.int64(), dict, *of_sketch)
        case "quantile":
            assert argument is not None
            result = partial(sketches.quantile_of, share=argument)
            take, add, copy = sketches.take_number, sketches.add_quantiles, sketches.copy_quantiles
            return Objects(pa.float64(), sketches.no_quantiles, take, add, result, copy)
        case "collect":
            assert argument is not None
            limit = int(argument)
            return Objects(pa.list_(of), list, _collecting(limit), lambda s, later: [*s, *later][:limit], list, list)
    raise NotAllowed(f"{what}: there is no aggregate function {kind}()")


def _add_distinct(state: dict[Any, None], value: Any) -> dict[Any, None]:
    nan = isinstance(value, float) and math.isnan(value)
    state[None if nan else value] = None  # NaN differs from itself, and is one value here
    return state


def _collecting(limit: int) -> Callable[[list[Any], Any], list[Any]]:
    def step(state: list[Any], value: Any) -> list[Any]:
        if len(state) < limit:
            state.append(value)
        return state

    return step


def _is_summable(of: pa.DataType) -> bool:
    return bool(pa.types.is_integer(of) or pa.types.is_floating(of))


def _is_kept(of: pa.DataType) -> bool:
    """Whether MessagePack keeps values of that type as they are."""
    types = pa.types
    number = types.is_integer(of) or types.is_floating(of) or types.is_boolean(of)
    return number or types.is_string(of) or types.is_large_string(of) or types.is_binary(of)
