"""A cluster as a reset sees it, in memory; any of its calls can fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.records import TopicPartition
from headrace_common.core.errors import NetworkFailed
from headrace_streams.core.outputs import Output
from headrace_streams.core.state.changelog import CONTROL, Progress
from headrace_streams.core.state.store import Changes
from headrace_streams.plan.known import Known
from headrace_streams.ports import InternalTopic, ListedTopic, Positions, Stored, TopicFacts

FOREVER = {"retention.ms": "-1", "retention.bytes": "-1"}
COMPACTED = FOREVER | {"cleanup.policy": "compact"}


class MemoryUpkeep:
    """Satisfies ``Upkeep``, of one app."""

    def __init__(self) -> None:
        self.listed: dict[str, ListedTopic] = {}
        self.groups_: dict[str, int] = {}
        self.work: dict[str, bool] = {}
        """Groups that share named work, and whether there are event times beside their positions."""
        self.known_: dict[str, Known] = {}
        """What groups say of their apps."""
        self.positions: dict[TopicPartition, int] = {}
        self.logs: dict[TopicPartition, Changes] = {}
        self.written: set[str] = set()
        """Other topics with records."""
        self.calls: list[str] = []
        self.fails_at = -1
        """The number of the call that does nothing, and raises."""
        self.joins_at = ""
        """A worker joins after this call."""
        self.writes_at = ""
        """A worker has made a commit by the time of this call."""
        self._ids = 0
        self._pending: list[tuple[TopicPartition, Changes]] | None = None
        self._held: Positions = {}
        self._sent: list[Output] = []
        self.outputs: list[Output] = []
        """Of committed transactions."""

    def add(self, topic: str, partitions: int = 1, configs: Mapping[str, str] = FOREVER) -> None:
        """A topic that is there."""
        self._ids += 1
        self.listed[topic] = ListedTopic(TopicFacts(str(self._ids), partitions), configs)

    def rows(self, partition: TopicPartition) -> dict[bytes, bytes]:
        """The newest rows of a changelog's partition."""
        return {key: value for key, value in dict(self.logs.get(partition, [])).items() if value is not None}

    def _call(self, call: str) -> None:
        if len(self.calls) == self.fails_at:
            self.fails_at = -1
            raise NetworkFailed(f"cut off at {call}")
        self.calls.append(call)
        if call == self.joins_at:
            self.groups_["a"] = 1
        if call == self.writes_at:
            for rows in self.logs.values():
                rows.append(rows[-1])

    async def topics(self) -> dict[str, ListedTopic]:
        return dict(self.listed)

    async def groups(self) -> dict[str, int]:
        return dict(self.groups_)

    async def work_groups(self) -> list[str]:
        return list(self.work)

    async def has_event_times(self, group: str) -> bool:
        return self.work[group]

    async def members(self, app: str) -> int:
        return self.groups_.get(app, 0)

    async def known(self, app: str) -> Known:
        return self.known_.get(app, Known(app, members=self.groups_.get(app, 0)))

    async def committed(self, app: str) -> dict[TopicPartition, int]:
        return dict(self.positions)

    async def targets(
        self, app: str, topics: Sequence[str], to: str | Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        raise NotImplementedError

    async def progress(self, changelogs: Sequence[TopicPartition]) -> dict[TopicPartition, Progress]:
        found = {tp: self.rows(tp).get(CONTROL) for tp in changelogs}
        return {tp: Progress.decode(value) for tp, value in found.items() if value is not None}

    async def is_empty(self, topic: str) -> bool:
        return topic not in self.written

    async def make(self, topics: Sequence[InternalTopic]) -> None:
        self._call(f"make {' '.join(topic.name for topic in topics)}")
        for topic in topics:
            if topic.name not in self.listed:
                self.add(topic.name, topic.partitions, COMPACTED if topic.compacted else FOREVER)

    async def delete(self, topic: str) -> None:
        self._call(f"delete {topic}")
        self.listed.pop(topic, None)
        self.logs = {tp: rows for tp, rows in self.logs.items() if tp.topic != topic}
        self.positions = {tp: at for tp, at in self.positions.items() if tp.topic != topic}

    async def forget(self, app: str, partitions: Sequence[TopicPartition]) -> None:
        self._call("forget")
        for tp in partitions:
            self.positions.pop(tp, None)

    async def begin(self, app: str, positions: Positions) -> None:
        self._call("begin")
        self._pending = []
        self._held = positions

    async def take_over(self, partition: TopicPartition) -> None:
        self._call(f"take over {partition}")

    async def read(self, partition: TopicPartition, prefix: bytes) -> Stored:
        found = self.rows(partition)
        self._call(f"read {partition}")
        keys = [key for key in found if key.startswith(prefix)]
        return Stored(keys, Progress.decode(found[CONTROL]), len(self.logs[partition]))

    async def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: len(self.logs[tp]) for tp in partitions}

    async def append(self, partition: TopicPartition, rows: Changes) -> None:
        self._call(f"append {partition}")
        assert self._pending is not None
        assert partition.topic in self.listed
        self._pending.append((partition, rows))

    async def send(self, output: Output) -> None:
        self._call(f"send {output.topic}")
        self._sent.append(output)

    async def commit(self) -> None:
        self._call("commit")
        assert self._pending is not None
        for partition, rows in self._pending:
            self.logs.setdefault(partition, []).extend(rows)
        self.positions |= self._held
        self.outputs += self._sent
        self._pending, self._sent = None, []

    async def abort(self) -> None:
        self._pending, self._sent = None, []
