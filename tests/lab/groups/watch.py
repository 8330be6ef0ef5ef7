"""
What must always hold of groups in a cluster of the lab: in the committed log, in what coordinators show, in what
members hold.

The committed log is the truth (``tests.lab.shards``): rows of it are kept as they come, with the number of the decision
that each is of. Decisions of all coordinators are numbered through, in the order in which their state machines took
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any
from unittest.mock import patch

from tests.lab.groups.seen import Seen
from tests.lab.shards import CommittedShards, Entry

from headrace_common.core.ids import PartitionId, TopicId, TopicPartition
from headrace_common.core.image import ShardKey, ShardKind
from headrace_common.core.murmur2 import partition_for
from headrace_coordinator.core.effects import (
    Answer,
    ClassicStanding,
    ConsumerStanding,
    JoinAnswer,
    OffsetOutcomes,
    OffsetsFound,
    Persist,
    PersistGroup,
    Row,
    Send,
    SyncAnswer,
)
from headrace_coordinator.core.events import CommitAsked, Event, OffsetsAsked, TopicsChanged
from headrace_coordinator.core.floors import DELETED
from headrace_coordinator.core.records import (
    ClassicRecord,
    ConsumerRecord,
    OffsetKey,
    WorkRecord,
    group_key,
    offset_key,
    read_group,
    read_key,
    read_offset,
)
from headrace_coordinator.core.shard import Shard
from headrace_coordinator.core.values import GroupState, TopicPartitions, Topics
from headrace_coordinator.engine.host import Host
from headrace_coordinator.engine.outbox import Outbox
from headrace_coordinator.engine.shard_host import ShardHost

Position = tuple[str, TopicPartition]
"""Of a group: names, for a topic that is made anew is nothing else here."""


class Numbered(tuple[bytes, bytes | None]):
    """A row, and when the state machine that wrote it decided it."""

    number: int
    event: Event | None
    valid: bool

    def __new__(cls, row: Row, number: int, event: Event | None = None, *, valid: bool = True) -> Numbered:
        self = super().__new__(cls, row)
        self.number, self.event, self.valid = number, event, valid
        return self


@dataclass(frozen=True, slots=True)
class Told:
    """An effect on its way out, and what it came of: looked at when it is shown."""

    effect: object
    event: Event
    number: int
    topics: Topics
    """As the state machine knew them."""


@dataclass(eq=False)
class Watch:
    """Of one cluster; made before it starts."""

    tell: Callable[[str], None]
    """Called with what does not hold."""
    shards: int
    members: Seen = field(default_factory=Seen)
    deleted: set[str] = field(default_factory=set)
    """Groups that were deleted, or expired, at any time."""
    topics: dict[str, TopicId] = field(default_factory=dict)
    """As coordinators have heard of them."""
    names: dict[TopicId, str] = field(default_factory=dict)
    _number: int = 0
    _tokens: dict[int, int] = field(default_factory=dict)
    _latest: dict[bytes, Numbered] = field(default_factory=dict)
    """Of each key, what the committed log says."""
    _records: dict[str, Recorded | None] = field(default_factory=dict)
    _floor: dict[bytes, int] = field(default_factory=dict)
    """Of each position: the decision that was acknowledged last."""
    _asked: dict[int, tuple[object, dict[bytes, int]]] = field(default_factory=dict)
    """The floors when somebody asked, by the identity of what is to be answered."""
    _decided: dict[tuple[bytes, int, str], tuple[int, int]] = field(default_factory=dict)
    """Of each position that was ever accepted, by what is read of it: the first and the last decision."""
    _forgotten: dict[bytes, int] = field(default_factory=dict)
    """Of each position: the last decision to forget it."""
    _epochs: dict[str, int] = field(default_factory=dict)
    """The highest of each group of the server-side protocol."""
    _buried: dict[str, int] = field(default_factory=dict)
    """The decision of the last time. The log may skip it, where a new group of the name took its place."""
    _event: Event | None = None
    """What is handled."""
    _about: dict[int, Told] = field(default_factory=dict)
    _rows: dict[Outbox[Any], dict[bytes, Numbered]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.members.changed = self.check_holders
        self.members.tell = self.tell
        self.members.deleted = self.deleted
        self.log = CommittedShards(self._committed)

    def record(self, group_id: str) -> Recorded | None:
        """What the committed log says of a group."""
        return self._records.get(group_id)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While this runs all nodes and consumers of this process are looked at."""
        handled, asked, shown = Host._handle, Host._take_in, ShardHost._show
        taken, begun = Outbox.take, Outbox.begin

        def _handle(host: Host[Any, Any, Any], event: Any) -> None:
            self._event = event if isinstance(host, ShardHost) else None
            if isinstance(event, TopicsChanged):
                self._learn(event.topics)
            handled(host, event)
            self._event = None

        def _take_in(host: Host[Any, Any, Any], event: Any) -> None:
            if isinstance(event, OffsetsAsked):
                self._reads(event)
            asked(host, event)

        def _show(host: ShardHost, effect: Any) -> None:
            told = self._about.pop(id(effect), None)
            if told is not None:
                self._shown(host, told)
            shown(host, effect)

        def take(outbox: Outbox[Any], effects: Any, *, proof: bool) -> None:
            effects = list(effects)
            if self._event is not None:
                self._decide(outbox, self._event, effects)
            taken(outbox, effects, proof=proof)

        def begin(outbox: Outbox[Any]) -> list[Row]:
            return [self._numbered(outbox, row) for row in begun(outbox)]

        with ExitStack() as patches:
            patches.enter_context(self.log.watching())
            patches.enter_context(self.members.watching())
            patches.enter_context(patch.object(Host, "_handle", _handle))
            patches.enter_context(patch.object(Host, "_take_in", _take_in))
            patches.enter_context(patch.object(ShardHost, "_show", _show))
            patches.enter_context(patch.object(Outbox, "take", take))
            patches.enter_context(patch.object(Outbox, "begin", begin))
            yield

    def _learn(self, topics: Topics) -> None:
        self.topics |= {name: info.topic_id for name, info in topics.items()}
        self.names |= {info.topic_id: name for name, info in topics.items()}

    # --- what coordinators decide ---------------------------------------------------------------------------------

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _decide(self, outbox: Outbox[Any], event: Event, effects: list[Any]) -> None:
        """Number what was decided."""
        number, rows = self._next(), self._rows.setdefault(outbox, {})
        for effect in effects:
            if isinstance(effect, PersistGroup):
                if _group_in(_shard_of(outbox).group_record(effect.group_id)[1]) is None:
                    self.deleted.add(effect.group_id)
                    self._buried[effect.group_id] = self._next()
            elif isinstance(effect, Persist):
                valid = self._may_commit(event) if isinstance(event, CommitAsked) else True
                for row in effect.rows:
                    self._note(row, number)
                    rows[row[0]] = Numbered(row, number, event, valid=valid)
            else:
                topics = _shard_of(outbox)._view.topics
                self._about[id(effect)] = Told(effect, event, number, topics)

    def _note(self, row: Row, number: int) -> None:
        """A position was accepted; nobody may see it yet."""
        key, value = row
        if value is None:
            self._forgotten[key] = number
        elif isinstance(read_key(key), OffsetKey):
            said = read_offset(value)
            what = (key, said.offset, said.metadata)
            self._decided[what] = self._decided.get(what, (number, number))[0], number

    def _numbered(self, outbox: Outbox[Any], row: Row) -> Row:
        """On its way to the log. A group's record is decided now."""
        rows = self._rows.get(outbox)
        if rows is None:
            return row
        found = rows.get(row[0])
        return found if found is not None and found[1] == row[1] else Numbered(row, self._next())

    def _may_commit(self, event: CommitAsked) -> bool:
        """Whether the log, as it is now, knows the one who commits in the generation or epoch that it names."""
        record = self._records.get(event.group_id)
        if not event.member_id:
            return event.generation < 0
        for member in () if record is None else record.members:
            if member.member_id == event.member_id:
                known = record.generation if isinstance(record, ClassicRecord) else member.epoch  # type: ignore[union-attr]
                return known == event.generation
        return False

    # --- the log --------------------------------------------------------------------------------------------------

    def _committed(self, shard: ShardKey, entry: Entry) -> None:
        """A batch is committed: nothing takes it back."""
        if shard.kind is not ShardKind.GROUPS:
            return
        token = self._tokens.get(shard.number, 0)
        if entry.token < token or (not entry.fence and entry.token != token):
            self.tell(f"zombie-append: token {entry.token} after {token} in shard {shard.number}")
        self._tokens[shard.number] = max(token, entry.token)
        for row in entry.rows:
            assert isinstance(row, Numbered), "all that is written went through an outbox"
            self._row(row)

    def _row(self, one: Numbered) -> None:
        key, value = one
        before = self._latest.get(key)
        if before is not None and one.number < before.number:
            self.tell(f"old-value-back: {read_key(key)}: decision {one.number} after {before.number}")
        self._latest[key] = one
        parsed = read_key(key)
        if isinstance(parsed, OffsetKey):
            self._position(parsed, before, one)
        elif isinstance(parsed, str):
            old, new = self._records.get(parsed), _group_in(value)
            self._records[parsed] = new
            self._check_epoch(parsed, value)
            if new is None:
                self.deleted.add(parsed)
            elif old is not None and before is not None and epoch_of(new) < epoch_of(old):
                anew = before.number < self._buried.get(parsed, 0) < one.number
                if not anew:
                    self.tell(f"generation-fell: {parsed}: {epoch_of(new)} after {epoch_of(old)}")
            self._check_record(parsed, new)
            self.check_holders(parsed)

    def _position(self, key: OffsetKey, before: Numbered | None, one: Numbered) -> None:
        event = one.event
        if one[1] is None or not isinstance(event, CommitAsked):
            return
        value = read_offset(one[1])
        if not one.valid:
            self.tell(f"stale-commit: {key}: {value} by {event.member_id!r} of generation {event.generation}")
        old = None if before is None or before[1] is None else read_offset(before[1])
        forgotten = before is not None and before.number < self._forgotten.get(one[0], 0) < one.number
        free = not event.member_id or value.metadata.endswith("back") or forgotten
        if old is not None and value.offset < old.offset and not free:
            text = f"{value.offset} ({value.metadata}) after {old.offset} ({old.metadata}) by {event.member_id}"
            self.tell(f"position-went-back: {key}: {text}")

    def _check_epoch(self, group_id: str, value: bytes | None) -> None:
        """Of the server-side protocol: it never falls, not where the group was deleted either."""
        record = None if value is None else read_group(value)
        if isinstance(record, ConsumerRecord):
            highest = self._epochs.get(group_id, 0)
            if record.group_epoch < highest:
                self.tell(f"epoch-fell: {group_id}: {record.group_epoch} after {highest}")
            self._epochs[group_id] = max(highest, record.group_epoch)

    def _check_record(self, group_id: str, record: Recorded | None) -> None:
        owners: dict[Any, str] = {}
        for member in () if record is None else record.members:
            held: set[Any]
            if isinstance(record, ConsumerRecord):
                held = set(member.assigned | member.revoking)  # type: ignore[union-attr]
            else:
                held = _named(member.assignment.partitions)  # type: ignore[union-attr]
            for partition in held:
                if owners.setdefault(partition, member.member_id) != member.member_id:
                    self.tell(f"two-owners: {group_id}: {partition} in {record}")

    # --- what is shown --------------------------------------------------------------------------------------------

    def _reads(self, event: OffsetsAsked) -> None:
        """Somebody reads: what is acknowledged by now must be seen."""
        floors: dict[bytes, int] = {}
        for topic, numbers in event.partitions or ():
            for number in numbers:
                key = self._key(event.group_id, topic, number)
                if key is not None:
                    floors[key] = self._floor.get(key, 0)
        self._asked[id(event.ref)] = event.ref, floors

    def _key(self, group_id: str, topic: str, number: int) -> bytes | None:
        topic_id = self.topics.get(topic)
        return None if topic_id is None else offset_key(group_id, PartitionId(topic_id, number))

    def _shown(self, host: ShardHost, told: Told) -> None:
        """Something becomes visible: the committed log must know it."""
        effect = told.effect
        if isinstance(effect, Answer):
            if isinstance(effect.result, OffsetOutcomes) and isinstance(told.event, CommitAsked):
                self._commit_shown(effect.group_id, told.number, effect.result)
            elif isinstance(effect.result, OffsetsFound) and isinstance(told.event, OffsetsAsked):
                self._read_shown(told.event, told.topics, effect.result)
        elif isinstance(effect, Send) and effect.message.error is None:
            latest = self._latest.get(group_key(effect.group_id))
            gone = latest is not None and _group_in(latest[1]) is None and latest.number > told.number
            if not gone:  # else it was deleted since, and the log has that in the place of what is shown
                self._standing_shown(host, effect)

    def _commit_shown(self, group_id: str, number: int, result: OffsetOutcomes) -> None:
        for outcome in result.outcomes:
            key = self._key(group_id, outcome.topic, outcome.partition)
            if outcome.error is not None or key is None:
                continue
            latest = self._latest.get(key)
            if latest is None or latest.number < number:
                self.tell(f"not-durable: {group_id} {outcome} was acknowledged; the log has {latest}")
            self._floor[key] = max(self._floor.get(key, 0), number)

    def _read_shown(self, event: OffsetsAsked, topics: Topics, result: OffsetsFound) -> None:
        _, floors = self._asked.pop(id(event.ref), (None, {}))
        for found in result.offsets:
            key = self._key(event.group_id, found.topic, found.partition)
            if key is None or found.error is not None:
                continue
            latest = self._latest.get(key)
            if found.committed is not None:
                first, number = self._decided[key, found.committed.offset, found.committed.metadata]
                if latest is None or latest.number < first:
                    self.tell(f"read-not-durable: {found} is not in the log, which has {latest}")
            elif found.topic not in topics:
                continue
            else:
                number = self._forgotten.get(key, 0)
            if number < floors.get(key, 0):
                self.tell(f"stale-read: {found} in {event.group_id}, decision {number} of {floors[key]}")

    def _standing_shown(self, host: ShardHost, effect: Send) -> None:
        message, group_id = effect.message, effect.group_id
        record = self._records.get(group_id)
        wrong = False
        match message:
            case JoinAnswer() | SyncAnswer() | ClassicStanding():
                known = record.generation if isinstance(record, ClassicRecord) else -1
                wrong = (record is None or isinstance(record, ClassicRecord)) and known < message.generation
                if isinstance(message, SyncAnswer) and isinstance(record, ClassicRecord) and not wrong:
                    given = [m.assignment for m in record.members]
                    wrong = known == message.generation and message.assignment not in given
                    wrong = wrong and record.state is GroupState.STABLE
            case ConsumerStanding(member_epoch=epoch) if epoch > 0 and isinstance(record, ConsumerRecord):
                wrong = _is_ahead(message, record)
            case ConsumerStanding(member_epoch=epoch) if epoch > 0:
                wrong = record is None
            case _:
                pass
        if wrong and host.number == partition_for(group_id.encode(), self.shards):
            self.tell(f"shown-not-durable: {group_id}: {message}; the log has {record}")

    # --- what members hold ----------------------------------------------------------------------------------------

    def check_holders(self, group_id: str) -> None:
        """Something changed in a group."""
        record = self._records.get(group_id)
        if record is None:
            return
        known = {m.member_id: m for m in record.members}
        valid: list[tuple[str, frozenset[TopicPartition]]] = []
        for one in self.members.alive(group_id):
            core = one.group.core
            member: Any = known.get(core.member_id)
            held = one.taken
            if member is None or not held:
                continue
            if isinstance(record, ConsumerRecord):
                if core.generation == 0 or member.epoch < 0:
                    continue
                ids = member.assigned | member.revoking
                allowed = {TopicPartition(self.names[topic_id], number) for topic_id, number in ids}
                if not held <= allowed:
                    text = f"{core.member_id} holds {sorted(held - allowed)}, at {core.generation}, log {member}"
                    self.tell(f"holds-anothers: {text}")
            elif core.generation != record.generation:
                continue
            valid.append((core.member_id, held))
        for (one_id, held), (other_id, too) in combinations(valid, 2):
            if not held.isdisjoint(too):
                self.tell(f"two-holders: {one_id} and {other_id} hold {sorted(held & too)}; {record}")

    def last_look(self) -> None:
        """At the end: everything that was acknowledged is in the log, and a coordinator that reads it knows it."""
        for key, floor in self._floor.items():
            if self._latest[key].number < floor:
                self.tell(f"lost-commit: {read_key(key)}: {self._latest[key]} is older than {floor}")
        for key, one in self._latest.items():
            parsed = read_key(key)
            group_id = parsed.group_id if isinstance(parsed, OffsetKey) else str(parsed)
            shard = ShardKey(ShardKind.GROUPS, partition_for(group_id.encode(), self.shards))
            if self.log.latest[shard].get(key) != one[1]:
                self.tell(f"log-differs: {parsed}: {one}")


