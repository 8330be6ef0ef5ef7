"""Tables that a worker has whole: read from the beginning of their topics, and on and on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.errors import PositionOutOfRange
from headrace.records import TopicPartition
from headrace_streams.core.errors import TableGone
from headrace_streams.core.operators.global_join import GlobalRows
from headrace_streams.patience import Patience
from headrace_streams.plan.nodes import Plan
from headrace_streams.ports import Reader, TopicFacts
from headrace_streams.runtime.owned import Outside

_WAIT_MS: Final = 100
_ROWS: Final = 100_000


class Globals:
    """Those of one app."""

    def __init__(self, plan: Plan, outside: Outside, patience: Patience) -> None:
        self.tables: Mapping[str, GlobalRows] = {one.topic: one.rows() for one in plan.globals}
        """By topic."""
        self._outside = outside
        self._patience = patience
        self._positions: dict[TopicPartition, int] = {}

    async def read(self, facts: Mapping[str, TopicFacts]) -> None:
        """
        Read all that is there now.

        Raises:
            RowFailed: a record cannot be read.
            TableGone: what was read is no part of the topic any more.
        """
        if not self.tables:
            return
        reader = self._reader
        partitions = [
            TopicPartition(topic, n) for topic in self.tables if topic in facts for n in range(facts[topic].partitions)
        ]
        new = [at for at in partitions if at not in self._positions]
        if new:
            self._positions |= dict.fromkeys(new, -1)
            await reader.assign(self._positions)
        ends = await self._patience.ask(lambda: reader.ends(partitions))
        while any(max(0, self._positions[at]) < end for at, end in ends.items()):
            await self.poll(_WAIT_MS)

    async def poll(self, timeout_ms: float = 0) -> None:
        """
        Read on.

        Raises:
            RowFailed: a record cannot be read.
            TableGone: what was read is no part of the topic any more.
        """
        if not self._positions:
            return
        try:
            batches = await self._patience.ask(lambda: self._reader.poll(timeout_ms, _ROWS))
        except PositionOutOfRange as error:
            what = f"{error.partition} was made anew, or has lost records before they were read"
            raise TableGone(f"{what}; a start of the worker reads this global table from the beginning") from error
        for batch in batches:
            if batch.table.num_rows:
                await self._outside.compute(self.tables[batch.topic].apply, batch.topic, batch.partition, batch.table)
            self._positions[TopicPartition(batch.topic, batch.partition)] = batch.next_offset

    async def close(self) -> None:
        """Let go."""
        if self.tables:
            await self._reader.close()

    @property
    def _reader(self) -> Reader:
        reader = self._outside.globals
        assert reader is not None, "the app has such tables"
        return reader
