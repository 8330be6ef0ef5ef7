"""Finds the rows that cannot be handled, so that they fail alone and the others do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

MESSAGE_CHARACTERS_MAX: Final = 300
Rows = Any
"""What has a length, ``slice(start, count)`` and ``filter(mask)``: an Arrow array or a ``Batch``."""
Indices = np.ndarray[Any, np.dtype[np.int64]]
T = TypeVar("T")


class Unfit(Exception):
    """
    Rows cannot be handled as they are.

    Args:
        rows: true for each bad row of those that were given; None: at least one is, and it is not known which.
    """

    def __init__(self, message: str, rows: Any = None) -> None:
        super().__init__(message[:MESSAGE_CHARACTERS_MAX])
        self.rows = None if rows is None else np.asarray(rows, bool)


CAUGHT: Final = (Unfit, pa.ArrowException, ArithmeticError, ValueError, TypeError)
"""What bad rows raise: Arrow's and Python's errors of values, besides our own."""


def apart(rows: Rows, work: Callable[[Rows], T]) -> tuple[list[tuple[Indices, T]], dict[int, str]]:
    """
    Do ``work`` with all rows; where that fails, with halves of them, until the bad rows are alone.

    ``work`` sees the rows in their order, so it may keep what it learns of good ones. It fails for a row whatever rows
    are around it. Costs one call where nothing fails, and about 2 log2(n) more for each bad row of n that ``Unfit``
    does not name.

    Returns:
        The results in order, each with the indices of its rows; none of no rows where ``work`` fails for them too.
        And what is wrong with each row that failed.
    """
    results: list[tuple[Indices, T]] = []
    failed: dict[int, str] = {}
    left: list[tuple[Indices, Rows]] = [(np.arange(len(rows)), rows)]
    while left:
        indices, part = left.pop()
        try:
            results.append((indices, work(part)))
            continue
        except CAUGHT as error:
            bad = error.rows if isinstance(error, Unfit) else None
            message = str(error)[:MESSAGE_CHARACTERS_MAX] or type(error).__name__
        if bad is not None:
            assert bad.any(), "it names the bad rows"
            failed |= dict.fromkeys(indices[bad].tolist(), message)
            if not bad.all():
                left.append((indices[~bad], part.filter(pa.array(~bad))))
        elif len(part) == 1:
            failed[int(indices[0])] = message
        elif len(part):
            half = len(part) // 2
            left.append((indices[half:], part.slice(half)))
            left.append((indices[:half], part.slice(0, half)))
    return results, failed
