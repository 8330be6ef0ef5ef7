"""An aggregate that functions of the user's compute, value by value."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace_streams.core.errors import cause_of
from headrace_streams.core.operators.aggregates import Refused, Values
from headrace_streams.core.rows import Numbers
from headrace_streams.core.state.objects import as_kept
from headrace_streams.core.state.slots import Field


@dataclass(frozen=True, slots=True)
class Folding:
    """What the user gave to ``fold``."""

    init: Any
    """The state of a group without rows."""
    add: Callable[[Any, Any], Any]
    type: pa.DataType
    """Of the result."""
    merge: Callable[[Any, Any], Any] | None = None
    remove: Callable[[Any, Any], Any] | None = None
    result: Callable[[Any], Any] | None = None


class Fold:
    """
    Satisfies ``Function``. What a function returns is kept as it would be after a restart: lists for tuples, and no
    part of it is shared with anything.
    """

    def __init__(self, folding: Folding, what: str) -> None:
        self.type = folding.type
        self.fields = (Field(np.dtype(object), lambda: copy.deepcopy(folding.init), copy.deepcopy),)
        self._folding = folding
        self._what = what

    def add(self, columns: Sequence[Numbers], slots: Numbers, values: Values) -> None:
        column = columns[0]
        for slot, value, valid in zip(slots.tolist(), values.numbers, values.valid.tolist(), strict=True):
            if valid:
                column[slot] = self._next(slot, column[slot], value, valid)

    def running(self, columns: Sequence[Numbers], slot: int, values: Values) -> list[Numbers]:
        states = np.empty(len(values.valid), object)
        state = columns[0][slot]
        for place, (value, valid) in enumerate(zip(values.numbers, values.valid.tolist(), strict=True)):
            state = self._next(slot, state, value, valid) if valid else state
            states[place] = copy.deepcopy(state)
        columns[0][slot] = state
        return [states]

    def _next(self, slot: int, state: Any, value: Any, valid: int) -> Any:
        function = self._folding.add if valid > 0 else self._folding.remove
        assert function is not None, "tables need remove="
        return self._called(slot, function, state, value)

    def merge(self, columns: Sequence[Numbers], slot: int, later: int) -> None:
        column = columns[0]
        assert self._folding.merge is not None, "sessions need merge="
        column[slot] = self._called(slot, self._folding.merge, column[slot], column[later])

    def _called(self, slot: int, function: Callable[[Any, Any], Any], state: Any, given: Any) -> Any:
        try:
            return as_kept("the state", function(state, given))
        except Exception as error:
            raise Refused(slot, f"cannot be computed: {cause_of(error):.300}") from error

    def finish(self, columns: Sequence[Numbers]) -> pa.Array[Any]:
        states = list(columns[0])
        try:
            return self._results(states)
        except Exception:
            for slot, state in enumerate(states):
                try:
                    self._results([state])
                except Exception as error:
                    why = cause_of(error)[:300]
                    raise Refused(slot, f"cannot be told: the result of fold() is no {self.type}: {why}") from error
            raise

    def _results(self, states: list[Any]) -> pa.Array[Any]:
        result = self._folding.result
        return pa.array(states if result is None else [result(copy.deepcopy(s)) for s in states], self.type)