Recorded = ClassicRecord | ConsumerRecord
"""Of the groups in this world."""


def _shard_of(outbox: Outbox[Any]) -> Shard:
    shard = outbox._group_rows.__self__  # type: ignore[attr-defined]  # it is a method
    assert isinstance(shard, Shard)
    return shard


def _group_in(value: bytes | None) -> ClassicRecord | ConsumerRecord | None:
    """The group of a record; None: there is none, or only the epoch of one that was deleted."""
    record = None if value is None else read_group(value)
    assert not isinstance(record, WorkRecord), "no work is shared here"
    return None if record is None or record.empty_since_ms == DELETED else record


def epoch_of(record: Recorded) -> int:
    """Its generation, or the group's epoch."""
    return record.generation if isinstance(record, ClassicRecord) else record.group_epoch


def _named(entries: tuple[TopicPartitions, ...]) -> set[Any]:
    return {(entry.topic, number) for entry in entries for number in entry.partitions}


def _is_ahead(message: ConsumerStanding, record: ConsumerRecord) -> bool:
    """Whether a member is told more than the log says."""
    member = next((m for m in record.members if m.member_id == message.member_id), None)
    if member is None or member.epoch < 0:
        return record.group_epoch < message.member_epoch
    if member.epoch < message.member_epoch:
        return True
    shown = {(TopicId(t.topic_id), n) for t in message.assignment or () for n in t.partitions}
    return member.epoch == message.member_epoch and not shown <= (member.assigned | member.revoking)
