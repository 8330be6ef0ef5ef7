"""What a cluster has of apps, and changes of it, on the clients for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa

from headrace import aio
from headrace.errors import WaitTimedOut
from headrace.group_types import GroupInfo
from headrace.records import TopicPartition
from headrace_common.core.errors import GroupNotFound, HeadraceError, UnknownTopicOrPartition
from headrace_common.runtime.clock import Clock
from headrace_streams.adapters.headrace_io import SdkTopics
from headrace_streams.core.operators.hop import columns_of, decode, rows_text
from headrace_streams.core.outputs import Output
from headrace_streams.core.state.changelog import CONTROL, Progress, is_remark
from headrace_streams.core.state.store import Changes
from headrace_streams.plan.known import Known
from headrace_streams.plan.reset import LATEST
from headrace_streams.ports import InternalTopic, ListedTopic, Positions, Stored, TopicFacts

_TAIL_ROWS: Final = 64
"""So many rows from the end of a changelog are read first to find the newest commit's, and then more and more."""
_MORE: Final = 16
_POLL_MS: Final = 500.0
_AGAIN_MS: Final = 50.0
_ROWS: Final = 10_000

Row = tuple[bytes, bytes | None, int]
"""Key, value, and timestamp in ms."""


class SdkUpkeep:
    """Satisfies ``Upkeep``."""

    def __init__(
        self,
        admin: aio.AdminClient,
        topics: SdkTopics,
        decided: aio.Consumer[Any, Any],
        undecided: aio.Consumer[Any, Any],
        producer: aio.Producer,
        clock: Clock,
        timeout_ms: float,
    ) -> None:
        """
        Args:
            decided: reads committed records.
            undecided: reads all, so its ends are high watermarks.
            producer: a transactional one, of the app's resets alone.
            timeout_ms: how long to wait for others.
        """
        self._admin = admin
        self._topics = topics
        self._decided = decided
        self._undecided = undecided
        self._producer = producer
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._alone = False
        self._open = False

    # --- what there is ----------------------------------------------------------------------------------------------

    async def topics(self) -> dict[str, ListedTopic]:
        return {
            topic.name: ListedTopic(TopicFacts(topic.topic_id.hex(), topic.partitions), topic.configs)
            for topic in await self._admin.list_topics()
        }

    async def groups(self) -> dict[str, int]:
        return {group.group_id: group.members for group in await self._groups()}

    async def work_groups(self) -> list[str]:
        return [group.group_id for group in await self._groups() if group.protocol == "work"]

    async def _groups(self) -> tuple[GroupInfo, ...]:
        listed = await self._admin.list_groups()
        if listed.missing:
            raise listed.missing[0].error
        return listed.groups

    async def has_event_times(self, group: str) -> bool:
        try:
            found = await self._admin.group_lag(group, ages=False)
        except GroupNotFound:
            return False
        return any(is_remark(lag.metadata) for lag in found.values())

    async def members(self, app: str) -> int:
        try:
            return len((await self._admin.describe_group(app)).members)
        except GroupNotFound:
            return 0

    async def known(self, app: str) -> Known:
        return await self._topics.known(app)

    async def committed(self, app: str) -> dict[TopicPartition, int]:
        found = await self._admin.group_lag(app, ages=False)
        return {tp: lag.committed_offset for tp, lag in found.items() if lag.committed_offset is not None}

    async def targets(
        self, app: str, topics: Sequence[str], to: str | Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        if not isinstance(to, str):
            plan = await self._admin.reset_offsets(app, to_offset=dict[Any, Any](to))
        elif to == LATEST:
            plan = await self._admin.reset_offsets(app, topics, to=to)
        else:
            plan = await self._admin.reset_offsets(app, topics, to_datetime=to)
        return {planned.partition: planned.new_offset for planned in plan.partitions}

    async def is_empty(self, topic: str) -> bool:
        count = (await self._topics.find([topic]))[topic].partitions
        ends = await self.ends([TopicPartition(topic, number) for number in range(count)])
        return not any(ends.values())

    async def progress(self, changelogs: Sequence[TopicPartition]) -> dict[TopicPartition, Progress]:
        return {tp: progress for tp, (progress, _) in (await self.commits(changelogs)).items()}

    async def commits(self, changelogs: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[Progress, int]]:
        """As ``progress``, and when the commit was made, in ms since 1970."""
        starts = await self._decided.beginning_offsets(changelogs)
        ends = await self._decided.end_offsets(changelogs)
        found = {tp: await self._newest(tp, starts[tp], ends[tp]) for tp in changelogs}
        return {tp: commit for tp, commit in found.items() if commit is not None}

    async def _newest(self, partition: TopicPartition, first: int, end: int) -> tuple[Progress, int] | None:
        """Each commit ends with a control row, so the newest is near the end."""
        back = _TAIL_ROWS
        while first < end:
            start = max(first, end - back)
            control: tuple[bytes, int] | None = None
            async for key, value, at_ms in self._rows(partition, start, end):
                control = (value, at_ms) if key == CONTROL and value is not None else control
            if control is not None:
                return Progress.decode(control[0]), control[1]
            if start == first:
                break
            back *= _MORE
        return None

    async def waiting(self, positions: Positions) -> dict[str, str]:
        """
        The columns of rows that wait in repartition topics, as ``hop.rows_text``; of those in which some wait.

        Args:
            positions: the app's; -1: from the start of the log.
        """
        starts = await self._decided.beginning_offsets(list(positions))
        ends = await self._decided.end_offsets(list(positions))
        found: dict[str, str] = {}
        for tp, position in positions.items():
            if tp.topic in found:
                continue  # all that wait were sent by workers that agreed
            async for _, value, _ in self._rows(tp, max(starts[tp], position), ends[tp]):
                rows = decode(value).rows
                if rows is not None:
                    found[tp.topic] = rows_text(columns_of(rows))
                    break
        return found

    async def read(self, partition: TopicPartition, prefix: bytes) -> Stored:
        (position,) = (await self._decided.beginning_offsets([partition])).values()
        found: dict[bytes, None] = {}
        progress = Progress()
        while position < (end := (await self.ends([partition]))[partition]):
            async for key, value, _ in self._rows(partition, position, end):
                if key == CONTROL and value is not None:
                    progress = Progress.decode(value)
                elif key.startswith(prefix) and value is not None:
                    found[key] = None
                else:
                    found.pop(key, None)
            position = end
        return Stored(list(found), progress, position)

    async def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._undecided.end_offsets(partitions)

    async def _rows(self, partition: TopicPartition, start: int, end: int) -> AsyncIterator[Row]:
        """Committed rows of a changelog, from one offset to the position of another."""
        if start >= end:
            return
        await self._decided.assign([partition])
        self._decided.seek(partition, start)
        position = start
        until_ms = self._clock.monotonic_ms() + self._timeout_ms
        while position < end:
            for batch in await self._decided.poll_batches(_POLL_MS):
                if batch.next_offset > position:
                    position = batch.next_offset
                    until_ms = self._clock.monotonic_ms() + self._timeout_ms
                keys: list[Any] = batch.table["key"].to_pylist()
                values: list[Any] = batch.table["value"].to_pylist()
                times: list[Any] = batch.table["timestamp_ms"].to_pylist()
                for row in zip(keys, values, times, strict=True):
                    yield row
            if self._clock.monotonic_ms() >= until_ms:
                raise WaitTimedOut(
                    f"{partition} was read up to {position}, and not to its end at {end}: a transaction may be open "
                    "in it; it ends by itself when its worker is stopped, then try again"
                )

    # --- topics and positions ---------------------------------------------------------------------------------------

    async def make(self, topics: Sequence[InternalTopic]) -> None:
        await self._topics.make(topics)

    async def delete(self, topic: str) -> None:
        try:
            await self._admin.delete_topic(topic)
        except UnknownTopicOrPartition:
            return
        until_ms = self._clock.monotonic_ms() + self._timeout_ms
        while await self._topics.find([topic]):
            if self._clock.monotonic_ms() >= until_ms:
                raise WaitTimedOut(f"the topic {topic} was deleted, and is still shown; try again")
            await self._clock.sleep_ms(_AGAIN_MS)

    async def forget(self, app: str, partitions: Sequence[TopicPartition]) -> None:
        for error in (await self._admin.delete_offsets(app, partitions)).values():
            if error is not None and not isinstance(error, UnknownTopicOrPartition):
                raise error

    # --- one unit ---------------------------------------------------------------------------------------------------

    async def begin(self, app: str, positions: Positions) -> None:
        await self._producer.begin_transaction()
        self._open = True
        if positions:
            await self._producer.send_offsets_to_transaction(dict[Any, Any](positions), app)

    async def take_over(self, partition: TopicPartition) -> None:
        if not self._alone:
            await self._producer.init_transactions()
            self._alone = True
        topic, number = partition
        id_ = (await self._admin.describe_topic(topic)).topic_id
        known = [
            log.fencing_token or 0
            for broker in await self._admin.describe_logs(topics=[topic])
            for log in broker.logs
            if log.topic_id == id_ and log.partition == number
        ]
        await self._producer.fence(topic, number, max(known, default=0) + 1)

    async def append(self, partition: TopicPartition, rows: Changes) -> None:
        for start in range(0, len(rows), _ROWS):
            keys, values = zip(*rows[start : start + _ROWS], strict=True)
            table = pa.table(
                {
                    "key": pa.array(keys, pa.binary()),
                    "value": pa.array(values, pa.binary()),
                    "partition": pa.array([partition.partition] * len(keys), pa.int32()),
                }
            )
            await self._producer.send_table(partition.topic, table)

    async def send(self, output: Output) -> None:
        for start in range(0, output.records.num_rows, _ROWS):
            await self._producer.send_table(output.topic, output.records.slice(start, _ROWS))

    async def commit(self) -> None:
        await self._producer.commit_transaction()
        self._open = False

    async def abort(self) -> None:
        if self._open:
            self._open = False
            with suppress(HeadraceError):  # else it times out, or the next reset aborts it
                await self._producer.abort_transaction()
