"""
Coordinators: the real ``Shard`` and ``Outbox``, driven as ``headrace_coordinator.engine`` drives them.

Played here: ``engine.coordinator`` (which shards are kept) and ``engine.shard_host``; ``shard_life`` plays the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.simulation.groups.processes import Link, Promise
from tests.simulation.groups.shard_life import Node, ShardLife
from tests.simulation.groups.shard_log import Numbered

from headrace_common.core.errors import (
    Fenced,
    HeadraceError,
    NetworkFailed,
    NotCoordinator,
)
from headrace_common.core.ids import NodeId
from headrace_common.core.murmur2 import partition_for
from headrace_coordinator.core.effects import Answer, CloseStream, Effect, Persist, PersistGroup, Send
from headrace_coordinator.core.events import (
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
from headrace_coordinator.core.values import Topics
from headrace_coordinator.engine.host import Phase
from headrace_coordinator.engine.outbox import Outbox, Visible
from headrace_coordinator.engine.shard_host import PROVED
from headrace_coordinator.engine.streams import MemberStream
from headrace_coordinator.rpc import decode, encode
from headrace_proto.v1 import coordinator_pb2 as pb

if TYPE_CHECKING:
    from tests.simulation.groups.controller import Image
    from tests.simulation.groups.world import World


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


class Host(ShardLife):
    """One shard of groups in one epoch, as ``ShardHost``."""

    def __init__(self, number: int, epoch: int, owner: CoordinatorNode) -> None:
        self.streams: dict[int, ServerStream] = {}
        self._about: dict[int, Told] = {}
        self.node = owner
        super().__init__(number, epoch, owner)

    def _new_core(self) -> Shard:
        return Shard(self.number, self.world.settings)

    def _new_outbox(self) -> Outbox[Visible]:
        return Outbox(lambda group_id: self.core.group_record(group_id), self._show)

    def _first_events(self) -> Iterable[Event]:
        yield self._topics_event()
        yield Loaded(self.owner.moment())

    def _woken_event(self) -> Event:
        return Woken(self.owner.moment())

    def _needs_proof(self, event: Event, effects: list[Effect]) -> bool:
        return isinstance(event, PROVED) or any(map(_refuses, effects))

    def _about_to_show(self, effect: Visible, event: Event, number: int) -> None:
        self._about[id(effect)] = Told(effect, event, number)

    def _let_go(self, error: HeadraceError) -> None:
        streams, self.streams = self.streams, {}
        for stream in streams.values():
            stream.link.end_by_server(error)

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

    # --- events and effects -----------------------------------------------------------------------------------

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

    def _topics_event(self) -> TopicsChanged:
        matches = {p: self.world.matching(p, self.node.topics) for p in self.core.patterns()}
        return TopicsChanged(self.owner.moment(), self.node.topics, matches)

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


def _refuses(effect: Effect) -> bool:
    return isinstance(effect, Send) and isinstance(effect.message.error, Fenced)


class CoordinatorNode(Node):
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
            event = make(answer, self.moment())
            assert isinstance(event, CommitAsked | OffsetsAsked | OffsetsDeletionAsked | GroupDeletionAsked)
            if isinstance(event, OffsetsAsked):
                self.world.invariants.asked(event)
            self._host(event.group_id).ask(event, answer)
        except HeadraceError as error:
            answer.settle(error=error)
