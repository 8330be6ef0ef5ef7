"""
Consumers: the real membership machines, holdings and commit queue, driven as ``headrace.aio`` drives them.

Played here: ``aio._group`` (streams, look-ups, the leader's computation), ``aio._committing``, ``aio._coordinators``
and ``aio._group_steps`` (jobs at polls, callbacks, commits), for an application that handles a few records per poll.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulation.groups.processes import Link, Process, Promise, Script
from tests.simulation.invariants import Violation

from headrace._core.commits import CommitEffect, CommitQueue, SendCommit
from headrace._core.group_messages import (
    Broke,
    Closing,
    Committed,
    Compute,
    Computed,
    Connect,
    Did,
    Effect,
    Event,
    HangUp,
    Job,
    Kind,
    LookedUp,
    LookUp,
    NotComputed,
    Notify,
    NotLookedUp,
    Opened,
    Partitions,
    Polled,
    Send,
    Subscribed,
    Ticked,
    Told,
    TopicsSeen,
    Warn,
)
from headrace._core.membership import Identity, Phase
from headrace._core.membership_classic import ClassicMembership
from headrace._core.membership_consumer import ConsumerMembership
from headrace._core.remedies import Asker, Remedy, remedy_for
from headrace.aio._coordinators import ATTEMPT_MS
from headrace.aio._group_wire import GroupWire
from headrace.consumer_settings import CLASSIC, ConsumerSettings
from headrace.errors import (
    ClientClosed,
    HeadraceError,
    IllegalGeneration,
    NetworkFailed,
    RebalanceInProgress,
    UnknownMemberId,
    WaitTimedOut,
)
from headrace_common.core.assignors import assign
from headrace_common.core.ids import TopicPartition
from headrace_coordinator.core.effects import OffsetOutcomes, OffsetsFound
from headrace_coordinator.core.events import CommitAsked, OffsetsAsked, OffsetToCommit
from headrace_coordinator.core.values import Moment
from headrace_proto.v1 import coordinator_pb2 as pb

if TYPE_CHECKING:
    from tests.simulation.groups.coordinators import CoordinatorNode
    from tests.simulation.groups.world import World

LEAVE_MS_MAX = 2_000


@dataclass(frozen=True)
class Habits:
    """What the application is like."""

    poll_ms: float
    auto_commit: bool
    auto_commit_ms: float
    commits_one_in: int
    """Every so many polls it commits by itself, half of them without waiting."""
    slow_callback_ms: float
    commits_in_callback: bool


class Consumer(Process):
    """One consumer process; ``start`` makes a new member of it."""

    def __init__(
        self, number: int, world: World, settings: ConsumerSettings, topics: tuple[str, ...], pattern: str | None
    ) -> None:
        super().__init__(number, world)
        self.settings = settings
        self.topics, self.pattern = topics, pattern
        self.group_id = settings.group_id or ""
        self.gone = False
        """It is not to be started again."""
        self.silent_until = 0.0
        self.quiet = False
        """It commits nothing more."""
        self.kept_since: dict[TopicPartition, float] = {}
        self.lost_count = 0

    # --- life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A new process, and a new membership."""
        rng = self.world.rng
        self.up, self.paused = True, False
        self.zero = rng.random() * 1e6
        self.core: ClassicMembership | ConsumerMembership
        if self.settings.group_protocol == CLASSIC:
            self.core = ClassicMembership(self.settings.group)
        else:
            self.core = ConsumerMembership(self.settings.group, f"c{self.id}.{self.incarnation}")
        self.habits = Habits(
            poll_ms=rng.choice((60.0, 150.0, 300.0)),
            auto_commit=rng.random() < 0.5,
            auto_commit_ms=rng.choice((500.0, 2_000.0)),
            commits_one_in=rng.choice((2, 5, 20)),
            slow_callback_ms=rng.choice((0.0, 0.0, 300.0, 4_000.0)),
            commits_in_callback=rng.random() < 0.5,
        )
        self.wire = GroupWire(self.settings)
        self.queue = CommitQueue(self.settings.retry_backoff_ms, self.settings.retry_backoff_max_ms)
        self.closed = self.closing = False
        self.link: Link | None = None
        self.known: CoordinatorNode | None = None
        self.positions: dict[TopicPartition, int] = {}
        self.committed: dict[TopicPartition, int] = {}
        self.went_back: set[TopicPartition] = set()
        """Where the application has gone back since what was committed last."""
        self.steps_back = 0
        self.kept_since = {}
        self.asked_since: dict[str, float | None] = {}
        """Of each commit: since when its partition was held."""
        self.taken_away: dict[TopicPartition, float] = {}
        """When an assignment took a partition away last."""
        self.lost_count = 0
        self.epochs_seen: dict[str, int] = {}
        self.pending_commits = 0
        self._todo: deque[Effect] = deque()
        self._carrying = False
        self._conversation = 0
        self._due: float | None = None
        self._revision = -1
        self.world.say("consumer", self.id, "starts in", self.group_id)
        self.run(self._application())

    def die(self) -> None:
        """Killed."""
        link = getattr(self, "link", None)
        if link is not None:
            link.break_()
        super().die()
        self.world.invariants.touch(self.group_id)

    def tell(self, event: Event) -> None:
        """As ``Group.tell``."""
        before, phase = self.core.holdings.held, self.core.phase
        self._todo.extend(self.core.handle(event))
        if self.core.phase is not phase:
            self.world.say("consumer", self.id, self.core.phase.name, self.core.member_id, self.core.generation)
        if self.core.holdings.held is not before:
            self._held_changed(before, self.core.holdings.held)
        target = self.core.holdings.target
        if target is not None and isinstance(event, Told):
            self.taken_away.update(dict.fromkeys(self.core.holdings.held - target, self.world.schedule.now))
        self.world.invariants.touch(self.group_id)
        if not self._carrying:
            self._carrying = True
            while self._todo:
                self._do(self._todo.popleft())
            self._carrying = False
            self._arm()

    def _held_changed(self, before: Partitions, after: Partitions) -> None:
        now = self.world.schedule.now
        self.world.say("consumer", self.id, "holds", *(f"{t}-{p}" for t, p in sorted(after)))
        for tp in before - after:
            self.kept_since.pop(tp, None)
        self.kept_since.update(dict.fromkeys(after - before, now))

    # --- what the machine wants -------------------------------------------------------------------------------

    def _do(self, effect: Effect) -> None:
        match effect:
            case Connect(after_ms):
                self._hang_up()
                self.run(self._converse(after_ms, self._conversation))
            case HangUp():
                self._hang_up()
            case Send(request):
                if self.link is not None:
                    self.link.up(self.wire.request(request))
            case Compute():
                self.run(self._compute(effect))
            case LookUp(version, partitions):
                self.run(self._look_up(version, partitions))
            case Warn() | Notify():
                pass

    def _hang_up(self) -> None:
        self._conversation += 1
        link, self.link = self.link, None
        if link is not None:
            link.hang_up()

    def _converse(self, after_ms: float, conversation: int) -> Script:
        try:
            yield after_ms
            if conversation != self._conversation:
                return
            coordinator = yield from self._find(anew=True)
        except HeadraceError as error:
            if conversation == self._conversation:
                self._heard(error)
                self.tell(Broke(error, self.mono))
            return
        if conversation != self._conversation:
            return
        link = self.link = Link(self, coordinator, self.world)
        link.on_down = self._said
        link.on_client_end = self._ended
        if coordinator.up:
            coordinator.accept(link)
        else:
            link.break_()
        self.tell(Opened(self.mono))

    def _said(self, response: pb.MembershipResponse) -> None:
        answer = self.wire.answer(response)
        if answer is not None:
            self.world.invariants.told(self, answer)
            self.tell(Told(answer, self.mono))

    def _ended(self, error: HeadraceError) -> None:
        self.link = None
        self._conversation += 1
        self._heard(error)
        self.tell(Broke(error, self.mono))

    def _arm(self) -> None:
        due = self.core.due_ms()
        if due is not None and due != self._due:
            self._due = due
            self.later(max(1.0, due - self.mono), self._tick, due)

    def _tick(self, due: float) -> None:
        if due == self._due:
            self._due = None
            self.tell(Ticked(self.mono))

    # --- coordinators and metadata ------------------------------------------------------------------------------

    def _heard(self, error: HeadraceError) -> None:
        if remedy_for(Asker.COORDINATED, error.code) is Remedy.FIND:
            self.known = None

    def _find(self, *, anew: bool = False) -> Script:
        if anew or self.known is None:
            self.known = None
            world = self.world
            self.known = yield self.call(world.brokers, world.controller.find, self.group_id, timeout_ms=2_000.0)
        return self.known

    def _look_up(self, version: int, partitions: Partitions) -> Script:
        try:
            offsets = yield from self._fetch(partitions)
        except HeadraceError as error:
            self.tell(NotLookedUp(version, error, self.mono))
            return
        self.tell(LookedUp(version, offsets, self.mono))

    def _fetch(self, partitions: Partitions) -> Script:
        deadline = self.mono + self.settings.default_api_timeout_ms
        pause = float(self.settings.retry_backoff_ms)
        by_topic: dict[str, list[int]] = {}
        for topic, number in sorted(partitions):
            by_topic.setdefault(topic, []).append(number)
        asked = tuple((topic, tuple(numbers)) for topic, numbers in by_topic.items())

        def make(ref: object, at: Moment) -> OffsetsAsked:
            return OffsetsAsked(self.group_id, ref, at, partitions=asked)

        while True:
            try:
                coordinator = yield from self._find()
                found = yield self.call(coordinator, coordinator.commit, make, timeout_ms=ATTEMPT_MS)
            except HeadraceError as error:
                self._heard(error)
                if not error.retriable:
                    raise
                if self.mono >= deadline:
                    raise WaitTimedOut(str(error)) from error
            else:
                assert isinstance(found, OffsetsFound), "that is what reads are answered with"
                return {
                    TopicPartition(f.topic, f.partition): None
                    if f.committed is None
                    else Committed(f.committed.offset, f.committed.leader_epoch, f.committed.metadata)
                    for f in found.offsets
                }
            yield pause
            pause = min(pause * 2, self.settings.retry_backoff_max_ms)

    def _sizes(self) -> Script:
        revision, topics = yield self.call(self.world.brokers, self.world.controller.metadata, timeout_ms=2_000.0)
        if revision < self._revision:
            raise NetworkFailed("the broker that was asked knows less than another did; ask again")
        self._revision = revision
        self.wire.known_as({name: info.topic_id for name, info in topics.items()})
        return {name: info.partitions for name, info in topics.items()}

    def _compute(self, wanted: Compute) -> Script:
        names = sorted({topic for member in wanted.members.values() for topic in member.topics})
        try:
            sizes = yield from self._sizes()
        except HeadraceError as error:
            self.tell(NotComputed(wanted.generation, error, self.mono))
            return
        counts = {name: sizes[name] for name in names if name in sizes}
        shares = {
            member: frozenset(TopicPartition(topic, n) for topic, numbers in share.items() for n in numbers)
            for member, share in assign(wanted.protocol, wanted.members, counts).items()
        }
        known = {name: counts.get(name, 0) for name in names}
        self.tell(Computed(wanted.generation, shares, known, self.mono))

    def _watch(self, core: ClassicMembership) -> Script:
        while True:
            yield float(self.settings.metadata_max_age_ms)
            try:
                sizes = yield from self._sizes()
            except HeadraceError:
                continue
            seen = sizes if core.pattern is not None else {t: sizes[t] for t in core.watched if t in sizes}
            self.tell(TopicsSeen(seen, self.mono))

    # --- commits ----------------------------------------------------------------------------------------------

    def identity(self) -> Identity:
        """As ``Group.identity``."""
        core = self.core
        known = core.identity
        if known is not None and not core.holdings.lost:
            return known
        if core.failure is not None:
            raise core.failure
        if core.phase in (Phase.OUT, Phase.AWAY, Phase.LEAVING, Phase.LEFT) or core.holdings.lost:
            raise UnknownMemberId("this consumer is out of its group")
        raise RebalanceInProgress("the group has not taken this consumer in yet")

    def commit(self, offsets: Mapping[TopicPartition, Committed], deadline: float | None) -> Promise:
        """As ``Committing.commit``; the promise's value is the error, or None."""
        done = Promise()
        if self.closed:
            done.settle(ClientClosed("the consumer was closed before the commit"))
            return done
        self.pending_commits += 1
        self._carry_commits(self.queue.add(done, offsets, deadline))
        return done

    def _carry_commits(self, effects: list[CommitEffect]) -> None:
        for effect in effects:
            if isinstance(effect, SendCommit):
                self.run(self._send_commit(effect.offsets))
            else:
                self.pending_commits -= 1
                assert isinstance(effect.ref, Promise), "commit made it"
                effect.ref.settle(effect.error)
        retry_at = self.queue.retry_at_ms
        if retry_at is not None:
            self.later(retry_at - self.mono, self._retry_commits)

    def _retry_commits(self) -> None:
        self._carry_commits(self.queue.tick(self.mono + 1))

    def _send_commit(self, offsets: Mapping[TopicPartition, Committed]) -> Script:
        rows = tuple(OffsetToCommit(tp.topic, tp.partition, *at) for tp, at in offsets.items())
        for tp, at in offsets.items():
            if self.asked_since[at.metadata] != self.kept_since.get(tp):
                raise Violation("commit-of-the-past", f"{self.id} commits {tp} {at}, which it gave up meanwhile")
        try:
            identity = self.identity()
            instance = self.settings.group_instance_id if identity.member_id else None

            def make(ref: object, at: Moment) -> CommitAsked:
                return CommitAsked(self.group_id, ref, at, identity.member_id, instance, identity.generation, rows)

            coordinator = yield from self._find()
            found = yield self.call(coordinator, coordinator.commit, make, timeout_ms=ATTEMPT_MS)
            assert isinstance(found, OffsetOutcomes), "that is what commits are answered with"
            results = {TopicPartition(o.topic, o.partition): o.error for o in found.outcomes}
            try:
                moved_on = self.identity() != identity
            except HeadraceError:
                moved_on = False
        except HeadraceError as error:
            self._heard(error)
            self._carry_commits(self.queue.failed(error, self.mono))
            return
        for failed in filter(None, results.values()):
            self._heard(failed)
        self.world.counts["commits answered"] += 1
        self._carry_commits(self.queue.answered(results, self.mono, moved_on=moved_on))

    def _marked(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, Committed]:
        marked = {tp: Committed(at, -1, self.world.mark(back=tp in self.went_back)) for tp, at in positions.items()}
        self.asked_since.update({at.metadata: self.kept_since.get(tp) for tp, at in marked.items()})
        return marked

    def _was_committed(self, positions: Mapping[TopicPartition, int]) -> None:
        self.committed.update(positions)
        self.went_back.difference_update(positions)

    def _commit_waiting(self, positions: Mapping[TopicPartition, int], limit_ms: float) -> Script:
        if not positions:
            return
        error = yield self.commit(self._marked(positions), self.mono + limit_ms)
        if error is None:
            self._was_committed(positions)

    def _commit_async(self, positions: Mapping[TopicPartition, int]) -> None:
        if not positions:
            return
        steps, answer = self.steps_back, self.commit(self._marked(positions), None)

        def done() -> None:
            if answer.value is None and steps == self.steps_back:
                self._was_committed(positions)

        answer.when_done(done)

    # --- the application --------------------------------------------------------------------------------------

    @property
    def suspended(self) -> bool:
        """Nothing may be handed out."""
        return self.core.suspended(self.mono)

    def _application(self) -> Script:
        rng, habits = self.world.rng, self.habits
        yield rng.random() * 500.0
        self.core.last_poll_ms = self.mono
        if self.pattern is not None and isinstance(self.core, ClassicMembership):
            while True:
                try:
                    self.tell(TopicsSeen((yield from self._sizes()), self.mono))
                    break
                except HeadraceError:
                    yield 100.0
        self.tell(Subscribed(self.topics, self.pattern, self.mono))
        if isinstance(self.core, ClassicMembership):
            self.run(self._watch(self.core))
        auto_at = self.mono + habits.auto_commit_ms
        while not self.closing:
            yield habits.poll_ms * (0.5 + rng.random())
            if self.world.schedule.now < self.silent_until:
                yield (self.silent_until - self.world.schedule.now) * self.speed
            self.core.last_poll_ms = self.mono
            yield from self._step()
            if self.core.take_failure(self.mono) is not None:
                if self.core.phase is Phase.FAILED:
                    self.world.counts["consumers failed"] += 1
                    self._end()
                    return
                self.tell(Polled(self.mono))
            if habits.auto_commit and self.mono >= auto_at and not self.quiet:
                auto_at = self.mono + habits.auto_commit_ms
                self._commit_async({tp: p for tp, p in self.positions.items() if self.committed.get(tp) != p})
            if not self.suspended:
                self._handle_records()
            yield from self._own_commits()
        yield from self._close()

    def _step(self) -> Script:
        if self.core.phase is Phase.AWAY:
            self.tell(Polled(self.mono))
        while (job := self.core.begin()) is not None:
            self.world.invariants.touch(self.group_id)
            yield from self._job(job)

    def _job(self, job: Job) -> Script:
        rng, habits = self.world.rng, self.habits
        if job.kind is Kind.ASSIGN:
            yield rng.random() * 5.0
            self.went_back.difference_update(job.offsets)
            for tp, at in sorted(job.offsets.items()):
                self.positions[tp] = 0 if at is None else at.offset
                if at is not None:
                    self.committed[tp] = at.offset
            self.tell(Did(job, self.mono))
            return
        limit = min(self.settings.default_api_timeout_ms, self.settings.max_poll_interval_ms / 2)
        own = {tp: self.positions[tp] for tp in sorted(job.partitions) if tp in self.positions}
        if job.kind is Kind.REVOKE:
            if habits.auto_commit:
                moved = {tp: at for tp, at in own.items() if self.committed.get(tp) != at}
                yield from self._commit_waiting(moved, limit)
            elif habits.commits_in_callback:
                yield from self._commit_waiting(own, 2_000.0)
        else:
            self.lost_count += 1
            self.world.counts["partitions lost"] += len(job.partitions)
        if habits.slow_callback_ms and rng.random() < 0.3 and not self.world.calm:
            yield rng.random() * habits.slow_callback_ms
        for tp in job.partitions:
            self.positions.pop(tp, None)
            self.committed.pop(tp, None)
        self.queue.give_up(job.partitions, IllegalGeneration("given up before the commit could be made"))
        self.tell(Did(job, self.mono))

    def _handle_records(self) -> None:
        rng = self.world.rng
        for tp in self.positions:
            self.positions[tp] += rng.randrange(4)

    def _own_commits(self) -> Script:
        rng, habits = self.world.rng, self.habits
        if (
            self.quiet
            or not self.positions
            or rng.randrange(habits.commits_one_in)
            or (habits.auto_commit and rng.random() < 0.7)
        ):
            return
        if self.pending_commits > 20:
            return
        if self.world.profile.seeks_back and rng.random() < 0.05:
            self.steps_back += 1
            for tp in self.positions:
                self.positions[tp] = max(0, self.positions[tp] - rng.randrange(4))
            self.went_back.update(self.positions)
            self._commit_async(dict(self.positions))
        elif rng.random() < 0.5:
            self._commit_async(dict(self.positions))
        else:
            yield from self._commit_waiting(dict(self.positions), rng.choice((500.0, 5_000.0)))

    def _close(self) -> Script:
        core = self.core
        lost = core.holdings.lost or core.phase in (Phase.OUT, Phase.AWAY, Phase.FAILED)
        if self.habits.auto_commit and not lost:
            moved = {tp: at for tp, at in self.positions.items() if self.committed.get(tp) != at}
            yield from self._commit_waiting(moved, 5_000.0)
        waited = Promise()
        self.later(5_000.0, waited.settle)
        self.commit({}, None).when_done(waited.settle)
        yield waited
        self.positions = {}
        self.tell(Closing(self.mono))
        for _ in range(LEAVE_MS_MAX // 50):
            if core.phase is not Phase.LEAVING:
                break
            yield 50.0
        self._end()

    def _end(self) -> None:
        """The process ends by itself."""
        self.closed = True
        self._hang_up()
        self.world.say("consumer", self.id, "ends")
        super().die()
        self.world.invariants.touch(self.group_id)
