"""
What must always hold of groups, looked at from outside: in the committed log, in what is shown, in what members hold.

The committed log is the truth: rows of it are kept as they come, with the number of the decision that each is of
(decisions of all coordinators are numbered through, in the order in which their state machines took them).
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from typing import TYPE_CHECKING, Any

from tests.simulation.groups.shard_log import Entry, Numbered
from tests.simulation.invariants import Violation

from headrace._core.group_messages import Answer as MemberAnswer
from headrace._core.group_messages import BeatAnswered, Joined, Reported, Synced
from headrace_common.core.ids import PartitionId, TopicId, TopicPartition
from headrace_common.core.murmur2 import partition_for
from headrace_coordinator.core.effects import (
    Answer,
    ClassicStanding,
    ConsumerStanding,
    JoinAnswer,
    OffsetOutcomes,
    OffsetsFound,
    Row,
    Send,
    SyncAnswer,
)
from headrace_coordinator.core.events import CommitAsked, OffsetsAsked
from headrace_coordinator.core.records import (
    ClassicRecord,
    ConsumerRecord,
    GroupRecord,
    OffsetKey,
    group_key,
    offset_key,
    read_group,
    read_key,
    read_offset,
)
from headrace_coordinator.core.values import GroupState, TopicPartitions

if TYPE_CHECKING:
    from tests.simulation.groups.consumers import Consumer
    from tests.simulation.groups.coordinators import Host, Told
    from tests.simulation.groups.world import World


class Invariants:
    """Of one world; each method raises ``Violation``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._number = 0
        self._tokens: dict[int, int] = {}
        self._latest: dict[bytes, Numbered] = {}
        """Of each key, what the committed log says."""
        self._records: dict[str, GroupRecord | None] = {}
        self._floor: dict[bytes, int] = {}
        """Of each position: the decision that was acknowledged last."""
        self._asked: dict[int, dict[bytes, int]] = {}
        self._touched: set[str] = set()
        self._decided: dict[tuple[bytes, str], tuple[int, int]] = {}
        """Of each position that was ever accepted, by its metadata: the first and the last decision (a commit may be
        repeated). The log skips what is superseded."""
        self._forgotten: dict[bytes, int] = {}
        """Of each position: the last decision to forget it."""
        self.deleted: set[str] = set()
        """Groups that were deleted, or expired, at any time."""
        self._buried: dict[str, int] = {}
        """The decision of the last time. The log may skip it, where a new group of the name took its place."""

    def next_number(self) -> int:
        """Of a decision."""
        self._number += 1
        return self._number

    def decided(self, row: Row, number: int) -> None:
        """A coordinator has accepted a position; nobody may see it yet."""
        key, value = row
        if value is None:
            self._forgotten[key] = number
        else:
            mark = (key, read_offset(value).metadata)
            self._decided[mark] = self._decided.get(mark, (number, number))[0], number

    def buried(self, group_id: str) -> None:
        """A coordinator has deleted a group, or let it expire."""
        self.deleted.add(group_id)
        self._buried[group_id] = self.next_number()

    def record(self, group_id: str) -> GroupRecord | None:
        """What the committed log says of a group."""
        return self._records.get(group_id)

    # --- the log ----------------------------------------------------------------------------------------------

    def committed(self, shard: int, entry: Entry) -> None:
        """A batch is committed: nothing takes it back."""
        token = self._tokens.get(shard, 0)
        if entry.token < token or (not entry.fence and entry.token != token):
            raise Violation("zombie-append", f"token {entry.token} after {token} in shard {shard}")
        self._tokens[shard] = entry.token
        for one in entry.rows:
            self._row(one)

    def _row(self, one: Numbered) -> None:
        key, value = one.row
        before = self._latest.get(key)
        if before is not None and one.number < before.number:
            raise Violation("old-value-back", f"{read_key(key)}: decision {one.number} after {before.number}")
        self._latest[key] = one
        parsed = read_key(key)
        if isinstance(parsed, OffsetKey):
            self._position(parsed, before, one)
        elif isinstance(parsed, str):
            old, new = self._records.get(parsed), None if value is None else read_group(value)
            self._records[parsed] = new
            if new is None:
                self.deleted.add(parsed)
            elif old is not None and before is not None and _epoch(new) < _epoch(old):
                same = not before.number < self._buried.get(parsed, 0) < one.number
                if same:
                    raise Violation("generation-fell", f"{parsed}: {_epoch(new)} after {_epoch(old)}")
            self._check_record(parsed, new)
            self.touch(parsed)

    def _position(self, key: OffsetKey, before: Numbered | None, one: Numbered) -> None:
        if one.row[1] is None or one.note is None:
            return
        event, valid = one.note
        value = read_offset(one.row[1])
        if not valid:
            raise Violation("stale-commit", f"{key}: {value} by {event.member_id!r} of generation {event.generation}")
        old = None if before is None or before.row[1] is None else read_offset(before.row[1])
        forgotten = before is not None and before.number < self._forgotten.get(one.row[0], 0) < one.number
        free = not event.member_id or value.metadata.endswith("back") or forgotten
        if old is not None and value.offset < old.offset and not free:
            text = f"{key}: {value.offset} ({value.metadata}) after {old.offset} ({old.metadata}) by {event.member_id}"
            raise Violation("position-went-back", text)

    def _check_record(self, group_id: str, record: GroupRecord | None) -> None:
        owners: dict[Any, str] = {}
        for member in () if record is None else record.members:
            if isinstance(record, ConsumerRecord):
                held: set[Any] = set(member.assigned | member.revoking)
            else:
                held = _named(member.assignment.partitions)
            for partition in held:
                if owners.setdefault(partition, member.member_id) != member.member_id:
                    raise Violation("two-owners", f"{group_id}: {partition} in {record}")

    # --- what coordinators decide and show ----------------------------------------------------------------------

    def may_commit(self, shard: int, event: CommitAsked) -> bool:
        """Whether the log, as it is now, knows the one who commits in the generation or epoch that it names."""
        record = self._records.get(event.group_id)
        if not event.member_id:
            return event.generation < 0
        if record is None:
            return False
        for member in record.members:
            if member.member_id == event.member_id:
                if isinstance(record, ClassicRecord):
                    return record.generation == event.generation
                return member.epoch == event.generation
        return False

    def asked(self, event: OffsetsAsked) -> None:
        """Somebody reads: what is acknowledged by now must be seen."""
        floors: dict[bytes, int] = {}
        for topic, numbers in event.partitions or ():
            for number in numbers:
                key = self._key(event.group_id, topic, number)
                floors[key] = self._floor.get(key, 0)
        self._asked[id(event.ref)] = floors

    def _key(self, group_id: str, topic: str, number: int) -> bytes:
        return offset_key(group_id, PartitionId(TopicId(topic.encode().ljust(16, b"-")), number))

    def shown(self, host: Host, told: Told) -> None:
        """Something becomes visible: the committed log must know it."""
        effect = told.effect
        if isinstance(effect, Answer):
            if isinstance(effect.result, OffsetOutcomes) and isinstance(told.event, CommitAsked):
                self._committed_shown(told, effect.result)
            elif isinstance(effect.result, OffsetsFound):
                self._read_shown(told, effect.result)
        elif isinstance(effect, Send) and effect.message.error is None:
            latest = self._latest.get(group_key(effect.group_id))
            gone = latest is not None and latest.row[1] is None and latest.number > told.number
            if not gone:  # else it was deleted since, and the log has that in the place of what is shown
                self._standing_shown(host, effect)

    def _committed_shown(self, told: Told, result: OffsetOutcomes) -> None:
        group_id = told.effect.group_id
        for outcome in result.outcomes:
            if outcome.error is None:
                key = self._key(group_id, outcome.topic, outcome.partition)
                latest = self._latest.get(key)
                if latest is None or latest.number < told.number:
                    raise Violation("not-durable", f"{group_id} {outcome} was acknowledged; the log has {latest}")
                self._floor[key] = max(self._floor.get(key, 0), told.number)

    def _read_shown(self, told: Told, result: OffsetsFound) -> None:
        assert isinstance(told.event, OffsetsAsked), "reads answer that"
        floors = self._asked.pop(id(told.event.ref), {})
        for found in result.offsets:
            key = self._key(told.effect.group_id, found.topic, found.partition)
            latest = self._latest.get(key)
            if found.committed is not None:
                first, number = self._decided[(key, found.committed.metadata)]
                if latest is None or latest.number < first:
                    raise Violation("read-not-durable", f"{found} is not in the log, which has {latest}")
            elif found.topic not in self._world.controller.image.topics:
                continue
            else:
                number = self._forgotten.get(key, 0)
            if number < floors.get(key, 0):
                raise Violation("stale-read", f"{found} in {told.effect.group_id}, decision {number} of {floors[key]}")

    def _standing_shown(self, host: Host, effect: Send) -> None:
        message, group_id = effect.message, effect.group_id
        record = self._records.get(group_id)
        wrong = False
        match message:
            case JoinAnswer() | SyncAnswer() | ClassicStanding():
                known = record.generation if isinstance(record, ClassicRecord) else -1
                wrong = isinstance(record, ClassicRecord | None) and known < message.generation
                if isinstance(message, SyncAnswer) and isinstance(record, ClassicRecord) and not wrong:
                    assignments = [m.assignment for m in record.members]
                    wrong = known == message.generation and message.assignment not in assignments
                    wrong = wrong and record.state is GroupState.STABLE
            case ConsumerStanding(member_epoch=epoch) if epoch > 0 and isinstance(record, ConsumerRecord):
                member = next((m for m in record.members if m.member_id == message.member_id), None)
                if member is None or member.epoch < 0:
                    wrong = record.group_epoch < epoch
                else:
                    wrong = member.epoch < epoch
                    shown = {(TopicId(t.topic_id), n) for t in message.assignment or () for n in t.partitions}
                    if member.epoch == epoch:
                        wrong = wrong or not shown <= (member.assigned | member.revoking)
            case ConsumerStanding(member_epoch=epoch) if epoch > 0:
                wrong = record is None
            case _:
                pass
        if wrong and host.number == partition_for(group_id.encode(), self._world.profile.shards):
            raise Violation("shown-not-durable", f"{group_id}: {message}; the log has {record}")

    # --- what members see and hold ------------------------------------------------------------------------------

    def told(self, consumer: Consumer, answer: MemberAnswer) -> None:
        """A member hears an answer: its generation or epoch never falls."""
        if isinstance(answer, Reported):
            member_id, epoch = answer.member_id, answer.epoch
        elif isinstance(answer, Joined):
            member_id, epoch = answer.member_id, answer.generation
        elif isinstance(answer, Synced | BeatAnswered):
            member_id, epoch = consumer.core.member_id, answer.generation
        else:
            return
        if getattr(answer, "error", None) is not None or epoch <= 0 or consumer.group_id in self.deleted:
            return
        seen = consumer.epochs_seen.get(member_id, 0)
        if epoch < seen:
            raise Violation("epoch-fell", f"{member_id} hears {answer} after {seen}")
        consumer.epochs_seen[member_id] = epoch

    def touch(self, group_id: str) -> None:
        """Something changed in a group."""
        self._touched.add(group_id)

    def check(self) -> None:
        """After each step: what the members of the touched groups hold."""
        touched, self._touched = self._touched, set()
        for group_id in sorted(touched):
            self._check_holders(group_id)

    def _check_holders(self, group_id: str) -> None:
        record = self._records.get(group_id)
        if record is None:
            return
        members = {m.member_id: m for m in record.members}
        valid: list[tuple[str, frozenset[TopicPartition]]] = []
        for consumer in self._world.consumers:
            if consumer.group_id != group_id or not consumer.up:
                continue
            core = consumer.core
            member: Any = members.get(core.member_id)
            held = core.holdings.taken
            if member is None or not held:
                continue
            if isinstance(record, ConsumerRecord):
                if core.generation == 0 or member.epoch < 0:
                    continue
                allowed = self._by_name(member.assigned | member.revoking)
                if not held <= allowed:
                    text = f"{core.member_id} holds {sorted(held - allowed)}, at {core.generation}, log {member}"
                    raise Violation("holds-anothers", text)
            elif core.generation != record.generation:
                continue
            valid.append((core.member_id, held))
        for (one, held), (other, too) in combinations(valid, 2):
            if not held.isdisjoint(too):
                raise Violation("two-holders", f"{one} and {other} hold {sorted(held & too)}; {record}")

    def _by_name(self, partitions: frozenset[PartitionId]) -> frozenset[TopicPartition]:
        names = self._world.controller.known_ids
        return frozenset(TopicPartition(names[topic_id], number) for topic_id, number in partitions)

    def last_look(self) -> None:
        """At the end: everything that was acknowledged is in the log, and a coordinator that reads it knows it."""
        for key, floor in self._floor.items():
            if self._latest[key].number < floor:
                raise Violation("lost-commit", f"{read_key(key)}: {self._latest[key]} is older than {floor}")
        latest = defaultdict(dict)
        for number, log in self._world.brokers.logs.items():
            latest[number] = dict(log.read(log.committed))
        for key, one in self._latest.items():
            parsed = read_key(key)
            group_id = parsed.group_id if isinstance(parsed, OffsetKey) else str(parsed)
            shard = partition_for(group_id.encode(), self._world.profile.shards)
            if latest[shard].get(key) != one.row[1]:
                raise Violation("log-differs", f"{parsed}: {one}")


def _epoch(record: GroupRecord) -> int:
    return record.generation if isinstance(record, ClassicRecord) else record.group_epoch


def _named(entries: tuple[TopicPartitions, ...]) -> set[Any]:
    return {(entry.topic, number) for entry in entries for number in entry.partitions}
