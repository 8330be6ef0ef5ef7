"""
Changes the positions of a connector that is stopped: of a source in the offset topic, of a sink in its group, and where
a sink's target keeps them (``POSITIONS``) there too.

The group comes first: it takes nothing while it has members, and it says what becomes of offsets beyond an end. Killed
between the two, the target counts, which has the old positions; of a partition that it does not know the group does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.records import TopicPartition
from headrace_common.core.errors import HeadraceError, InvalidConfig, NonEmptyGroup
from headrace_connect_worker.core.records import Work
from headrace_connect_worker.core.refusals import BadCommand, Conflict, NotWritten
from headrace_connect_worker.core.sink_offsets import OFFSET, PARTITION, TOPIC, positions_of
from headrace_connect_worker.ports import Config, ConnectorOffset, Hosts, HostUnavailable, OffsetStore

POSITIONS = "positions"
"""The guarantee of sinks whose target keeps the positions."""


class Repositioning:
    """See the module's text."""

    def __init__(self, offsets: OffsetStore, hosts: Hosts) -> None:
        self._offsets = offsets
        self._hosts = hosts

    async def change(
        self, work: Work, config: Config, generation: int, offsets: Sequence[ConnectorOffset] | None
    ) -> None:
        """
        Args:
            generation: see ``OffsetStore.change``.
            offsets: None: forget all.

        Raises:
            BadCommand: an offset cannot be one, or the target cannot do it: nothing was changed.
            Conflict: tasks are not all gone yet.
            NotWritten: nobody knows whether they were changed.
        """
        name = work.name
        try:
            if work.kind == "sink" and work.guarantee == POSITIONS:
                await self._change_target(name, config, generation, offsets)
            else:
                await self._offsets.change(name, work.kind, config, generation, offsets)
        except NonEmptyGroup as error:
            raise Conflict(f"{error}: tasks of {name} have not all ended yet; ask again") from error
        except (HeadraceError, HostUnavailable) as error:
            raise NotWritten(f"the offsets of {name} may not be changed: {error}", unknown=True) from error

    async def _change_target(
        self, name: str, config: Config, generation: int, offsets: Sequence[ConnectorOffset] | None
    ) -> None:
        before = await self._read(name, config)
        await self._offsets.change(name, "sink", config, generation, offsets)
        if offsets is None:
            wanted: dict[TopicPartition, int | None] = dict.fromkeys(before)
        else:
            now = await self._read(name, config)
            wanted = {
                at: None if position is None else now.get(at, position)
                for at, position in positions_of((one.partition, one.offset) for one in offsets).items()
            }
        try:
            await self._hosts.rewind(config, wanted, forget_others=offsets is None)
        except InvalidConfig as error:
            await self._put_back(name, config, generation, {**dict.fromkeys(wanted), **before})
            raise BadCommand(str(error)) from error

    async def _read(self, name: str, config: Config) -> Mapping[TopicPartition, int | None]:
        found = await self._offsets.read(name, "sink", config)
        return positions_of((one.partition, one.offset) for one in found)

    async def _put_back(
        self, name: str, config: Config, generation: int, positions: Mapping[TopicPartition, int | None]
    ) -> None:
        if not positions:
            return
        offsets = [
            ConnectorOffset({TOPIC: at.topic, PARTITION: at.partition}, None if to is None else {OFFSET: to})
            for at, to in positions.items()
        ]
        await self._offsets.change(name, "sink", config, generation, offsets)
