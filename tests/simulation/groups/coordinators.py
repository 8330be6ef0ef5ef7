"""
Coordinators: the real ``Shard`` and ``Outbox``, driven as ``headrace_coordinator.engine`` drives them.

Played here: ``engine.coordinator`` (which shards are kept), ``engine.shard_host`` (fence, read, serve, drop) and the
writer of ``adapters.grpc_shard_log`` (one batch under way, repeated in its place until there is an answer).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.simulation.groups.processes import Link, Process, Promise, Script
from tests.simulation.groups.shard_log import Numbered, OtherToken, ShardLog

from headrace_common.core.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    Fenced,
    FencedWriter,
    HeadraceError,
    NetworkFailed,
    NotCoordinator,
)
from headrace_common.core.ids import NodeId
from headrace_common.core.murmur2 import partition_for
from headrace_coordinator.core.effects import Answer, CloseStream, Effect, Persist, PersistGroup, Row, Send
from headrace_coordinator.core.events import (
    AdminEvent,
    CommitAsked,
    ConsumerHeartbeat,
    Event,
    GroupDeletionAsked,
    Loaded,
    OffsetsAsked,
    OffsetsDeletionAsked,
    StreamBroke,
    TopicsChanged,
    Woken,
)
from headrace_coordinator.core.shard import Shard
from headrace_coordinator.core.values import Moment, Topics
from headrace_coordinator.engine.host import BEGIN_AGAIN_MS, PROVED_MS, STALL_GRACE_MS, STALLED_MS, Phase
from headrace_coordinator.engine.outbox import Outbox, Visible
from headrace_coordinator.engine.shard_host import PROVED
from headrace_coordinator.engine.streams import MemberStream
from headrace_coordinator.rpc import decode, encode
from headrace_proto.v1 import coordinator_pb2 as pb

if TYPE_CHECKING:
    from tests.simulation.groups.controller import Image
    from tests.simulation.groups.world import World

APPEND_TIMEOUT_MS = 5_000.0
ATTEMPT_MS = 3_000.0


@dataclass(eq=False)
class ServerStream:
    """The coordinator's end of a Membership call."""

    number: int
    group_id: str
    link: Link
    host: Host | None = None


@dataclass(frozen=True)
class Told:
    """An effect on its way out, and the event that it came of: what the invariants look at when it is shown."""

    effect: Visible
    event: Event
    number: int


