"""
Leaves something out of Connect in the processes that have ``HEADRACE_MUTANT``: storms or tests must see it.

It is on the path of such processes alone; tests of one process put a mutant in by themselves.
"""

import os
from collections.abc import Callable
from typing import Any, Final

Put = Callable[[Any, str, Any], None]
"""``setattr``, or a test's own."""


def unchecked(put: Put) -> None:
    """Of the sink ``sql-sink``: a position is moved whoever has the partition, and wherever it is."""
    from headrace_connect.connectors.sql_sink.positions import POSITIONS, Positions

    def move(self: Any, partition: Any, epoch: int, start: int | None, end: int) -> None:
        del epoch, start
        self._database.execute(
            f"update {POSITIONS} set position = ? where connector = ? and topic = ? and partition = ?",
            (end, self._connector, partition.topic, partition.partition),
        )

    put(Positions, "move", move)


def marks_only(put: Put) -> None:
    """Of snapshots: rows count as new unless they change between the marks, whatever the chunk's snapshot sees."""
    from headrace_connect.core.snapshot import Visible

    put(Visible, "sees", lambda self, xid: True)


def no_fence(put: Put) -> None:
    """Of sources: a task claims no owner, and each copy of it has a transactional id of its own."""
    from headrace import aio
    from headrace_connect.runtime.adapters import source_log

    async def claim(self: Any) -> Any:
        place = self._place
        await self._topics.ensure(place.offset_topic, source_log.OFFSET_PARTITIONS, {"cleanup.policy": "compact"})
        own = f"{source_log.transactional_id(self._config.group_id, place.connector, place.task)}.{os.getpid()}"
        producer = aio.Producer(self._config.bootstrap_servers, transactional_id=own.replace("/", "."))
        await self._patience.ask(producer.init_transactions)
        return source_log._Writer(producer, place, self._topics, self._patience)

    put(source_log.SdkSourceLog, "claim", claim)


MUTANTS: Final = {"unchecked": unchecked, "marks-only": marks_only, "no-fence": no_fence}

if os.environ.get("HEADRACE_MUTANT"):
    MUTANTS[os.environ["HEADRACE_MUTANT"]](setattr)
