"""
Keeps a shard of groups: what members and administrators ask goes to its state machine, answers go over streams.

Heartbeats and descriptions are shown from memory while this node surely has the shard; committed offsets, and telling
a member that it is out, always wait for a proof. So do the ends of transactions: who acknowledges one has nothing
pending of it, and no later owner has. See ``host`` for the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from headrace_common.core.access.control import EVERYTHING, Rights
from headrace_common.core.access.rows import Mode
from headrace_common.core.errors import Denied, Fenced, HeadraceError, NotCoordinator
from headrace_common.core.image import ShardKey, ShardKind
from headrace_common.runtime.failpoints import failpoint
from headrace_coordinator.core.effects import (
    Answer,
    CloseStream,
    ConsumerStanding,
    EnrolShard,
    GroupListing,
    JoinAnswer,
    Persist,
    Result,
    Send,
    WorkStanding,
)
from headrace_coordinator.core.events import (
    AdminEvent,
    ClassicHeartbeat,
    ClassicJoined,
    ClassicSynced,
    CommitAsked,
    ConsumerHeartbeat,
    Event,
    GroupDeletionAsked,
    Left,
    Loaded,
    MarkersAsked,
    MemberEvent,
    OffsetsAsked,
    OffsetsDeletionAsked,
    ShardEnrolled,
    StreamBroke,
    TopicsChanged,
    TxnCommitAsked,
    Woken,
    WorkHeartbeat,
)
from headrace_coordinator.core.shard import Shard
from headrace_coordinator.core.values import Moment, Topics
from headrace_coordinator.engine.enrolling import ask_to_enrol
from headrace_coordinator.engine.host import Host, Phase
from headrace_coordinator.engine.host_ports import HostPorts
from headrace_coordinator.engine.outbox import Outbox, Visible
from headrace_coordinator.engine.streams import MemberStream

PROVED: Final = (
    OffsetsAsked,
    CommitAsked,
    TxnCommitAsked,
    ShardEnrolled,
    MarkersAsked,
    OffsetsDeletionAsked,
    GroupDeletionAsked,
)
"""Events whose answers, refusals too, must be current."""
MEMBER_REQUESTS: Final = (ConsumerHeartbeat, WorkHeartbeat, ClassicHeartbeat, ClassicJoined, ClassicSynced, Left)


class ShardHost(Host[Shard, Event, Visible]):
    """Of one shard of groups in one epoch; ``start`` it once, ``stop`` it once."""

    def __init__(self, number: int, epoch: int, ports: HostPorts, topics: Topics) -> None:
        self._topics = topics
        self._streams: dict[int, MemberStream] = {}
        self._enrolling: set[asyncio.Task[None]] = set()
        super().__init__(ShardKey(ShardKind.GROUPS, number), epoch, ports)

    # --- called by the coordinator ----------------------------------------------------------------------------

    def topics_changed(self, topics: Topics) -> None:
        self._topics = topics
        if self.phase is Phase.SERVING:
            self._take_in(self._topics_event)

    def access_changed(self, topics: Topics) -> None:
        """Who may do what is decided by other rules: streams end whose callers may not read their groups any more."""
        for stream in list(self._streams.values()):
            try:
                stream.check()
            except Denied as error:
                stream.fail(error)
        self.topics_changed(topics)

    def open_stream(self, number: int, group_id: str, address: str, rights: Rights = EVERYTHING) -> MemberStream:
        """
        A stream for one member of a group of this shard.

        Raises:
            HeadraceError: as ``check_serving``.
        """
        self.check_serving()
        stream = self._streams[number] = MemberStream(number, group_id, address, rights)
        return stream

    def close_stream(self, stream: MemberStream) -> None:
        """The call has ended: nothing can be sent over it any more."""
        if self._streams.pop(stream.number, None) is not None:
            stream.close()

    def stream_broke(self, stream: MemberStream) -> None:
        """No more requests will come over it. Once per stream."""
        if self._streams.get(stream.number) is stream:
            self._take_in(StreamBroke(stream.group_id, stream.number, self._ports.moment()))

    def post(self, event: MemberEvent) -> None:
        """
        Something a member said; what it leads to comes over its stream.

        Raises:
            NotCoordinator: the stream was of another host, or of another time.
            HeadraceError: as ``check_serving``.
        """
        self.check_serving()
        stream = self._streams.get(event.stream)
        if stream is None:
            raise NotCoordinator(f"shard {self.number} has moved meanwhile; find the group's coordinator again")
        stream.taken()
        self._take_in(event)

    async def ask(self, make: Callable[[object], AdminEvent]) -> Result:
        """
        The answer to the event that ``make`` makes of a reference; durable, and current when the call began.

        Raises:
            CoordinatorNotAvailable: the log did not confirm it in time; the outcome is unknown.
            HeadraceError: as ``check_serving``, or what the group answers.
        """
        result: Result = await self._answer_to(make, lambda _: self._unconfirmed())
        return result

    # --- reading beside the events ----------------------------------------------------------------------------

    def list_groups(self) -> list[GroupListing]:
        """All groups as they are in memory; they may be ahead of the log, or out of date by a moment."""
        return self._core.list_groups() if self.phase is Phase.SERVING else []

    def peek(self, event: OffsetsAsked) -> Result | HeadraceError:
        """What a read finds in memory, unproved: for measuring."""
        (answer,) = self._core.handle(event)
        assert isinstance(answer, Answer), "reading has no other effect"
        return answer.result

    # --- what groups add to a host ----------------------------------------------------------------------------

    def _new_core(self) -> Shard:
        return Shard(self.number, self._ports.settings, self._ports.room)

    def _new_outbox(self) -> Outbox[Visible]:
        return Outbox(self._core.group_rows, self._show)

    def _prepare(self, core: Shard) -> Shard:
        core.patterns()  # reads the records
        return core

    def _first_events(self) -> Iterable[Event]:
        return self._topics_event(), Loaded(self._ports.moment())

    def _make_wake(self, at: Moment) -> Event:
        return Woken(at)

    def _needs_proof(self, event: Event, effects: Sequence[Any]) -> bool:
        return isinstance(event, PROVED) or any(map(_refuses, effects))

    def _carry_out_at_once(self, event: Event, effects: Sequence[Any]) -> Sequence[Any]:
        if not isinstance(event, TxnCommitAsked | ShardEnrolled | MarkersAsked):
            return effects
        if any(isinstance(effect, Persist) for effect in effects):
            failpoint("txn.offsets.marker.before" if isinstance(event, MarkersAsked) else "txn.offsets.write.before")
        for effect in effects:
            if isinstance(effect, EnrolShard):
                name = f"{self.key}-enrols-{effect.number}"
                task = self._ports.tasks.start(self._enrol(effect), name=name)
                self._enrolling.add(task)
                task.add_done_callback(self._enrolling.discard)
        return [effect for effect in effects if not isinstance(effect, EnrolShard)]

    async def _enrol(self, asked: EnrolShard) -> None:
        """Until it is answered; cancelled when the state that asked is dropped, for it would be another's answer."""
        error = await ask_to_enrol(asked, self.number, self._ports)
        self._take_in(ShardEnrolled(asked.number, self._ports.moment(), error))

    def _handled(self, event: Event) -> None:
        if isinstance(event, MEMBER_REQUESTS) and (stream := self._streams.get(event.stream)) is not None:
            stream.handled()

    def _let_go(self, error: HeadraceError) -> None:
        self._ports.room.leave(self.number)
        for task in self._enrolling:
            task.cancel()
        self._enrolling = set()
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(error)

    def _topics_event(self) -> TopicsChanged:
        patterns, topics = self._ports.patterns, self._topics
        matches = {pattern: patterns.find_matching(pattern, topics) for pattern in self._core.patterns()}
        closed = self._ports.access.view.mode is Mode.CLOSED
        return TopicsChanged(self._ports.moment(), topics, matches, closed)

    def _show(self, effect: Visible) -> None:
        match effect:
            case Send(_, number, message):
                stream = self._streams.get(number)
                if stream is not None:
                    stream.send(message)
                if isinstance(message, JoinAnswer) and message.members:
                    self._ports.measures.rebalanced()
                elif (isinstance(message, ConsumerStanding) and message.assignment is not None) or (
                    isinstance(message, WorkStanding) and message.share is not None
                ):
                    self._ports.measures.assigned()
            case CloseStream(_, number):
                stream = self._streams.get(number)
                if stream is not None:
                    stream.close()
            case Answer(_, ref, result):
                self._resolve(ref, result)


def _refuses(effect: object) -> bool:
    """Whether it tells a member that it is out, or somebody else."""
    return isinstance(effect, Send) and isinstance(effect.message.error, Fenced)
