"""
Members and a coordinator in every order of events: no partition is read by two, and all is read in the end.

The machines are the real ones, and so is the coordinator's core; lines between them hold messages back, break, and lose
what is on them. Applications do their jobs late, in two moments (taken, done).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import TopicPartition
from headrace._core.group_messages import (
    Broke,
    Closing,
    Compute,
    Computed,
    Connect,
    Did,
    Event,
    HangUp,
    Job,
    Kind,
    LookedUp,
    LookUp,
    Opened,
    Send,
    Subscribed,
    Ticked,
    Told,
    TopicsSeen,
)
from headrace._core.holdings import Holdings
from headrace._core.membership import Membership
from headrace._core.membership_classic import ClassicMembership
from headrace._core.membership_consumer import ConsumerMembership
from headrace._core.phases import Phase
from headrace.aio._group_wire import GroupWire
from headrace.consumer_settings import ConsumerSettings
from headrace.errors import HeadraceError, NetworkFailed
from headrace.settings import read_settings
from headrace_common.core.assignors import assign

from .group_core import GroupCore, Line
from .groups import PROTOCOLS


class World:
    """A group, its topics, a clock."""

    def __init__(self, protocol: str) -> None:
        self.settings = read_settings(ConsumerSettings, {"group_id": "g", **PROTOCOLS[protocol]})
        self.topics = {"t": 5, "u": 2}
        self.now = 0.0
        self.group = GroupCore(self.topics)
        self.actors: list[Actor] = []

    def pass_time(self, ms: float) -> None:
        self.now += ms
        self.group.pass_time(self.now)
        for actor in self.actors:
            actor.tell(Ticked(self.now))

    def grow(self) -> None:
        """One more partition."""
        self.topics["t"] += 1
        self.group.show(self.topics)
        self.tell_topics()

    def tell_topics(self) -> None:
        for actor in self.actors:
            actor.tell(TopicsSeen(dict(self.topics), self.now))

    def check(self) -> None:
        """Nobody reads what another reads, unless the coordinator has put it out."""
        owners: dict[TopicPartition, str] = {}
        members = self.group.members
        for actor in self.actors:
            if actor.name not in members:
                continue
            for tp in actor.reads:
                assert tp not in owners, f"{tp} is read by {owners[tp]} and {actor.name}"
                owners[tp] = actor.name


class Actor:
    """One consumer: a machine and an application."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        group = world.settings.group
        server_side = world.settings.group_protocol == "consumer"
        self.machine: Any = ConsumerMembership(group, f"m{number}") if server_side else ClassicMembership(group)
        self.wire = GroupWire(world.settings)
        self.line: Line | None = None
        self.connects_at: float | None = None
        self.reads: set[TopicPartition] = set()
        self.job: Job | None = None
        self.closed = False
        self.pending: deque[Event] = deque()
        self.tell(TopicsSeen(dict(world.topics), world.now))
        self.tell(Subscribed(("t", "u"), None, world.now))

    @property
    def name(self) -> str:
        return self.machine.member_id  # of either machine

    def tell(self, event: Event) -> None:
        self.machine.last_poll_ms = self.world.now
        for effect in self.machine.handle(event):
            match effect:
                case Connect(after_ms):
                    self.drop()
                    self.connects_at = self.world.now + after_ms
                case HangUp():
                    if self.line is not None:
                        while self.line.up:
                            self.deliver_up()
                    self.drop()
                case Send(request) if self.line is not None:
                    self.line.up.append(self.wire.request(request))
                case Compute(generation, protocol, members):
                    counts = dict(self.world.topics)
                    shares = assign(protocol, members, counts)
                    found = {
                        m: frozenset(TopicPartition(t, n) for t, numbers in share.items() for n in numbers)
                        for m, share in shares.items()
                    }
                    self.pending.append(Computed(generation, found, counts, self.world.now))
                case LookUp(version, partitions):
                    self.pending.append(LookedUp(version, dict.fromkeys(partitions), self.world.now))

    def drop(self) -> None:
        """The stream is gone; the coordinator learns it, and waits a while."""
        line, self.line, self.connects_at = self.line, None, None
        if line is not None:
            self.world.group.lose(line)

    # --- what the schedule lets happen ----------------------------------------------------------------------------

    def connect(self) -> None:
        if self.connects_at is not None and self.connects_at <= self.world.now:
            self.connects_at, self.line = None, self.world.group.open()
            self.tell(Opened(self.world.now))

    def deliver_up(self) -> None:
        if self.line is not None and self.line.up:
            self.world.group.hear(self.line)

    def deliver_down(self) -> None:
        if self.line is None or not self.line.down:
            return
        message = self.line.down.popleft()
        if message is None:
            self.break_line()
            return
        answer = self.wire.answer(message)
        assert answer is not None
        self.tell(Told(answer, self.world.now))

    def internal(self) -> None:
        if self.pending:
            self.tell(self.pending.popleft())

    def take(self) -> None:
        """The application begins a job: what it is assigned it may read from this moment on."""
        if self.job is None and not self.closed:
            self.job = self.machine.begin()
            if self.job is not None and self.job.kind is Kind.ASSIGN:
                self.reads |= self.job.partitions

    def finish(self) -> None:
        """And ends it: what it gives up it read until now."""
        job, self.job = self.job, None
        if job is not None:
            if job.kind is not Kind.ASSIGN:
                self.reads -= job.partitions
            self.tell(Did(job, self.world.now))

    def break_line(self) -> None:
        if self.line is not None:
            self.drop()
            self.tell(Broke(NetworkFailed(), self.world.now))

    def close(self) -> None:
        if not self.closed and self.job is None:
            self.closed = True
            self.reads.clear()
            self.tell(Closing(self.world.now))

    def die(self) -> None:
        """Its process is gone."""
        self.closed = True
        self.reads.clear()
        self.drop()
        self.world.actors.remove(self)

    def talk(self) -> None:
        """What waits to be said and heard is."""
        for step in (self.connect, self.deliver_up, self.deliver_up, self.internal, self.deliver_down, self.internal):
            step()

    def run(self) -> None:
        """Everything that can happen, once."""
        for step in (self.connect, self.deliver_up, self.deliver_down, self.internal, self.take, self.finish):
            step()


