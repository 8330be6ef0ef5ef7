"""
Streams with a step taken out of "exactly once", each a bug that could be: worlds of Streams must find them.

Each mutant patches functions of the product for the time of one run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from tests.lab.kind import Mutant

from headrace import aio
from headrace.records import TopicPartition
from headrace_streams import main
from headrace_streams.adapters.headrace_io import SdkReader, SdkWriter
from headrace_streams.core.outputs import Output
from headrace_streams.core.state.store import Changes
from headrace_streams.core.task import Task
from headrace_streams.plan.nodes import changelog_topic
from headrace_streams.ports import Checkpoint, Positions, Sent
from headrace_streams.runtime import worker
from headrace_streams.runtime.owned import Owned, as_output
from headrace_streams.runtime.worker import Worker

Patches = Sequence[Any]
CHANGELOG: Final = ".changelog"


class _Later:
    """What is sent later than it should be."""

    def __init__(self) -> None:
        self.sent: Sent

    def end(self) -> int:
        return self.sent.end()


def commit_positions_first() -> Patches:
    """Positions and outputs are committed in a transaction of their own, before the changelog's rows."""
    send, commit, abort = SdkWriter.send, SdkWriter.commit, SdkWriter.abort
    held: dict[SdkWriter, list[tuple[Output, _Later]]] = defaultdict(list)

    async def hold(self: SdkWriter, output: Output) -> Sent:
        if not output.topic.endswith(CHANGELOG):
            return await send(self, output)
        later = _Later()
        held[self].append((output, later))
        return later

    async def commit_twice(self: SdkWriter, positions: Positions) -> None:
        rows = held.pop(self, [])
        await commit(self, positions)
        if rows:
            await self.begin()
            for output, later in rows:
                later.sent = await send(self, output)
            await commit(self, {})

    async def forget(self: SdkWriter) -> None:
        held.pop(self, None)
        await abort(self)

    patches = {"send": hold, "commit": commit_twice, "abort": forget}
    return [patch.object(SdkWriter, name, instead) for name, instead in patches.items()]


def commit_positions_later() -> Patches:
    """Positions are committed in a transaction of their own, after everything else."""
    commit = SdkWriter.commit

    async def commit_twice(self: SdkWriter, positions: Positions) -> None:
        await commit(self, {})
        if positions:
            await self.begin()
            await commit(self, positions)

    return [patch.object(SdkWriter, "commit", commit_twice)]


def send_outputs_at_once() -> Patches:
    """Outputs do not wait for the state and the positions that belong to them."""
    send = SdkWriter.send

    async def send_and_commit(self: SdkWriter, output: Output) -> Sent:
        sent = await send(self, output)
        if not output.topic.endswith(CHANGELOG):
            await self._producer.commit_transaction()
            await self._producer.begin_transaction()
        return sent

    return [patch.object(SdkWriter, "send", send_and_commit)]


def restore_to_an_old_end() -> Patches:
    """A restore ends where the changelog ended before the predecessor was fenced."""
    assemble, ends = Worker._assemble, SdkReader.ends
    old: dict[Any, dict[TopicPartition, int]] = {}

    async def assemble_and_look(self: Worker) -> Any:
        assembly, facts = await assemble(self)
        stateful = [part for part in assembly.parts if part.stateful]
        logs = {changelog_topic(assembly.app, part.name): assembly.tasks_of(part) for part in stateful}
        reader = self._outside.changelogs
        old[reader] = await reader.ends([TopicPartition(log, n) for log, tasks in logs.items() for n in range(tasks)])
        return assembly, facts

    async def old_ends(self: SdkReader, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return old.pop(self, None) or await ends(self, partitions)

    return [patch.object(Worker, "_assemble", assemble_and_look), patch.object(SdkReader, "ends", old_ends)]


def fence_nobody() -> Patches:
    """Each worker writes under a transactional id of its own: who was replaced goes on."""
    numbers = count()

    def producer(servers: Any, *, transactional_id: str, **settings: Any) -> aio.Producer:
        return aio.Producer(servers, transactional_id=f"{transactional_id}-{next(numbers)}", **settings)

    instead = SimpleNamespace(AdminClient=aio.AdminClient, Consumer=aio.Consumer, Producer=producer)
    return [patch.object(main, "aio", instead)]


def keep_state_after_an_abort() -> Patches:
    """After an abort records are fed again to the state that has them already."""

    def rewind(self: Task, watermarks: Mapping[str, int]) -> None:
        self._restart(watermarks)

    return [patch.object(Task, "rewind", rewind)]


def write_checkpoints_first() -> Patches:
    """A cold tier gets the checkpoint before the rows that belong to it."""
    keep = Worker._keep

    async def keep_twice(self: Worker, kept: Any, sent: Sent | None) -> None:
        owned = kept.owned
        if sent is not None:
            owned.store.write([], Checkpoint(owned.log_id, sent.end(), self._outside.clock.now_ms()))
        await keep(self, kept, sent)

    return [patch.object(Worker, "_keep", keep_twice)]


def write_state_before_the_verdict() -> Patches:
    """Rows are in the cold tier before it is known whether they are committed."""

    def write(owned: Owned, rows: Changes) -> Output:
        assert owned.store is not None
        checkpoint = owned.store.checkpoint()
        if checkpoint is not None:
            owned.store.write(rows, checkpoint)
        return as_output(owned, rows)

    return [patch.object(worker, "as_output", write)]


def forget_event_time() -> Patches:
    """A task that begins anew has seen no time: windows that were closed are open again."""
    opened = Task.open
    return [patch.object(Task, "open", lambda self, cold, _watermarks: opened(self, cold, {}))]


MUTANTS: Final[dict[str, Mutant]] = {
    "positions-first": commit_positions_first,
    "positions-later": commit_positions_later,
    "early-outputs": send_outputs_at_once,
    "old-restore": restore_to_an_old_end,
    "not-fenced": fence_nobody,
    "state-kept": keep_state_after_an_abort,
    "early-checkpoint": write_checkpoints_first,
    "early-state": write_state_before_the_verdict,
    "time-forgotten": forget_event_time,
}
RARE: Final = frozenset({"old-restore"})
"""Found too late for every change; the long form looks for them."""
