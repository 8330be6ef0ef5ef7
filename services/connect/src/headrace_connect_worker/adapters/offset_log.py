"""Positions over the SDK: those of sources in the offset topic, those of sinks in their groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import orjson

from headrace import aio
from headrace.aio.transactions import UnitOwner
from headrace_common.core.errors import GroupNotFound, InvalidConfig, NotFound, UnknownTopicOrPartition
from headrace_common.runtime.clock import Clock
from headrace_connect.core.names import group_of, owner_of
from headrace_connect.core.positions import encode_position
from headrace_connect.runtime.adapters.topics import SdkTopics
from headrace_connect_worker.adapters.following import follow_topic
from headrace_connect_worker.core.refusals import BadCommand
from headrace_connect_worker.core.sink_offsets import OFFSET, PARTITION, TOPIC, positions_of
from headrace_connect_worker.ports import Config, ConnectorOffset
from headrace_streams.patience import Patience

_STORAGE: Final = "offsets.storage.topic"


class SdkOffsets:
    """Satisfies ``OffsetStore``."""

    def __init__(
        self,
        servers: str,
        topic: str,
        partitions: int,
        group_id: str,
        topics: SdkTopics,
        admin: aio.AdminClient,
        clock: Clock,
        call_ms: int,
    ) -> None:
        self._servers = servers
        self._topic = topic
        self._partitions = partitions
        self._group_id = group_id
        self._topics = topics
        self._admin = admin
        self._clock = clock
        self._patience = Patience(clock, call_ms)

    async def read(self, connector: str, kind: str, config: Config) -> Sequence[ConnectorOffset]:
        """See ``OffsetStore``."""
        if kind == "sink":
            return await self._read_group(connector)
        found = await self._read_topic(connector, config)
        return [ConnectorOffset(orjson.loads(key)[1], orjson.loads(value)) for key, value in sorted(found.items())]

    async def _read_group(self, connector: str) -> list[ConnectorOffset]:
        try:
            lags = await self._admin.group_lag(group_of(connector), ages=False)
        except GroupNotFound:
            return []
        return [
            ConnectorOffset({TOPIC: at.topic, PARTITION: at.partition}, {OFFSET: lag.committed_offset})
            for at, lag in sorted(lags.items())
            if lag.committed_offset is not None
        ]

    async def _read_topic(self, connector: str, config: Config) -> dict[bytes, bytes]:
        """Key and value of each position of a connector."""
        topic = config.get(_STORAGE) or self._topic
        partitions = await self._patience.ask(lambda: self._topics.partitions(topic))
        found: dict[bytes, bytes] = {}
        if not partitions:
            return found
        async for read in follow_topic(self._servers, topic, partitions, self._clock):
            for _, key, value in read.records:
                if key is None or not _is_of(key, connector):
                    continue
                if value is None:
                    found.pop(key, None)
                else:
                    found[key] = value
            if read.at_end:
                break
        return found

    async def change(
        self, connector: str, kind: str, config: Config, generation: int, offsets: Sequence[ConnectorOffset] | None
    ) -> None:
        """See ``OffsetStore``."""
        if kind == "sink":
            await self._change_group(connector, offsets)
        else:
            await self._change_topic(connector, config, generation, offsets)

    async def _change_group(self, connector: str, offsets: Sequence[ConnectorOffset] | None) -> None:
        group = group_of(connector)
        if offsets is None:
            try:
                await self._admin.delete_group(group)
            except GroupNotFound:
                return
            return
        positions = positions_of((one.partition, one.offset) for one in offsets)
        wanted = {(at.topic, at.partition): position for at, position in positions.items() if position is not None}
        forgotten = [(at.topic, at.partition) for at, position in positions.items() if position is None]
        if wanted:
            try:
                await self._admin.reset_offsets(group, to_offset=wanted, execute=True)
            except UnknownTopicOrPartition as error:
                raise BadCommand(f"{error}; no offset of {connector} was changed") from error
        if forgotten:
            await self._forget(group, forgotten)

    async def _forget(self, group: str, partitions: Sequence[tuple[str, int]]) -> None:
        try:
            results = await self._admin.delete_offsets(group, partitions)
        except (GroupNotFound, NotFound):  # nothing is committed there
            return
        for error in results.values():
            if error is not None and not isinstance(error, NotFound):
                raise error

    async def _change_topic(
        self, connector: str, config: Config, generation: int, offsets: Sequence[ConnectorOffset] | None
    ) -> None:
        topic = config.get(_STORAGE) or self._topic
        changes = None if offsets is None else _of_source(connector, offsets)
        owner_name = owner_of(self._group_id, connector)
        async with UnitOwner(self._servers, owner_name) as owner:
            epoch = (await self._patience.ask(lambda: owner.init(claim=generation))).epoch
        if changes is None:
            changes = dict.fromkeys(await self._read_topic(connector, config), None)
        if not changes:
            return
        settings = {"cleanup.policy": "compact"}
        await self._patience.ask(lambda: self._topics.ensure(topic, self._partitions, settings))
        producer = aio.Producer(self._servers, transactional_id=f"{owner_name}/offsets", owner_epoch=epoch, linger_ms=0)
        async with producer:
            await self._patience.ask(producer.init_transactions)
            async with producer.transaction():
                for key, value in changes.items():
                    await producer.send(topic, value, key=key)

    async def close(self) -> None:
        """See ``OffsetStore``."""


def _is_of(key: bytes, connector: str) -> bool:
    try:
        said = orjson.loads(key)
    except ValueError:
        return False
    return isinstance(said, list) and len(said) == 2 and said[0] == connector and isinstance(said[1], dict)


def _of_source(connector: str, offsets: Sequence[ConnectorOffset]) -> dict[bytes, bytes | None]:
    found: dict[bytes, bytes | None] = {}
    for one in offsets:
        split = one.partition.get("split")
        if set(one.partition) != {"split"} or not isinstance(split, str) or not 1 <= len(split) <= 249:
            raise BadCommand(f'the partition of a source is {{"split": "…"}}, not {str(dict(one.partition))[:200]}')
        try:
            value = None if one.offset is None else encode_position(split, one.offset)
        except InvalidConfig as error:
            raise BadCommand(str(error)) from None
        found[orjson.dumps([connector, {"split": split}])] = value
    return found
