"""
The engine of both consumers: feeds the pure core with what happens, and does what it wants done.

It lives on one event loop; ``HandOut``, which applications take from, may be called by another thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace._bulk_libraries import is_bulk, load_bulk_libraries
from headrace._core.fetch_answers import Answer
from headrace._core.fetch_events import LogDiverged, PositionReset, TopicRecreated
from headrace._core.fetch_partition import NO_TOPIC_ID
from headrace._core.fetch_plans import FetchLimits, FetchPlan
from headrace._core.fetch_positions import Lookup
from headrace._core.ranges import Range
from headrace._core.record_runs import Deserializers
from headrace._core.starts import Beginning, LastCommitted, parse_reset, timestamp_to_ask
from headrace._descriptors import needing_descriptors
from headrace._runtime import Tasks, in_thread
from headrace._transport.port import FetchStream, Transport
from headrace.aio._client import ClusterClient, Leader
from headrace.aio._fetch_wire import FetchWire
from headrace.aio._hand_out import HandOut
from headrace.aio._health import ConsumerHealth, GroupHealth
from headrace.aio._offsets import OffsetQueries
from headrace.consumer_settings import ConsumerSettings
from headrace.errors import HeadraceError, Internal, Overloaded, UnknownTopicOrPartition, WaitTimedOut, error_for
from headrace.records import Committed
from headrace_common.core.ids import NodeId, TopicId, TopicPartition
from headrace_common.runtime.clock import Clock, call_later_ms, pause_ms
from headrace_proto.v1 import broker_pb2 as pb

LATE_MS: Final = 10
"""An answer that takes longer is one that waits for records; it is given up for a partition that came too late."""

METADATA_WAIT_MS: Final = 50
"""How long an assignment waits for metadata of topics that are new here; it comes later by itself."""

SILENCE_MS: Final = 500
"""An answer that is this late makes the consumer ask who leads; again after as much."""

_log = logging.getLogger("headrace.consumer")

Recall = Callable[[Collection[TopicPartition]], Coroutine[object, object, dict[TopicPartition, Committed | None]]]
"""What the group has committed. Raises: ``HeadraceError``: it cannot be had now."""


@dataclass(slots=True)
class _Fetcher:
    """The fetches to one broker, one at a time."""

    stream: FetchStream
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    number: int = 0
    """Of the fetch on the wire, or of the last one."""
    given_up: int = -1

    def give_up(self, number: int) -> None:
        """Give that fetch up if it still waits; not two in a row, so that large answers over slow lines arrive."""
        if number == self.number and self.given_up not in (number, number - 1):
            self.given_up = number
            self.stream.abandon()


class Reading:
    """One consumer's partitions, the tasks that fetch them, and what was fetched."""

    def __init__(
        self,
        transport: Transport,
        settings: ConsumerSettings,
        clock: Clock,
        deserializers: Deserializers,
        signal: Callable[[], None],
        limits: FetchLimits | None = None,
    ) -> None:
        self.settings = settings
        self.out = HandOut(settings, clock, deserializers, self._nudge, limits=limits)
        self.resets = 0
        """How often ``auto_offset_reset`` was applied to a position that was gone."""
        self.deleted: frozenset[str] = frozenset()
        """Topics that are subscribed to and do not exist any more."""
        self.group_topics: tuple[str, ...] = ()
        """What a member of a group has subscribed to by name."""
        self.recall: Recall | None = None
        """Asks the group, if there is one; called on the loop."""
        self._transport = transport
        self._clock = clock
        self._signal = signal
        self._topics: tuple[str, ...] = ()
        self._tasks = Tasks(self._crashed)
        self._cluster = ClusterClient(transport, settings, clock=clock, on_change=self._metadata_changed)
        self.offsets = OffsetQueries(self._cluster, transport, settings, clock)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fetchers: dict[NodeId, _Fetcher] = {}
        self._care = asyncio.Event()
        self._nudged = False
        self._bulk_loaded = False
        self._position_waiters: list[asyncio.Future[None]] = []

    # --- what is read (on the loop) -----------------------------------------------------------------------------

    async def subscribe(self, topics: Iterable[str]) -> None:
        """
        Read all partitions of these topics, those added later too, from the position or by ``auto_offset_reset``.

        Raises:
            UnknownTopicOrPartition: a topic does not exist.
            NetworkFailed: no broker answered within ``default_api_timeout_ms``.
        """
        names = tuple(dict.fromkeys(topics))
        self._begin()
        partitions = [tp for name in names for tp in await self.partitions_of(name)]
        self._topics = names
        self._forget_deleted()
        self._replace(partitions)

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions and no others; those that were read before go on where they are."""
        wanted = dict.fromkeys(partitions)
        await self.check(wanted)
        self._topics = ()
        self._forget_deleted()
        self._replace(list(wanted))

    async def check(self, partitions: Iterable[TopicPartition]) -> None:
        """
        Whether they exist.

        Raises:
            UnknownTopicOrPartition: one does not.
        """
        self._begin()
        for tp in partitions:
            view = await self._cluster.topic(tp.topic, self.settings.default_api_timeout_ms)
            if not 0 <= tp.partition < view.partitions:
                await self._cluster.await_refresh(f"{tp} may be new")
                if self._cluster.leader(tp) is None:
                    raise UnknownTopicOrPartition(f"topic {tp.topic!r} has no partition {tp.partition}")

    async def read_ranges(self, ranges: Mapping[TopicPartition, Range], topic_ids: Mapping[str, TopicId]) -> None:
        """
        Read these and nothing else.

        Args:
            topic_ids: which topics are meant; others of their names do not do.

        Raises:
            UnknownTopicOrPartition: one does not exist.
        """
        await self.check(ranges)
        with self.out.lock:
            for tp, (start, stop) in ranges.items():
                self.out.core.add(tp, start, stop=stop)
                self.out.core.partitions[tp].topic_id = topic_ids.get(tp.topic, NO_TOPIC_ID)
            self._place()
        self._act()

    async def hold(
        self, starts: Mapping[TopicPartition, Committed | None], new: Collection[TopicPartition] = ()
    ) -> None:
        """
        Read these too, from what is committed, else by ``auto_offset_reset``, or if they are ``new`` from their
        beginning. A topic that metadata does not know is looked for; it is told of like what cannot be read.
        """
        self._begin()
        unknown = sorted({tp.topic for tp in starts if self._cluster.find_view(tp.topic) is None})
        if unknown:
            asked = [self._cluster.topic(topic, METADATA_WAIT_MS) for topic in unknown]
            await asyncio.gather(*asked, return_exceptions=True)
            for topic in unknown:
                self._cluster.want(topic)
        reset = parse_reset(self.settings.auto_offset_reset)
        with self.out.lock:
            self.out.close_run()
            for tp, committed in starts.items():
                if tp in self.out.core.partitions:
                    continue
                if committed is None:
                    self.out.core.add(tp, Beginning() if tp in new else reset)
                else:
                    self.out.core.add(tp, committed.offset, committed.leader_epoch)
            self._place()
        self._act()

    async def partitions_of(self, topic: str) -> list[TopicPartition]:
        view = await self._cluster.topic(topic, self.settings.default_api_timeout_ms)
        return [TopicPartition(topic, number) for number in range(view.partitions)]

    def _begin(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._tasks.start(self._take_care(), "consumer: care")

    def _replace(self, partitions: Collection[TopicPartition]) -> None:
        core = self.out.core
        reset = parse_reset(self.settings.auto_offset_reset)
        with self.out.lock:
            self.out.close_run()
            for tp in [tp for tp in core.partitions if tp not in partitions]:
                core.remove(tp)
            for tp in partitions:
                if tp not in core.partitions:
                    core.add(tp, reset)
            self._place()
        self._act()

    def _place(self) -> None:
        """Tell the core who leads what; under the lock."""
        now_ms = self._clock.monotonic_ms()
        for tp in list(self.out.core.partitions):
            view, leader = self._cluster.find_view(tp.topic), self._cluster.leader(tp)
            if view is None or leader is None:
                text = f"{tp} is not in the cluster's metadata; was the topic deleted?"
                self.out.core.unplaced(tp, UnknownTopicOrPartition(text), now_ms)
            else:
                self.out.core.placed(tp, TopicId(view.topic_id), leader.broker, leader.epoch, now_ms)

    def exists(self, topic: str) -> bool:
        """*Any thread*: whether the topic is there, as far as is known."""
        return topic not in self.deleted

    def watch(self, topics: Collection[str]) -> None:
        """*Any thread*: the group reads these too; tell when one is deleted."""
        self.group_topics = tuple(dict.fromkeys([*self.group_topics, *sorted(topics)]))

    def look_again(self, topics: Collection[str]) -> None:
        """*Any thread*: the group gave up all that was held of a topic; was it deleted?"""
        left = {tp.topic for tp in self.out.assignment()}
        if self._loop is not None and not left.issuperset(topics):
            self._loop.call_soon_threadsafe(self._cluster.refresh, "partitions were given up")

    def _forget_deleted(self) -> None:
        """What is subscribed to without a group is there now, or nothing is."""
        self.deleted &= frozenset(self.group_topics)

    def _look_for_deleted(self) -> None:
        gone = frozenset(name for name in (*self._topics, *self.group_topics) if self._cluster.find_view(name) is None)
        for name in sorted(gone - self.deleted):
            _log.warning("topic %r, which is subscribed to, was deleted; it is read again if it is created again", name)
        self.deleted = gone

    def _metadata_changed(self) -> None:
        self._look_for_deleted()
        with self.out.lock:
            for topic in self._topics:
                view = self._cluster.find_view(topic)
                for number in range(view.partitions if view is not None else 0):
                    tp = TopicPartition(topic, number)
                    if tp not in self.out.core.partitions:
                        _log.info("%s is new; it is read from its beginning", tp)
                        self.out.core.add(tp, Beginning())
            self._place()
            if self._cluster.refusal is not None:
                self.out.core.refused(self._cluster.refusal)
        self._act()

    # --- tasks (on the loop) ------------------------------------------------------------------------------------

    async def _fetch_from(self, broker: NodeId, fetcher: _Fetcher) -> None:
        """Keep one fetch to ``broker`` on the wire while there is something to ask for."""
        core, wire = self.out.core, FetchWire(self.settings)
        while True:
            fetcher.wake.clear()
            with self.out.lock:
                plan = core.fetch(broker)
            if plan is None:
                await fetcher.wake.wait()
                continue
            fetcher.number += 1
            try:
                response = await self._answer(broker, fetcher.stream.send(wire.request(plan)))
                if response.error:
                    raise error_for(response.error, response.message)
            except HeadraceError as error:
                with self.out.lock:
                    if fetcher.given_up == fetcher.number:
                        core.answers.abandon(plan)
                    else:
                        core.answers.fail(plan, error, self._clock.monotonic_ms())
                news, throttle_ms = True, 0
            else:
                throttle_ms = response.throttle_ms
                answers = wire.answers(plan, response)
                self._learn(plan, answers)
                if not self._bulk_loaded and any(is_bulk(batch) for one in answers for batch in one.batches):
                    self._bulk_loaded = True
                    try:
                        with needing_descriptors():
                            await in_thread(load_bulk_libraries)
                    except Overloaded:
                        self.out.cold = True
                with self.out.lock:
                    news = core.answers.take(plan, answers, self._clock.monotonic_ms())
            self._act()
            if news:
                self._signal()
            if throttle_ms > 0:
                await pause_ms(throttle_ms)

    def _learn(self, plan: FetchPlan, answers: Sequence[Answer]) -> None:
        """What an answer says about leaders."""
        refused = {answer.entry.partition for answer in answers if answer.error}
        for answer in answers:
            if answer.leader is not None:
                self._cluster.hint(answer.entry.partition.tp, Leader(*answer.leader))
        if self._cluster.doubting:
            for entry in plan.entries.values():
                if entry.partition not in refused and entry.partition.leader == plan.broker:
                    self._cluster.trust(entry.partition.tp)

    async def _answer(self, broker: NodeId, answer: Awaitable[pb.FetchResponse]) -> pb.FetchResponse:
        """Wait, and ask who leads while it takes long: a broker that is stopped or cut off breaks no connection."""

        def ask() -> None:
            self._cluster.refresh(f"broker {broker} is silent")
            timer[0] = call_later_ms(SILENCE_MS, ask)

        timer = [call_later_ms(self.settings.fetch_max_wait_ms + SILENCE_MS, ask)]
        try:
            return await answer
        finally:
            timer[0].cancel()

    async def _take_care(self) -> None:
        """Look up starts, wait for pauses, ask for metadata, log events."""
        core, clock = self.out.core, self._clock
        while True:
            self._care.clear()
            with self.out.lock:
                core.state.care = False
                due_ms = core.tick(clock.monotonic_ms())
                events, reason = list(core.state.events), core.state.refresh_reason
                core.state.events.clear()
                core.state.refresh_reason = None
                doubts, core.state.doubts = core.state.doubts, {}
                lookups, recalls = core.lookups(), core.recalls()
                self._cluster_is_fresh()
            for event in events:
                self.resets += isinstance(event, PositionReset | TopicRecreated | LogDiverged)
                _log.warning("%s", event)
            if reason is not None:
                self._cluster.refresh(reason)
                for tp, epoch in doubts.items():
                    self._cluster.doubt(tp, epoch, reason)
            for broker, wanted in lookups.items():
                self._tasks.start(self._look_up(broker, wanted), f"consumer: look up starts at broker {broker}")
            if recalls:
                self._tasks.start(self._go_back(recalls), "consumer: look up committed offsets")
            self._act()
            await self._until(self._care, due_ms)

    def _cluster_is_fresh(self) -> None:
        """Asking for a topic asks the cluster again when what is known is old."""
        for topic in dict.fromkeys(tp.topic for tp in self.out.core.partitions):
            self._cluster.find_view(topic)

    async def _until(self, event: asyncio.Event, due_ms: float | None) -> None:
        wait_ms = float(self.settings.metadata_max_age_ms)
        if due_ms is not None:
            wait_ms = min(wait_ms, due_ms - self._clock.monotonic_ms())
        timer = call_later_ms(max(1.0, wait_ms), event.set)
        await event.wait()
        timer.cancel()

    async def _look_up(self, broker: NodeId, lookups: list[Lookup]) -> None:
        wall_ms = self._clock.now_ms()
        wanted = {lookup.partition.tp: timestamp_to_ask(lookup.start, wall_ms) for lookup in lookups}
        answers = await self.offsets.ask_broker(broker, wanted)
        with self.out.lock:
            for lookup in lookups:
                answer = answers[lookup.partition.tp]
                if isinstance(answer, HeadraceError):
                    self.out.core.lookup_failed(lookup, answer, self._clock.monotonic_ms())
                else:
                    self.out.core.looked_up(lookup, answer.offset)
        self._positions_known()

    async def _go_back(self, lookups: list[Lookup]) -> None:
        assert self.recall is not None, "only a group's consumer goes back to what is committed"
        try:
            committed = await self.recall([lookup.partition.tp for lookup in lookups])
        except HeadraceError as error:
            with self.out.lock:
                for lookup in lookups:
                    self.out.core.lookup_failed(lookup, error, self._clock.monotonic_ms())
        else:
            with self.out.lock:
                for lookup in lookups:
                    assert isinstance(lookup.start, LastCommitted), "the core sorts them"
                    at = committed[lookup.partition.tp] or Committed(lookup.start.fallback)
                    self.out.core.looked_up(lookup, at.offset, at.leader_epoch)
        self._positions_known()

    def _positions_known(self) -> None:
        """Starts were looked up: go on, and tell those who wait for a position."""
        self._act()
        waiters, self._position_waiters = self._position_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._signal()

    def _act(self) -> None:
        """On the loop, after the core was changed: wake those who have something to do now."""
        self._nudged = False
        rooms = self.out.core.rooms
        with self.out.lock:
            wakes, rooms.wakes = rooms.wakes, set()
            late, rooms.late = rooms.late, set()
        for broker in wakes:
            fetcher = self._fetchers.get(broker)
            if fetcher is None:
                fetcher = self._fetchers[broker] = _Fetcher(self._transport.fetch_stream(broker))
                self._tasks.start(self._fetch_from(broker, fetcher), f"consumer: fetch from broker {broker}")
            fetcher.wake.set()
        for broker in late:
            fetcher = self._fetchers[broker]
            call_later_ms(LATE_MS, fetcher.give_up, fetcher.number)
        if self.out.core.state.care:
            self._care.set()

    def _nudge(self) -> None:
        """*Any thread*, after the core was changed there."""
        core = self.out.core
        if (core.rooms.wakes or core.rooms.late or core.state.care) and not self._nudged and self._loop is not None:
            self._nudged = True
            self._loop.call_soon_threadsafe(self._act)

    def _crashed(self, error: BaseException) -> None:
        crash = Internal(f"the consumer has met a bug and stopped: {type(error).__name__}: {error}")
        crash.__cause__ = error
        self.out.crash = crash
        self._signal()

    # --- positions ----------------------------------------------------------------------------------------------

    async def position(self, tp: TopicPartition) -> int:
        """
        The next record that will be handed out; waits while it is looked up.

        Raises:
            WaitTimedOut: it could not be looked up within ``default_api_timeout_ms``.
        """
        limit_ms = self.settings.default_api_timeout_ms
        deadline_ms = self._clock.monotonic_ms() + limit_ms
        while (now := self.out.position_now(tp)) is None:
            self.out.raise_failures()
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                raise WaitTimedOut(f"the position of {tp} could not be looked up within {limit_ms} ms")
            waiter = asyncio.get_running_loop().create_future()
            self._position_waiters.append(waiter)
            await asyncio.wait([waiter], timeout=min(left_ms, 500) / 1000)
            if waiter in self._position_waiters:
                self._position_waiters.remove(waiter)
        return now

    @property
    def begun(self) -> bool:
        """Whether its tasks were started."""
        return self._loop is not None

    def state(self, started: bool) -> str:
        """As ``Consumer.state`` of one that is not closed."""
        partitions = list(self.out.core.partitions.values())
        if self.out.crash is None and self.deleted:
            return "topic_deleted"
        if self.out.crash is not None or (partitions and all(p.trouble or p.stuck_at for p in partitions)):
            return "stuck"
        if not started:
            return "new"
        return "reading" if partitions else "idle"

    def health(self, state: str, group: GroupHealth | None = None) -> ConsumerHealth:
        """How it is doing."""
        with self.out.lock:
            partitions = list(self.out.core.partitions.values())
            return ConsumerHealth(
                state=state,
                partitions=len(partitions),
                paused=sum(p.paused for p in partitions),
                buffered_bytes=sum(p.buffered_bytes for p in partitions),
                resets=self.resets,
                troubled={p.tp: str(bad.error) for p in partitions if (bad := p.stuck_at or p.trouble) is not None},
                group=group,
            )

    @property
    def topics(self) -> tuple[str, ...]:
        return self._topics

    async def close(self) -> None:
        """Stop all tasks. What was fetched and not handed out is dropped. The transport is closed by its owner."""
        await self._tasks.close()
        await self._cluster.close()
        with self.out.lock:
            self.out.close_run()
            for tp in list(self.out.core.partitions):
                self.out.core.remove(tp)
