"""Topics, readers and writers of a worker, on the clients for asyncio."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from headrace import TopicRecreated, aio
from headrace.admin_types import ConfigEntry, NewTopic
from headrace.delivery import Deliveries
from headrace.errors import GroupNotFound, PositionOutOfRange
from headrace.records import Committed, PartitionTable, TopicPartition
from headrace_common.core.errors import (
    HeadraceError,
    InvalidConfig,
    RecordTooLarge,
    TopicAlreadyExists,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from headrace_common.core.setting import LONG_MAX
from headrace_common.runtime.clock import Clock, limit_s
from headrace_streams.config import EXACTLY_ONCE, StreamsConfig
from headrace_streams.core.outputs import Limits, Output
from headrace_streams.core.state.changelog import TOPIC_BYTES_MAX
from headrace_streams.patience import PAUSE_MS, Patience
from headrace_streams.plan.known import Known
from headrace_streams.ports import InternalTopic, Membership, Positions, Shared, TopicFacts

_NEVER: Final = "-1"
_WORK: Final = "work"
"""The protocol of groups whose members share named work."""
_LEVEL_MS: Final = 5_000.0
"""A cluster that has just started knows after a moment what all its nodes can do."""
_SOON_S: Final = 1.0
"""A broker that does not say within it where a partition ends holds up no other work."""
_PARTITION: Final = "partition"
_FEW_ROWS: Final = 32
"""So many are sent as lists: a table costs a fifth of a millisecond, whatever its size."""
_BYTES_MAX: Final = "max.message.bytes"
_AHEAD_MAX: Final = "message.timestamp.after.max.ms"
_BEHIND_MAX: Final = "message.timestamp.before.max.ms"
_CLEANED: Final = "cleanup.policy"
_STAMPED: Final = "message.timestamp.type"
_ANY_TIME: Final = {_AHEAD_MAX: str(LONG_MAX), _BEHIND_MAX: str(LONG_MAX), _STAMPED: "CreateTime"}
"""Event times are whatever rows say; those of repartition topics have to pass."""
_REQUEST_BYTES_MAX: Final = 16 << 20
"""What brokers take; how much a topic takes, it says itself."""
_NOT_KNOWN: Final = Limits(_REQUEST_BYTES_MAX)
"""Of a topic whose settings this app may not see."""
_log: Final = logging.getLogger(__name__)


class SdkTopics:
    """Satisfies ``Topics``."""

    def __init__(self, admin: aio.AdminClient, config: StreamsConfig, clock: Clock) -> None:
        self._admin = admin
        self._config = config
        self._clock = clock
        self._patience = Patience(clock, config.default_api_timeout_ms)

    async def find(self, names: Sequence[str]) -> dict[str, TopicFacts]:
        found = {}
        for name in names:
            try:
                topic = await self._admin.describe_topic(name)
            except UnknownTopicOrPartition:
                continue
            found[name] = TopicFacts(topic.topic_id.hex(), len(topic.partitions))
        return found

    async def names(self) -> list[str]:
        return [topic.name for topic in await self._admin.list_topics()]

    async def make(self, topics: Sequence[InternalTopic]) -> dict[str, TopicFacts]:
        found = await self.find([topic.name for topic in topics])
        for topic in topics:
            if topic.name in found and not topic.compacted:
                await self._take_any_time(topic.name)
        missing = [topic for topic in topics if topic.name not in found]
        if missing:
            await self._create(missing)
            found |= await self._patience.ask(lambda: self._find_all([topic.name for topic in missing]))
        return found

    async def _take_any_time(self, name: str) -> None:
        """Topics that earlier versions have made refuse event times that are far from the clock."""
        configs = await self._admin.describe_configs(topic=name)
        if any(configs[setting].value != wanted for setting, wanted in _ANY_TIME.items()):
            await self._admin.alter_configs(_ANY_TIME, topic=name)

    async def _create(self, topics: Sequence[InternalTopic]) -> None:
        until_ms = self._clock.monotonic_ms() + _LEVEL_MS
        while True:
            made = await self._admin.create_topics([self._new(topic) for topic in topics])
            errors = [result for result in made.values() if isinstance(result, HeadraceError)]
            refused = [error for error in errors if not isinstance(error, TopicAlreadyExists)]
            if not refused:
                return
            if not isinstance(refused[0], InvalidConfig) or self._clock.monotonic_ms() >= until_ms:
                raise refused[0]
            await self._clock.sleep_ms(PAUSE_MS)

    async def _find_all(self, names: Sequence[str]) -> dict[str, TopicFacts]:
        """What was just made, here or by another worker, is not known everywhere at once."""
        found = await self.find(names)
        missing = [name for name in names if name not in found]
        if missing:
            raise UnknownTopicOrPartition(f"{missing[0]} was made, and is not known yet")
        return found

    def _new(self, topic: InternalTopic) -> NewTopic:
        configs = {"retention.ms": _NEVER, "retention.bytes": _NEVER, _BYTES_MAX: str(TOPIC_BYTES_MAX)}
        if topic.compacted:
            configs |= {
                _CLEANED: "compact",
                "fencing.required": "true",
                "delete.retention.ms": str(self._config.delete_retention_ms),
            }
        else:
            configs |= {_CLEANED: "delete", **_ANY_TIME}
        return NewTopic(topic.name, topic.partitions, None, configs)

    async def limits(self, names: Sequence[str]) -> dict[str, Limits]:
        return {name: await self._limits_of(name) for name in names}

    async def _limits_of(self, name: str) -> Limits:
        try:
            return _limits({**await self._admin.describe_configs(topic=name)})
        except TopicAuthorizationFailed as error:
            _log.warning("a record that topic %s does not take ends this app, and is no dead letter: %s", name, error)
            return _NOT_KNOWN

    async def trim(self, positions: Positions) -> None:
        await self._admin.delete_records({(tp.topic, tp.partition): offset for tp, offset in positions.items()})

    async def shared(self, app: str) -> Shared:
        try:
            group = await self._admin.describe_group(app)
        except GroupNotFound:
            return Shared()
        return Shared(frozenset(item.id for item in group.items), group.terms) if group.members else Shared()

    async def positions(self, app: str) -> dict[TopicPartition, int]:
        try:
            found = await self._admin.group_lag(app, ages=False)
        except GroupNotFound:
            return {}
        return {tp: lag.committed_offset for tp, lag in found.items() if lag.committed_offset is not None}

    async def known(self, app: str) -> Known:
        try:
            group = await self._admin.describe_group(app)
        except GroupNotFound:
            return Known(app)
        parts = {item.id.rpartition("/")[0] for item in group.items if item.stateful}
        works = group.protocol == _WORK
        positions = await self.positions(app)
        return Known(app, works, len(group.members), frozenset(parts), frozenset(group.terms), positions)


def _limits(configs: Mapping[str, ConfigEntry]) -> Limits:
    values = {name: configs[name].value for name in (_BYTES_MAX, _AHEAD_MAX, _BEHIND_MAX)}
    size, ahead, behind = (int(value or 0) for value in values.values())
    keyed = "compact" in configs[_CLEANED].value
    if configs[_STAMPED].value != _ANY_TIME[_STAMPED]:  # the broker's clock stamps them
        return Limits(size, keyed=keyed)
    return Limits(size, ahead, behind, keyed)


class SdkReader:
    """Satisfies ``Reader``."""

    def __init__(
        self, consumer: aio.Consumer[Any, Any], resets: list[Any], undecided: aio.Consumer[Any, Any] | None = None
    ) -> None:
        """
        Args:
            resets: gets what the consumer's ``on_position_reset`` is told; this consumer's alone.
            undecided: reads what is not decided too, so its ends are high watermarks.
        """
        self._consumer = consumer
        self._resets = resets
        self._undecided = undecided
        self._from: dict[TopicPartition, int] = {}
        self._told: dict[TopicPartition, PartitionTable] = {}
        """Where each goes on and where it ends, as it was told last; without rows."""
        self._again: list[PartitionTable] = []

    @classmethod
    def of_group(cls, servers: str | None, group: str) -> SdkReader:
        """What is committed, and the positions of a group."""
        resets: list[Any] = []
        return cls(_committed(servers, resets, group_id=group), resets)

    @classmethod
    def of_whole_logs(cls, servers: str | None) -> SdkReader:
        """What is committed, from the start to the high watermark."""
        resets: list[Any] = []
        return cls(_committed(servers, resets), resets, aio.Consumer(bootstrap_servers=servers))

    async def assign(self, positions: Positions) -> None:
        self._from = dict(positions)
        await self._consumer.assign(list(positions))
        self.pause(())
        self._told = {tp: told for tp, told in self._told.items() if positions.get(tp) == told.next_offset}
        self._again = list(self._told.values())
        for tp, offset in positions.items():
            if offset < 0:
                self._consumer.seek_to_beginning(tp)
            elif tp not in self._told:  # a seek would drop what has been fetched ahead
                self._consumer.seek(tp, offset)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        if self._consumer.paused():
            self._consumer.resume()
        if partitions:  # without any, it would be all
            self._consumer.pause(*partitions)

    async def poll(self, timeout_ms: float, max_rows: int) -> list[PartitionTable]:
        again, self._again = self._again, []
        tables = [*again, *await self._consumer.poll_batches(0 if again else timeout_ms, max_rows)]
        for one in tables:
            self._told[TopicPartition(one.topic, one.partition)] = replace(one, table=one.table.slice(0, 0))
        # A worker that was put out may hear of a gap where it does not read any more: others have read these records.
        gaps = [reset for reset in self._resets if reset.lost >= self._from.get(reset.partition, reset.lost + 1)]
        if gaps:  # what was just read comes from behind it
            to_do = "Keep records for longer than the app may stand still; an app without state goes "
            to_do += "on after `headrace group reset`, one with state after `headrace streams reset`"
            if isinstance(gaps[0], TopicRecreated):
                to_do = "To read the new topic, `headrace streams reset`"
            error = PositionOutOfRange(f"{gaps[0]}. {to_do}")
            error.partition = gaps[0].partition
            raise error
        return tables

    async def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Committed | None]:
        return await self._consumer.committed(partitions)

    async def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        assert self._undecided is not None, "the reader of changelogs has it"
        return await self._undecided.end_offsets(partitions)

    async def at_ends(self, partitions: Sequence[TopicPartition]) -> Collection[TopicPartition]:
        try:
            async with limit_s(_SOON_S):
                ends = await self._consumer.end_offsets(partitions)
        except TimeoutError:
            return ()
        return {tp for tp, end in ends.items() if tp in self._told and end <= self._told[tp].next_offset}

    async def starts(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._consumer.beginning_offsets(partitions)

    async def close(self) -> None:
        await self._consumer.close()
        if self._undecided is not None:
            await self._undecided.close()


def _committed(servers: str | None, resets: list[Any], group_id: str | None = None) -> aio.Consumer[Any, Any]:
    return aio.Consumer(
        bootstrap_servers=servers,
        group_id=group_id,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        on_position_reset=resets.append,
    )


class _Sent:
    """Satisfies ``Sent``."""

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries

    def end(self) -> int:
        return self._deliveries[-1].result(0).offset + 1


class SdkWriters:
    """Satisfies ``Writers``: transactional producers."""

    def __init__(self, servers: str | None, config: StreamsConfig, clock: Clock) -> None:
        self._servers = servers
        self._config = config
        self._patience = Patience(clock, config.default_api_timeout_ms)

    async def open(self, membership: Membership) -> SdkWriter:
        transactional_id = membership.transactional_id
        assert transactional_id is not None, "it was asked for when the worker joined"
        at_once = None
        if self._config.processing_guarantee != EXACTLY_ONCE:
            at_once = aio.Producer(self._servers, linger_ms=0, max_request_size=_REQUEST_BYTES_MAX)
        writer = SdkWriter(self._producer(transactional_id), membership, self._patience, at_once)
        await writer.start()
        return writer

    async def end(self, transactional_id: str) -> None:
        async with self._producer(transactional_id) as producer:
            await self._patience.ask(producer.init_transactions)

    def _producer(self, transactional_id: str) -> aio.Producer:
        return aio.Producer(
            self._servers,
            transactional_id=transactional_id,
            transaction_timeout_ms=self._config.transaction_timeout_ms,
            max_request_size=_REQUEST_BYTES_MAX,
        )


class SdkWriter:
    """Satisfies ``Writer``: one transactional producer, and one without transactions for what is sent at once."""

    def __init__(
        self,
        producer: aio.Producer,
        membership: Membership,
        patience: Patience,
        at_once: aio.Producer | None = None,
    ) -> None:
        self._producer = producer
        self._membership = membership
        self._patience = patience
        self._at_once = at_once
        self._undelivered: list[Deliveries] = []

    async def start(self) -> None:
        """Take the transactional id."""
        await self._patience.ask(self._producer.init_transactions)

    async def fence(self, partition: TopicPartition, token: int) -> int:
        return (await self._producer.fence(partition.topic, partition.partition, token)).offset

    async def begin(self) -> None:
        await self._producer.begin_transaction()

    async def send(self, output: Output) -> _Sent:
        return _Sent(await _send(self._producer, output))

    async def send_at_once(self, output: Output) -> None:
        assert self._at_once is not None, "at_least_once"
        self._undelivered.append(await _send(self._at_once, output))

    async def _deliver(self) -> None:
        """
        What was sent at once is in its logs.

        Raises:
            HeadraceError: some of it is not, or nobody can tell.
        """
        sent, self._undelivered = self._undelivered, []
        if self._at_once is not None and sent:
            await self._at_once.flush()
        for failure in (deliveries.failure() for deliveries in sent):
            if failure is not None:
                raise failure

    async def flush(self) -> None:
        await self._producer.flush()

    async def behind(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        await self.begin()
        try:
            sent = {tp: await self._producer.send_many(tp.topic, [b""], partition=tp.partition) for tp in partitions}
            await self.flush()
            return {tp: _Sent(deliveries).end() for tp, deliveries in sent.items()}
        finally:
            await self.abort()

    async def commit(self, positions: Mapping[TopicPartition, Committed]) -> None:
        await self._deliver()
        if positions:
            await self._producer.send_offsets_to_transaction(dict[Any, Any](positions), self._membership)
        await self._patience.ask(self._producer.commit_transaction)

    async def abort(self) -> None:
        self._undelivered.clear()
        await self._patience.ask(self._producer.abort_transaction)

    async def close(self) -> None:
        await self._producer.close()
        if self._at_once is not None:
            await self._at_once.close()


async def _send(producer: aio.Producer, output: Output) -> Deliveries:
    """
    Raises:
        RecordTooLarge: names the topic; what a program writes was looked at before, so it is a dead letter, with its
            headers, or a row for a repartition topic.
    """
    try:
        if output.records.num_rows <= _FEW_ROWS:
            return await producer.send_many(output.topic, **_lists(output))
        return await producer.send_table(output.topic, _table(output))
    except RecordTooLarge as error:
        raise RecordTooLarge(f"a record for the topic {output.topic} cannot be sent: {error}; raise that") from error


def _lists(output: Output) -> dict[str, Any]:
    """As a producer takes few rows fastest."""
    columns = output.records.to_pydict()
    headers: Any = [output.headers] * output.records.num_rows if output.headers else None
    if (own := columns.get("headers")) is not None:
        headers = [[(header["key"], header["value"]) for header in of_record] for of_record in own]
    return {
        "values": columns["value"],
        "keys": columns["key"],
        "headers": headers,
        "partition": output.partition,
        "timestamps_ms": columns.get("timestamp_ms"),
    }


def _table(output: Output) -> pa.Table:
    """As a producer takes it."""
    table = output.records
    count = table.num_rows
    if output.partition is not None:
        table = table.append_column(_PARTITION, pa.array([output.partition] * count, pa.int32()))
    if output.headers:
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        pairs = [{"key": name, "value": value} for name, value in output.headers]
        table = table.append_column("headers", pa.array([pairs] * count, kind))
    return table