STEPS = ("connect", "deliver_up", "deliver_down", "internal", "take", "finish")
RARE = ["break_line", "close", "die", "join", "join", "join", "time", "time", "evict", "grow"]
WEIGHTED = [*["talk"] * 60, *["take", "finish"] * 12, *STEPS * 2, *RARE]


def play(protocol: str, seed: int, length: int) -> None:
    chance = random.Random(seed)
    world = World(protocol)
    world.actors = [Actor(world, number) for number in range(2)]
    number = 2
    for _ in range(length):
        what = chance.choice(WEIGHTED)
        if what == "join":
            if len(world.actors) < 5:
                world.actors.append(Actor(world, number))
                number += 1
        elif what == "time":
            world.pass_time(chance.choice([1, 100, 1_000, 3_100]))
        elif what == "evict":
            if (members := sorted(world.group.members)) and chance.random() < 0.3:
                world.group.evict(chance.choice(members))
        elif what == "grow":
            if chance.random() < 0.2:
                world.grow()
        elif world.actors and (what not in ("close", "die") or len(world.actors) > 2):
            getattr(chance.choice(world.actors), what)()
        world.check()
    settle(world)


def settle(world: World) -> None:
    """Nothing breaks any more: everything is read by exactly one."""
    wanted = {TopicPartition(topic, n) for topic, count in world.topics.items() for n in range(count)}
    world.actors = [actor for actor in world.actors if not (actor.closed and actor.line is None)]
    for turn in range(600):
        for actor in world.actors:
            actor.run()
        world.check()
        if turn % 10 == 9:
            world.pass_time(500)
            world.tell_topics()
    alive = [actor for actor in world.actors if not actor.closed]
    if alive:
        read = [tp for actor in alive for tp in actor.reads]
        assert sorted(read) == sorted(wanted)
        assert not any(actor.machine.rebalancing for actor in alive)


@pytest.mark.parametrize("protocol", list(PROTOCOLS))
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 30), length=st.integers(0, 600))
def test_no_partition_is_read_by_two_and_all_are_read_in_the_end(protocol: str, seed: int, length: int) -> None:
    play(protocol, seed, length)


def held_only(patch: pytest.MonkeyPatch) -> None:
    """What the application is just taking does not count as held."""
    patch.setattr(Holdings, "taken", property(lambda holdings: holdings.held))


def joins_while_it_reads(patch: pytest.MonkeyPatch) -> None:
    """An eager member joins again before its application has let go."""

    def changed(machine: ClassicMembership, now_ms: float) -> None:
        if machine.phase is Phase.PREPARING:
            machine.phase = Phase.JOINING
            if machine.connected:
                machine._send_join("", now_ms)

    patch.setattr(ClassicMembership, "_holdings_changed", changed)


def joins_before_it_was_told(patch: pytest.MonkeyPatch) -> None:
    """A member that was put out is one again before its application knows."""

    def out(machine: Membership, error: HeadraceError, now_ms: float) -> None:
        machine._end_stream()
        machine.holdings.lose()
        machine._start_over(now_ms)

    patch.setattr(Membership, "_out", out)


@pytest.mark.parametrize(
    ("break_it", "protocol"),
    [
        (held_only, "cooperative"),
        (joins_while_it_reads, "eager"),
        (joins_before_it_was_told, "server-side"),
    ],
)
def test_a_broken_machine_is_noticed(
    break_it: Callable[[pytest.MonkeyPatch], None], protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)

    def play_some() -> None:
        for seed in range(60):
            play(protocol, seed, 400)

    with pytest.raises(AssertionError):
        play_some()
