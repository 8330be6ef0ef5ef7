"""
Streams with a step taken out of "exactly once", each a bug that could be: worlds of Streams must find them.

Each mutant patches functions of the product for the time of one run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from tests.lab.kind import Mutant

from headrace.admin_types import NewTopic
from headrace.records import Committed, TopicPartition
from headrace_streams.adapters.headrace_io import SdkReader, SdkTopics, SdkWriter, SdkWriters
from headrace_streams.config import EXACTLY_ONCE
from headrace_streams.core.outputs import Output
from headrace_streams.core.state.store import Changes
from headrace_streams.core.task import Task
from headrace_streams.ports import Checkpoint, InternalTopic, Sent
from headrace_streams.runtime import committing
from headrace_streams.runtime.committing import Committing
from headrace_streams.runtime.owned import Owned, as_output
from headrace_streams.runtime.seat import Seat
from headrace_streams.runtime.taking import Taking
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

    async def commit_twice(self: SdkWriter, positions: Mapping[TopicPartition, Committed]) -> None:
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

    async def commit_twice(self: SdkWriter, positions: Mapping[TopicPartition, Committed]) -> None:
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


def wait_for_no_output() -> Patches:
    """At least once: a commit does not wait for the outputs that were sent at once."""

    async def forget(self: SdkWriter) -> None:
        self._undelivered.clear()

    return [patch.object(SdkWriter, "_deliver", forget)]


def repartition_at_once() -> Patches:
    """At least once: rows that go to other tasks may come again, as those for topics of the program."""

    def waits(self: Committing, topic: str) -> bool:
        return self._config.processing_guarantee == EXACTLY_ONCE

    return [patch.object(Committing, "waits", waits)]


def restore_what_is_decided() -> Patches:
    """A restore ends at the last stable offset: verdicts are answered before markers are written."""

    async def ends(self: SdkReader, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._consumer.end_offsets(partitions)

    async def fence(self: SdkWriter, partition: TopicPartition, token: int) -> int:
        await self._producer.fence(partition.topic, partition.partition, token)
        return -1

    return [patch.object(SdkReader, "ends", ends), patch.object(SdkWriter, "fence", fence)]


def end_nobody() -> Patches:
    """Who was put out may still commit: its transaction is not ended, and it is not asked whether it is a member."""

    async def commit(self: SdkWriter, positions: Mapping[TopicPartition, Committed]) -> None:
        if positions:
            group = self._membership._work.name  # type: ignore[attr-defined]
            await self._producer.send_offsets_to_transaction(dict[Any, Any](positions), group)
        await self._patience.ask(self._producer.commit_transaction)

    async def end(self: SdkWriters, transactional_id: str) -> None:
        pass

    return [patch.object(SdkWriter, "commit", commit), patch.object(SdkWriters, "end", end)]


def guard_nothing() -> Patches:
    """The same, and changelogs take what anybody writes."""

    async def fence(self: SdkWriter, partition: TopicPartition, token: int) -> int:
        return -1

    new = SdkTopics._new

    def unfenced(self: SdkTopics, topic: InternalTopic) -> NewTopic:
        made = new(self, topic)
        configs = {name: value for name, value in (made.configs or {}).items() if name != "fencing.required"}
        return replace(made, configs=configs)

    return [*end_nobody(), patch.object(SdkWriter, "fence", fence), patch.object(SdkTopics, "_new", unfenced)]


def give_up_first() -> Patches:
    """What was revoked is somebody else's before it is committed."""
    give_up = Worker._give_up

    async def give_up_at_once(self: Worker, seat: Seat) -> None:
        seat.membership.give_up(*seat.revoked)
        await give_up(self, seat)

    return [patch.object(Worker, "_give_up", give_up_at_once)]


def forget_what_was_committed() -> Patches:
    """A task begins at the group's positions with the state that is on the disk."""

    async def restore(self: Taking, owned: Owned, fenced: int) -> None:
        pass

    return [patch.object(Taking, "_restore", restore)]


def keep_state_after_an_abort() -> Patches:
    """After an abort records are fed again to the state that has them already."""

    def rewind(self: Task, watermarks: Mapping[str, int]) -> None:
        self._restart(watermarks)

    return [patch.object(Task, "rewind", rewind)]


def write_checkpoints_first() -> Patches:
    """A cold tier gets the checkpoint before the rows that belong to it."""
    keep = Committing._keep

    async def keep_twice(self: Committing, kept: Any, sent: Sent | None) -> None:
        owned = kept.owned
        if sent is not None:
            owned.store.write([], Checkpoint(owned.spec.log_id, sent.end(), self._outside.clock.now_ms()))
        await keep(self, kept, sent)

    return [patch.object(Committing, "_keep", keep_twice)]


def write_state_before_the_verdict() -> Patches:
    """Rows are in the cold tier before it is known whether they are committed."""

    def write(owned: Owned, rows: Changes) -> Output:
        assert owned.store is not None
        checkpoint = owned.store.checkpoint()
        if checkpoint is not None:
            owned.store.write(rows, checkpoint)
        return as_output(owned, rows)

    return [patch.object(committing, "as_output", write)]


def forget_event_time() -> Patches:
    """A task that begins anew has seen no time: windows that were closed are open again."""
    opened = Task.open
    return [patch.object(Task, "open", lambda self, cold, _watermarks: opened(self, cold, {}))]


MUTANTS: Final[dict[str, Mutant]] = {
    "positions-first": commit_positions_first,
    "positions-later": commit_positions_later,
    "early-outputs": send_outputs_at_once,
    "outputs-forgotten": wait_for_no_output,
    "early-hops": repartition_at_once,
    "decided-only": restore_what_is_decided,
    "not-ended": end_nobody,
    "not-guarded": guard_nothing,
    "given-up-first": give_up_first,
    "not-restored": forget_what_was_committed,
    "state-kept": keep_state_after_an_abort,
    "early-checkpoint": write_checkpoints_first,
    "early-state": write_state_before_the_verdict,
    "time-forgotten": forget_event_time,
}
RARE: Final = frozenset({"outputs-forgotten"})
"""Found too late for every change; the long form looks for it."""
FOUND: Final[dict[str, int]] = {
    "decided-only": 19,
    "early-checkpoint": 20,
    "early-hops": 6,
    "early-outputs": 5,
    "early-state": 3,
    "given-up-first": 44,
    "not-ended": 17,
    "not-guarded": 22,
    "not-restored": 4,
    "positions-first": 5,
    "positions-later": 7,
    "state-kept": 5,
    "time-forgotten": 3,
}
"""See ``Kind.found``; others are found by one of the first seeds."""
