"""A shard with its clock, its log and the streams of its members, for tests that read as dialogues."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from headrace_common.core.errors import ErrorCode, HeadraceError
from headrace_common.core.ids import TopicId
from headrace_coordinator.core.effects import (
    Answer,
    ClassicStanding,
    CloseStream,
    ConsumerStanding,
    EnrolShard,
    GroupDescription,
    JoinAnswer,
    LeaveAnswer,
    MarkerOutcomes,
    Message,
    OffsetOutcomes,
    OffsetsFound,
    Persist,
    PersistGroup,
    Send,
    SyncAnswer,
)
from headrace_coordinator.core.events import (
    ClassicHeartbeat,
    ClassicJoined,
    ClassicSynced,
    CommitAsked,
    ConsumerHeartbeat,
    DescriptionAsked,
    Event,
    GroupDeletionAsked,
    Left,
    Loaded,
    Marker,
    MarkersAsked,
    OffsetsAsked,
    OffsetsDeletionAsked,
    OffsetToCommit,
    ShardEnrolled,
    StreamBroke,
    TopicsChanged,
    TxnCommitAsked,
    Woken,
    WorkHeartbeat,
)
from headrace_coordinator.core.records import PendingKey, read_key
from headrace_coordinator.core.room import Room
from headrace_coordinator.core.settings import GroupSettings
from headrace_coordinator.core.shard import Shard
from headrace_coordinator.core.values import (
    ClassicAssignment,
    ClassicSubscription,
    Moment,
    Sight,
    Subscription,
    TopicInfo,
    TopicPartitions,
)

G = "g"
WALL = 1_500_000_000_000
"""Before epochs go by the clock, so that dialogues count them from 1."""
TODAY = 1_795_000_000_000
"""When they do."""


def topic_id(name: str, version: int = 1) -> TopicId:
    return TopicId(name.encode().ljust(15, b"-")[:15] + bytes([version]))


def parts(held: Mapping[str, Iterable[int]], version: int = 1) -> tuple[TopicPartitions, ...]:
    return tuple(TopicPartitions(t, topic_id(t, version), tuple(sorted(n))) for t, n in sorted(held.items()) if n)


def plain(partitions: Iterable[TopicPartitions]) -> dict[str, list[int]]:
    return {entry.topic: list(entry.partitions) for entry in partitions}


def sub(*topics: str, owned: Mapping[str, Iterable[int]] | None = None, generation: int = -1) -> ClassicSubscription:
    return ClassicSubscription(topics, parts(owned or {}), generation)


def compacted(log: Mapping[bytes, bytes | None]) -> list[tuple[bytes, bytes | None]]:
    """The rows as a compacted log has them: the last value of each key, in another order than keys first came in."""
    return sorted(log.items(), key=lambda row: row[0][::-1])


class World:
    """Everything is committed and delivered at once; what was sent over a stream waits in ``inbox`` to be looked at."""

    def __init__(
        self, topics: Mapping[str, int] | None = None, *, room: Room | None = None, **settings: object
    ) -> None:
        self.room = room
        self.settings = GroupSettings(**{"group_initial_rebalance_delay_ms": 100, **settings})
        self.now_ms = 1_000_000.0
        self.wall = WALL
        self.topics = {name: TopicInfo(topic_id(name), n) for name, n in (topics or {"t": 4}).items()}
        self.log: dict[bytes, bytes | None] = {}
        self.appends = 0
        self.written: list[list[bytes]] = []
        """The keys of what was appended of groups."""
        self.inbox: dict[int, list[Message]] = defaultdict(list)
        self.closed: list[int] = []
        self.answers: dict[object, object] = {}
        self.enrolments: list[EnrolShard] = []
        """Questions to coordinators of transactions that nobody has answered yet."""
        self.refs = 0
        self.matches: dict[str, frozenset[str]] = {}
        self.decided = False
        """Rules decide what members see."""
        self.shard = self.loaded()

    # --- the shard ------------------------------------------------------------------------------------------

    @property
    def at(self) -> Moment:
        return Moment(self.now_ms, self.wall + int(self.now_ms))

    def loaded(self) -> Shard:
        shard = Shard(0, self.settings, self.room)
        self.shard = shard
        shard.replay(compacted(self.log))
        self.tell(TopicsChanged(self.at, self.topics, self.matches, self.decided))
        self.tell(Loaded(self.at))
        return shard

    def move(self) -> None:
        """Another coordinator takes the shard over; all streams are gone."""
        self.now_ms += 50_000_000  # its clock has nothing to do with the old one's
        self.wall -= 50_000_000
        self.inbox.clear()
        self.enrolments.clear()
        self.loaded()

    def tell(self, event: Event) -> None:
        revealed = False
        for effect in self.shard.handle(event):
            match effect:
                case Persist(rows=rows):
                    assert rows, "an empty append"
                    self.log.update(rows)
                    self.appends += 1
                case PersistGroup(group_id=group_id):
                    assert not revealed or not isinstance(
                        event, ClassicJoined | ClassicSynced | ConsumerHeartbeat | WorkHeartbeat | Left
                    ), f"{event} told something before it was durable"
                    rows = self.shard.group_rows(group_id)
                    self.written.append([key for key, _ in rows])
                    self.log.update(rows)
                    self.appends += 1
                case Send(stream=stream, message=message):
                    revealed = True
                    self.inbox[stream].append(message)
                case CloseStream(stream=stream):
                    self.closed.append(stream)
                case Answer(ref=ref, result=result):
                    assert ref not in self.answers
                    self.answers[ref] = result
                case EnrolShard():
                    self.enrolments.append(effect)

    def sleep(self, ms: float) -> None:
        """Let time pass; the shard is woken when it asks for it."""
        end = self.now_ms + ms
        while (due := self.shard.next_wake_ms()) is not None and due <= end:
            self.now_ms = max(self.now_ms, due)
            self.tell(Woken(self.at))
        self.now_ms = end

    def heard(self, stream: int) -> list[Message]:
        return self.inbox.pop(stream, [])

    def last(self, stream: int) -> Message:
        """The only message since somebody looked."""
        (message,) = self.heard(stream)
        return message

    def change_topics(
        self, topics: Mapping[str, int], *, version: int = 1, matches: Mapping[str, Iterable[str]] | None = None
    ) -> None:
        self.topics = {name: TopicInfo(topic_id(name, version), n) for name, n in topics.items()}
        self.matches = {p: frozenset(m) for p, m in (matches or {}).items()}
        self.tell(TopicsChanged(self.at, self.topics, self.matches, self.decided))

    def place(self, racks: Mapping[str, Iterable[str]]) -> None:
        """Replicas are in these racks: of each partition the names, one letter each."""
        known = {name: tuple(map(frozenset, of_topic)) for name, of_topic in racks.items()}
        self.topics = {name: info._replace(racks=known.get(name, ())) for name, info in self.topics.items()}
        self.tell(TopicsChanged(self.at, self.topics, self.matches, self.decided))

    # --- classic members ------------------------------------------------------------------------------------

    def join(
        self,
        stream: int,
        member_id: str = "",
        *,
        instance: str | None = None,
        subscription: ClassicSubscription | None = None,
        protocols: Sequence[str] = ("range",),
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        group: str = G,
    ) -> None:
        said = subscription or sub("t")
        self.tell(
            ClassicJoined(
                group,
                stream,
                self.at,
                member_id,
                instance,
                session_ms,
                rebalance_ms,
                tuple((name, said) for name in protocols),
                fresh_id=f"{instance or 'm'}-{stream}",
                client_id=f"client-{stream}",
                client_address="h:1",
            )
        )

    def joined(self, stream: int) -> JoinAnswer:
        message = self.last(stream)
        assert isinstance(message, JoinAnswer), message
        assert message.error is None, message.error
        return message

    def sync(
        self,
        stream: int,
        member_id: str,
        generation: int,
        shares: Mapping[str, Mapping[str, Iterable[int]]] | None = None,
        *,
        instance: str | None = None,
    ) -> None:
        assignments = {m: ClassicAssignment(parts(held)) for m, held in (shares or {}).items()}
        self.tell(ClassicSynced(G, stream, self.at, member_id, instance, generation, assignments))

    def synced(self, stream: int) -> dict[str, list[int]]:
        message = self.last(stream)
        assert isinstance(message, SyncAnswer), message
        assert message.error is None, message.error
        return plain(message.assignment.partitions)

    def beat(self, stream: int, member_id: str, generation: int, instance: str | None = None) -> ErrorCode:
        self.tell(ClassicHeartbeat(G, stream, self.at, member_id, instance, generation))
        return self.standing(stream)

    def standing(self, stream: int) -> ErrorCode:
        message = self.last(stream)
        assert isinstance(message, ClassicStanding), message
        return code(message)

    def stable(
        self, *streams: int, instances: bool = False, session_ms: int = 10_000, protocol: str = "range"
    ) -> list[str]:
        """A stable group of the members on these streams, each with the partition of ``t`` of its place; ids."""
        for stream in streams:
            instance = f"i{stream}" if instances else None
            self.join(stream, instance=instance, session_ms=session_ms, protocols=[protocol])
        self.sleep(self.settings.group_initial_rebalance_delay_ms)
        answers = [self.joined(stream) for stream in streams]
        ids = [answer.member_id for answer in answers]
        assert {answer.leader for answer in answers} == {ids[0]}
        shares = {member_id: {"t": [i]} for i, member_id in enumerate(ids)}
        for stream, member_id in list(zip(streams, ids, strict=True))[::-1]:
            self.sync(stream, member_id, answers[0].generation, shares if member_id == ids[0] else None)
        for i, stream in enumerate(streams):
            assert self.synced(stream) == {"t": [i]}
        return ids

    # --- members of the server-side protocol ----------------------------------------------------------------

    def pulse(
        self,
        stream: int,
        member_id: str,
        epoch: int,
        *,
        topics: Iterable[str] | None = None,
        pattern: str | None = None,
        matched: Iterable[str] = (),
        owned: Mapping[str, Iterable[int]] | None = None,
        instance: str | None = None,
        assignor: str | None = None,
        rebalance_ms: int | None = None,
        rack: str | None = None,
        sight: Sight | None = None,
        group: str = G,
    ) -> None:
        subscription = None
        if topics is not None or pattern is not None:
            subscription = Subscription(frozenset(topics or ()), pattern)
        self.tell(
            ConsumerHeartbeat(
                group,
                stream,
                self.at,
                member_id,
                epoch,
                instance_id=instance,
                rack=rack,
                subscription=subscription,
                matched=frozenset(matched),
                assignor=assignor,
                owned=None if owned is None else parts(owned),
                rebalance_timeout_ms=rebalance_ms,
                sight=sight,
            )
        )

    def enter(self, stream: int, member_id: str, *topics: str, **more: object) -> ConsumerStanding:
        """Join, and return the answer."""
        self.pulse(stream, member_id, 0, topics=topics or ("t",), owned={}, **more)
        return self.told(stream)

    def told(self, stream: int) -> ConsumerStanding:
        """The newest standing."""
        messages = self.heard(stream)
        assert messages, f"nothing was sent over {stream}"
        message = messages[-1]
        assert isinstance(message, ConsumerStanding), message
        return message

    # --- calls ----------------------------------------------------------------------------------------------

    def leave(
        self, stream: int, member_id: str, instance: str | None = None, *, permanently: bool = False
    ) -> ErrorCode:
        self.tell(Left(G, stream, self.at, member_id, instance, permanently))
        message = next(m for m in self.heard(stream) if isinstance(m, LeaveAnswer))
        return code(message)

    def drop(self, stream: int, group: str = G) -> None:
        self.tell(StreamBroke(group, stream, self.at))

    def commit(
        self,
        offset: int,
        member_id: str = "",
        generation: int = -1,
        *,
        instance: str | None = None,
        topic: str = "t",
        partition: int = 0,
        metadata: str = "",
        group: str = G,
    ) -> ErrorCode:
        entry = OffsetToCommit(topic, partition, offset, 3, metadata)
        result = self.ask(CommitAsked(group, self.ref(), self.at, member_id, instance, generation, (entry,)))
        assert isinstance(result, OffsetOutcomes), result
        (outcome,) = result.outcomes
        return ErrorCode.NONE if outcome.error is None else outcome.error.code

    def txn_commit(
        self,
        offset: int,
        member_id: str = "",
        generation: int = -1,
        *,
        producer: int = 7,
        epoch: int = 0,
        tid: str = "tid",
        instance: str | None = None,
        topic: str = "t",
        partition: int = 0,
        metadata: str = "",
        group: str = G,
    ) -> int:
        """Ask; the answer may come later, under the reference that is returned."""
        entry = OffsetToCommit(topic, partition, offset, 3, metadata)
        ref = self.ref()
        self.tell(TxnCommitAsked(group, ref, self.at, member_id, instance, generation, (entry,), tid, producer, epoch))
        return ref

    def enrol(self, error: HeadraceError | None = None) -> EnrolShard:
        """The coordinator of the transaction answers the oldest question."""
        asked = self.enrolments.pop(0)
        self.tell(ShardEnrolled(asked.number, self.at, error))
        return asked

    def outcome(self, ref: int) -> ErrorCode | None:
        """What became of a commit of one partition; None: it is not answered."""
        if ref not in self.answers:
            return None
        result = self.answers[ref]
        assert isinstance(result, OffsetOutcomes), result
        (outcome,) = result.outcomes
        return ErrorCode.NONE if outcome.error is None else outcome.error.code

    def pend(self, offset: int, **said: object) -> None:
        """A position of a transaction that is taken, with its enrolment if it is the first."""
        ref = self.txn_commit(offset, **said)  # fields
        if self.outcome(ref) is None:
            self.enrol()
        assert self.outcome(ref) is ErrorCode.NONE, self.answers[ref]

    def mark(self, *, commit: bool, producer: int = 7, epoch: int = 1) -> ErrorCode:
        """A transaction has ended."""
        result = self.ask(MarkersAsked(self.ref(), self.at, (Marker(producer, epoch, commit),)))
        assert isinstance(result, MarkerOutcomes), result
        (error,) = result.outcomes
        return ErrorCode.NONE if error is None else error.code

    def stable_offset(self, topic: str = "t", partition: int = 0, group: str = G) -> int | ErrorCode | None:
        """What a reader that requires stable offsets is told."""
        asked = OffsetsAsked(group, self.ref(), self.at, partitions=((topic, (partition,)),), require_stable=True)
        result = self.ask(asked)
        assert isinstance(result, OffsetsFound), result
        (found,) = result.offsets
        if found.error is not None:
            assert found.committed is None
            return found.error.code
        return None if found.committed is None else found.committed.offset

    def committed(self, topic: str = "t", partition: int = 0, group: str = G) -> int | None:
        result = self.ask(OffsetsAsked(group, self.ref(), self.at, partitions=((topic, (partition,)),)))
        assert isinstance(result, OffsetsFound), result
        (found,) = result.offsets
        return None if found.committed is None else found.committed.offset

    def fetch_as(self, member_id: str, epoch: int | None) -> ErrorCode:
        result = self.ask(OffsetsAsked(G, self.ref(), self.at, member_id, epoch))
        return result.code if isinstance(result, HeadraceError) else ErrorCode.NONE

    def delete_offsets(self, topic: str, *numbers: int) -> object:
        return self.ask(OffsetsDeletionAsked(G, self.ref(), self.at, ((topic, numbers),)))

    def delete_group(self) -> ErrorCode:
        result = self.ask(GroupDeletionAsked(G, self.ref(), self.at))
        return result.code if isinstance(result, HeadraceError) else ErrorCode.NONE

    def description(self) -> GroupDescription:
        result = self.ask(DescriptionAsked(G, self.ref(), self.at))
        assert isinstance(result, GroupDescription), result
        return result

    def ref(self) -> int:
        self.refs += 1
        return self.refs

    def ask(self, event: Event) -> object:
        self.tell(event)
        return self.answers[self.refs]


def pending_keys(log: Mapping[bytes, bytes | None]) -> set[PendingKey]:
    """What a log has of transactions that are not decided."""
    keys = [read_key(key) for key, value in log.items() if value is not None]
    return {key for key in keys if isinstance(key, PendingKey)}


def code(message: Message) -> ErrorCode:
    return ErrorCode.NONE if message.error is None else message.error.code