class Host:
    """One shard in one epoch, as ``ShardHost``."""

    def __init__(self, number: int, epoch: int, owner: CoordinatorNode) -> None:
        self.number = number
        self.epoch = epoch
        self.owner = owner
        self.world = owner.world
        self.phase = Phase.LOADING
        self.stopped = False
        self.core = Shard(number, self.world.settings)
        self.outbox = self._outbox()
        self.streams: dict[int, ServerStream] = {}
        self.asked: dict[Promise, None] = {}
        self._numbers: dict[bytes, Numbered] = {}
        self._about: dict[int, Told] = {}
        self._proved_until = -math.inf
        self._timer_at = math.inf
        self._writing = False
        self._sequence = 0
        owner.run(self._life())

    def _outbox(self) -> Outbox[Visible]:
        return Outbox(lambda group_id: self.core.group_record(group_id), self._show)

    @property
    def log(self) -> ShardLog:
        """Its partition."""
        return self.world.brokers.logs[self.number]

    # --- called by the coordinator ----------------------------------------------------------------------------

    def stop(self) -> None:
        """The shard has another owner."""
        self.stopped = True
        self._drop(Phase.LOST, NotCoordinator("the shard has moved"))

    def check_serving(self) -> None:
        """As ``ShardHost``."""
        match self.phase:
            case Phase.LOADING:
                raise CoordinatorLoading("the shard is being read")
            case Phase.LOST:
                raise NotCoordinator("the shard has moved")
            case Phase.FAILED:
                raise CoordinatorNotAvailable("the shard cannot be served now")

    def topics_changed(self) -> None:
        """The image has other topics."""
        if self.phase is Phase.SERVING:
            self.handle(self._topics_event())

    def post(self, event: Event) -> None:
        """Something a member said."""
        self.check_serving()
        if getattr(event, "stream", None) not in self.streams:
            raise NotCoordinator("the shard has moved meanwhile")
        self.handle(event)

    def broke(self, stream: ServerStream) -> None:
        """No more comes over it."""
        if self.streams.get(stream.number) is stream:
            self.handle(StreamBroke(stream.group_id, stream.number, self.owner.moment()))
            self.streams.pop(stream.number, None)

    def ask(self, event: AdminEvent, answer: Promise) -> None:
        """As ``ShardHost.ask``; the event's reference is the answer."""
        self.check_serving()
        self.asked[answer] = None
        answer.when_done(lambda: self.asked.pop(answer, None))
        late = CoordinatorNotAvailable("the log did not confirm in time")
        self.owner.later(APPEND_TIMEOUT_MS, lambda: answer.settle(error=late))
        self.handle(event)

    # --- its life ---------------------------------------------------------------------------------------------

    def _life(self) -> Script:
        while not self.stopped:
            try:
                yield from self._load()
                return
            except FencedWriter:
                self.world.counts["shards lost"] += 1
                self._drop(Phase.LOST, NotCoordinator("another coordinator has the shard"))
            yield BEGIN_AGAIN_MS

    def _load(self) -> Script:
        began = self.owner.mono
        self._sequence = 0
        try:
            until = yield from self._tried(lambda: self._to_log("fence", self.epoch))
        except OtherToken as error:
            if error.token != self.epoch:
                raise
            until = yield from self._appended(())
        if self.stopped:
            return
        self._proved_until = began + PROVED_MS
        yield self.world.delay()
        rows = self.log.read(until + 1)
        yield self.world.rng.random() * 30.0
        if self.stopped:
            return
        core = Shard(self.number, self.world.settings)
        core.replay(rows)
        core.patterns()
        self.core = core
        self.outbox = self._outbox()
        self.phase = Phase.SERVING
        self.world.say("coordinator", self.owner.id, "serves shard", self.number, "epoch", self.epoch)
        self.world.counts["shards loaded"] += 1
        self.handle(self._topics_event())
        self.handle(Loaded(self.owner.moment()))

    def _write(self) -> Script:
        try:
            while self.phase is Phase.SERVING and self.outbox.append_wanted:
                began = self.owner.mono
                outbox = self.outbox
                rows = tuple(self._numbered(row) for row in outbox.begin())
                yield from self._appended(rows)
                if outbox is not self.outbox:
                    return
                self._proved_until = began + PROVED_MS
                outbox.done()
        except FencedWriter:
            self.world.counts["shards lost"] += 1
            self._writing = False
            if not self.stopped:
                self._drop(Phase.LOST, NotCoordinator("another coordinator has the shard"))
                self.owner.later(BEGIN_AGAIN_MS, lambda: self.owner.run(self._life()))
            return
        self._writing = False

    def _numbered(self, row: Row) -> Numbered:
        key, _ = row
        found = self._numbers.get(key)
        if found is None or found.row[1] != row[1]:  # a group's record, made just now
            return Numbered(row, self.world.invariants.next_number())
        return found

    def _appended(self, rows: tuple[Numbered, ...]) -> Script:
        self._sequence += 1
        sequence = self._sequence
        at = yield from self._tried(lambda: self._to_log("append", self.epoch, sequence, rows))
        return at

    def _to_log(self, what: str, *args: object) -> Promise:
        """One attempt. It may arrive late, and its answer may be lost."""
        owner, world, answer, back = self.owner, self.world, Promise(), Promise()
        owner.later(ATTEMPT_MS, lambda: answer.settle(error=NetworkFailed("the leader did not answer")))
        brokers, rng = world.brokers, world.rng
        if world.network.reaches(owner.id, brokers.id) and not world.lossy():
            delay = world.delay()
            if not world.calm and rng.random() < 0.01:
                delay += rng.random() * 8_000.0
            world.schedule.after(delay, getattr(self.log, what), back, *args)

        def returned() -> None:
            if world.lossy():
                owner.later(20.0, lambda: answer.settle(error=NetworkFailed("the connection broke")))
            else:
                world.send(brokers, owner, lambda: answer.settle(back.value, back.error), channel=3)

        back.when_done(returned)
        return answer

    def _tried(self, attempt: object) -> Script:
        tries = 0
        while True:
            try:
                return (yield attempt())  # type: ignore[operator]
            except FencedWriter:
                raise
            except HeadraceError:
                if self.stopped:
                    raise FencedWriter("stopped") from None
                tries += 1
                self.world.counts["appends tried again"] += 1
            yield min(20.0 * 2**tries, 500.0)

    def _drop(self, phase: Phase, error: HeadraceError) -> None:
        self.phase = phase
        self.core = Shard(self.number, self.world.settings)
        self.outbox = self._outbox()
        self._writing, self._timer_at = False, math.inf
        asked, self.asked = self.asked, {}
        for answer in asked:
            answer.settle(error=error)
        streams, self.streams = self.streams, {}
        for stream in streams.values():
            stream.link.end_by_server(error)

    # --- events and effects -----------------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        """As ``ShardHost._handle``."""
        if self.phase is not Phase.SERVING:
            return
        effects = self.core.handle(event)
        number = self._note(event, effects)
        proof = isinstance(event, PROVED) or not self._surely_ours() or any(map(_refuses, effects))
        told: list[Effect] = []
        for effect in effects:
            if not isinstance(effect, Persist | PersistGroup):
                self._about[id(effect)] = Told(effect, event, number)
            told.append(effect)
        self._take(told, proof=proof)
        if self.outbox.append_wanted and not self._writing:
            self._writing = True
            self.owner.run(self._write())
        self._schedule()

    def _take(self, effects: Iterable[Effect], *, proof: bool) -> None:
        self.outbox.take(effects, proof=proof)

    def _note(self, event: Event, effects: list[Effect]) -> int:
        """Number what was decided."""
        invariants = self.world.invariants
        number = invariants.next_number()
        for effect in effects:
            if isinstance(effect, PersistGroup) and self.core.group_record(effect.group_id)[1] is None:
                invariants.buried(effect.group_id)
            elif isinstance(effect, Persist):
                valid = invariants.may_commit(self.number, event) if isinstance(event, CommitAsked) else True
                for row in effect.rows:
                    invariants.decided(row, number)
                    self._numbers[row[0]] = Numbered(row, number, (event, valid))
        return number

    def _surely_ours(self) -> bool:
        return self.owner.mono < max(self.owner.tenure_until, self._proved_until)

    def _topics_event(self) -> TopicsChanged:
        matches = {p: self.world.matching(p, self.owner.topics) for p in self.core.patterns()}
        return TopicsChanged(self.owner.moment(), self.owner.topics, matches)

    def _show(self, effect: Visible) -> None:
        told = self._about.pop(id(effect))
        self.world.invariants.shown(self, told)
        match effect:
            case Send(_, number, message):
                stream = self.streams.get(number)
                if stream is not None:
                    stream.link.down(encode.message(message))
            case CloseStream(_, number):
                stream = self.streams.get(number)
                if stream is not None:
                    stream.link.end_by_server(NetworkFailed("the coordinator ended the stream"))
            case Answer(_, ref, result):
                assert isinstance(ref, Promise), "a reference is a promise"
                if isinstance(result, HeadraceError):
                    ref.settle(error=result)
                else:
                    ref.settle(result)

    # --- time -------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        due = self.core.next_wake_ms()
        if due is None or self._timer_at <= due:
            return
        self._timer_at = due
        self.owner.later(due - self.owner.mono, self._wake, due, self.core)

    def _wake(self, due: float, core: Shard) -> None:
        if core is not self.core or due != self._timer_at:
            return
        if self.owner.mono - due > STALLED_MS:
            self.owner.later(STALL_GRACE_MS, self._woken, due, core)
        else:
            self._woken(due, core)

    def _woken(self, due: float, core: Shard) -> None:
        if core is self.core and due == self._timer_at:
            self._timer_at = math.inf
            self.handle(Woken(self.owner.moment()))


