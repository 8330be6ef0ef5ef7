"""What every operator is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

import pyarrow as pa

from headrace_streams.core.changes import halves
from headrace_streams.core.errors import RegistryRefused, RegistryUnavailable, RowFailed, StateFailed
from headrace_streams.core.rows import ordered
from headrace_streams.core.state.store import Store
from headrace_streams.core.time import Clock

T = TypeVar("T")

OUT: Final = "out"
LATE: Final = "late"

Failed = Callable[[pa.Table, BaseException], None]
"""
Told the rows that an operator could not process, one each, and why; decides whether the task goes on. What would end
the process is raised again, and says where it comes from.
"""


@dataclass(frozen=True, slots=True)
class Emitted:
    """Rows that leave an operator."""

    rows: pa.Table
    edge: str = OUT
    """Which way they go: ``OUT``, ``LATE``, or the name of a branch."""


class Operator:
    """
    One node of a task. It belongs to that task alone.

    An operator without state may raise on a batch: nothing of it has left then, and the task tries its halves. One with
    state does not raise for a row: what can fail is computed by the operators before it.
    """

    store: Store | None = None
    """Its state, if it has any."""
    clock: Clock
    """Of its task."""
    late: int = 0
    """Rows that came after their window had closed, since the last commit."""
    dropped: int = 0
    """Rows without a key where one is needed, and records without a value that a stream reads, since then."""

    def begin(self, watermark: int) -> None:
        """State is what was committed at this watermark (ms); called before the first row, and after an abort."""

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        """
        Process rows, in their order.

        Args:
            rows: of the schema that the plan computed.
            port: which of its inputs they come by.
            failed: for single rows, where the operator itself tells good from bad.
        """
        raise NotImplementedError

    def together(self, waiting: list[tuple[pa.Table, int]]) -> list[tuple[pa.Table, int]]:
        """
        All rows that one feed of the task brought, with the inputs that they come by, in the order in which they are to
        be fed. What came by one input is one batch.
        """
        if len({port for _, port in waiting}) > 1:
            return waiting
        return [(ordered([rows for rows, _ in waiting]), waiting[0][1])]

    def advance(self, watermark: int, failed: Failed) -> Iterable[Emitted]:
        """Event time has reached ``watermark`` (ms), whether rows came or not."""
        return ()

    @property
    def due(self) -> int | None:
        """When it wants to be told the time by the wall clock, ms; None: not at all."""
        return None

    def tick(self, now: int, failed: Failed) -> Iterable[Emitted]:
        """It is ``now`` (ms) by the wall clock."""
        return ()

    def rest(self) -> None:
        """All inputs of the task are idle, until rows come again."""

    def flush(self) -> Iterable[Emitted]:
        """A commit begins: what is emitted once per commit leaves now."""
        return ()

    @property
    def held_bytes(self) -> int:
        """About how much memory is taken by rows that wait for a flush and are no state."""
        return 0

    def contents(self) -> pa.Table | None:
        """What its state holds, as rows; None where it has none that can be shown."""
        return None


def halved(rows: pa.Table, process: Callable[[pa.Table], T], failed: Failed) -> Iterable[T]:
    """What ``process`` makes of the rows, without those that it cannot process: these are told alone."""
    try:
        made = process(rows)
    except (RowFailed, StateFailed, RegistryUnavailable, RegistryRefused, NotImplementedError):
        raise
    except Exception as error:  # noqa: BLE001  # the user's function or expression
        if rows.num_rows == 1:
            failed(rows, error)
            return
        for half in halves(rows):
            yield from halved(half, process, failed)
        return
    yield made