def _refuses(effect: Effect) -> bool:
    return isinstance(effect, Send) and isinstance(effect.message.error, Fenced)


class CoordinatorNode(Process):
    """One coordinator process, as ``engine.coordinator`` and the servicer."""

    def __init__(self, number: int, world: World) -> None:
        super().__init__(number, world)
        self.node_id = NodeId(number)
        self.hosts: dict[int, Host] = {}
        self.topics: Topics = {}
        self.revision = -1
        self.tenure_until = -math.inf
        self._streams = 0
        self._fresh = 0

    def start(self) -> None:
        """A new process."""
        self.up, self.paused = True, False
        self.hosts, self.topics, self.revision = {}, {}, -1
        self.tenure_until = -math.inf
        self.zero = self.world.rng.random() * 1e6
        self.world.say("coordinator", self.id, "starts")
        self._beat()

    def die(self) -> None:
        """Killed; its connections break."""
        super().die()
        self.hosts = {}

    def _beat(self) -> None:
        sent = self.mono
        answer = self.call(self.world.controller, self.world.controller.heartbeat, self, timeout_ms=2_000.0)

        def answered() -> None:
            if answer.error is None:
                self.tenure_until = sent + self.world.profile.controller_session_ms if answer.value else -math.inf

        answer.when_done(answered)
        self.later(self.world.profile.controller_session_ms / 6, self._beat)

    def moment(self) -> Moment:
        """Now, by its clocks."""
        return Moment(self.mono, self.wall)

    def apply(self, image: Image) -> None:
        """An image has come; older ones are nothing."""
        if image.revision <= self.revision:
            return
        self.revision = image.revision
        if image.topics != self.topics:
            self.topics = image.topics
            for host in self.hosts.values():
                host.topics_changed()
        given = {n: s.epoch for n, s in image.shards.items() if s.owner == self.node_id}
        for number in [n for n, host in self.hosts.items() if given.get(n) != host.epoch]:
            self.hosts.pop(number).stop()
        for number, epoch in given.items():
            if number not in self.hosts:
                self.hosts[number] = Host(number, epoch, self)

    def _host(self, group_id: str) -> Host:
        number = partition_for(group_id.encode(), self.world.profile.shards)
        host = self.hosts.get(number)
        if host is None:
            raise NotCoordinator(f"shard {number} is not here")
        return host

    # --- streams ----------------------------------------------------------------------------------------------

    def accept(self, link: Link) -> None:
        """A new Membership call; its first request opens it."""
        opened: list[ServerStream] = []

        def heard(request: pb.MembershipRequest) -> None:
            try:
                if not opened:
                    host = self._host(request.group_id)
                    host.check_serving()
                    self._streams += 1
                    stream = ServerStream(self._streams, request.group_id, link, host)
                    host.streams[stream.number] = stream
                    opened.append(stream)
                self._say(opened[0], request)
            except HeadraceError as error:
                link.on_up = None
                link.end_by_server(error)

        def ended() -> None:
            if opened and opened[0].host is not None:
                opened[0].host.broke(opened[0])

        link.on_up, link.on_server_end = heard, ended

    def _say(self, stream: ServerStream, request: pb.MembershipRequest) -> None:
        named = MemberStream(stream.number, stream.group_id, f"10.0.0.{stream.link.client.id % 250}:1")
        event = decode.member_event(request, named, self.moment(), self._fresh_id)
        if isinstance(event, ConsumerHeartbeat) and event.subscription is not None:
            pattern = event.subscription.pattern
            if pattern is not None:
                event = replace(event, matched=self.world.matching(pattern, self.topics))
        self._host(stream.group_id).post(event)

    def _fresh_id(self, name: str) -> str:
        self._fresh += 1
        return f"{name}-{self.id}.{self.incarnation}.{self._fresh}"

    # --- calls ------------------------------------------------------------------------------------------------

    def commit(self, answer: Promise, make: object) -> None:
        """CommitOffsets, FetchOffsets and the rest: ``make(ref, at)`` is the event."""
        try:
            event = make(answer, self.moment())  # type: ignore[operator]
            assert isinstance(event, CommitAsked | OffsetsAsked | OffsetsDeletionAsked | GroupDeletionAsked)
            if isinstance(event, OffsetsAsked):
                self.world.invariants.asked(event)
            self._host(event.group_id).ask(event, answer)
        except HeadraceError as error:
            answer.settle(error=error)
