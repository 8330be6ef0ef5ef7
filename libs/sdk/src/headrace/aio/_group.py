"""
The membership of one consumer: feeds the pure machine with what happens, and does what it wants done.

It lives on the process's loop thread (``_runtime.loop_thread``), for the consumers of both twins: what the application
does on its own thread or event loop cannot keep heartbeats from leaving. ``tell`` and ``begin_job`` may be called by
any thread; one short lock guards the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from headrace import _runtime
from headrace._core.group_messages import (
    Broke,
    Closing,
    Compute,
    Computed,
    Connect,
    Effect,
    Event,
    HangUp,
    Job,
    Join,
    LookedUp,
    LookUp,
    NotComputed,
    Notify,
    NotLookedUp,
    Opened,
    Partitions,
    Send,
    Subscribed,
    Ticked,
    Told,
    TopicsSeen,
    Warn,
)
from headrace._core.membership import Membership
from headrace._core.membership_classic import ClassicMembership
from headrace._core.membership_consumer import ConsumerMembership
from headrace._core.phases import ACTIVE, Identity, Phase
from headrace._runtime import Tasks
from headrace._transport.port import Coordinator, MembershipStream, Transport
from headrace.aio._classic_leader import ClassicLeader
from headrace.aio._committing import Committing
from headrace.aio._group_coordinator import GroupCoordinator
from headrace.aio._group_wire import GroupWire
from headrace.consumer_settings import CLASSIC, ConsumerSettings
from headrace.errors import (
    HeadraceError,
    IllegalGeneration,
    Internal,
    RebalanceInProgress,
    UnknownMemberId,
    WaitTimedOut,
)
from headrace.records import Committed
from headrace_common.core.ids import TopicPartition
from headrace_common.runtime.clock import Clock, call_later_ms, limit_ms, limit_s
from headrace_common.runtime.entropy import new_uuid

LEAVE_MS_MAX: Final = 2_000
"""How long the end waits for the coordinator's answer to the good-bye."""

COMMIT_ALLOWANCE_S: Final = 0.5
"""Beyond the time of a commit: for the answer to its last attempt."""

_log = logging.getLogger("headrace.consumer")


class Group:
    """
    See the module's text.

    Args:
        transport: used on the loop thread only; closed here.
        notify: called, on any thread, when the application has something to do or to read.
    """

    def __init__(
        self, transport: Transport, settings: ConsumerSettings, clock: Clock, notify: Callable[[], None]
    ) -> None:
        self.lock = threading.Lock()
        self.news = False
        """Whether there may be a job or a failure; ``begin_job`` clears it."""
        self.settings = settings
        self.loop = _runtime.loop_thread()
        self.core = _membership(settings)
        self._transport = transport
        self._clock = clock
        self._notify = notify
        self._tasks = Tasks(self._crashed)
        self._wire = GroupWire(settings)
        self._leader = ClassicLeader(transport, settings, self._wire)
        self.coordinators = GroupCoordinator(transport, settings, clock)
        self.committing = Committing(transport, self.coordinators, settings, clock, self._tasks, self.identity)
        self.coordinator: Coordinator | None = None
        """To whom there is a stream."""
        self._todo: deque[Effect] = deque()
        self._carrying = False
        self._conversation: asyncio.Task[None] | None = None
        self._stream: MembershipStream | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: float | None = None
        self._watching: asyncio.Task[None] | None = None
        self._left: asyncio.Event | None = None
        self.crash: HeadraceError | None = None
        """Set when a task met a bug: every step raises it."""

    # --- any thread -----------------------------------------------------------------------------------------------

    @property
    def joined(self) -> bool:
        """Whether there is a membership, as opposed to partitions that the application has chosen."""
        return self.core.phase is not Phase.NEW

    def tell(self, event: Event, core: Membership | None = None) -> None:
        """Something happened; to ``core``, if that is given: a membership that is over hears nothing."""
        with self.lock:
            if core is not None and core is not self.core:
                return
            paused = self.core.suspended(event.now_ms)
            effects = self.core.handle(event)
            self._todo.extend(effects)
            changed = any(isinstance(effect, Notify) for effect in effects)
            self.news = self.news or changed
            resumed = paused and not self.core.suspended(event.now_ms)
        if changed or resumed:
            self._notify()
        if self.loop.here:
            self._carry_out()
        else:
            self.loop.call_soon(self._carry_out)

    def begin_job(self) -> Job | None:
        """What the application has to do now, if anything; ``Did`` ends it."""
        with self.lock:
            job = self.core.begin()
            self.news = job is not None
            return job

    def take_failure(self, now_ms: float) -> HeadraceError | None:
        """What the application has to be told now."""
        if self.crash is not None:
            return self.crash
        core = self.core
        if core.failure is None and core.trouble is None:
            return None
        with self.lock:
            return core.take_failure(now_ms)

    def give_up(self, partitions: Partitions) -> None:
        """The application has let go of these: what it asked to commit of them and is not under way yet fails."""
        error = IllegalGeneration(
            f"this consumer of group {self.settings.group_id!r} gave its partitions up before the commit could be "
            "made; whoever has them reads on from what was committed before"
        )
        self.loop.call_soon(lambda: self.committing.give_up(partitions, error))

    def identity(self) -> Identity:
        """
        Who commits now.

        Raises:
            UnknownMemberId: it was a member, and is out.
            RebalanceInProgress: it is no member yet.
        """
        with self.lock:
            core = self.core
            known = core.identity
            if core.phase is Phase.NEW:
                return Identity("", -1)
            if known is not None and not core.holdings.lost:
                return known
            if core.failure is not None:
                raise core.failure
            if core.phase in (Phase.OUT, Phase.AWAY, Phase.LEAVING, Phase.LEFT) or core.holdings.lost:
                raise UnknownMemberId(
                    f"this consumer is out of group {self.settings.group_id!r} since it took these records: others "
                    "have the partitions and read on from what was committed. The next poll joins again"
                )
        raise RebalanceInProgress(f"group {self.settings.group_id!r} has not taken this consumer in yet; poll first")

    # --- calls of the application (on the loop) ---------------------------------------------------------------------

    async def subscribe(self, topics: Iterable[str], pattern: str | None) -> None:
        """Become a member that reads these, or go on as one."""
        if pattern is not None and isinstance(self.core, ClassicMembership):
            self.tell(TopicsSeen(await self._leader.topic_sizes(None), self._clock.monotonic_ms()))
        self.tell(Subscribed(tuple(dict.fromkeys(topics)), pattern, self._clock.monotonic_ms()))
        if self._watching is None and isinstance(self.core, ClassicMembership):
            self._watching = self._tasks.start(self._watch_topics(self.core), "consumer: watch topics")

    async def commit(self, offsets: Mapping[TopicPartition, Committed], timeout_ms: float) -> None:
        """
        Commit, repeating what may help.

        Raises:
            HeadraceError: why it could not be done.
        """
        answer = self.committing.commit(offsets, self._clock.monotonic_ms() + timeout_ms)
        try:
            async with limit_s(timeout_ms / 1_000 + COMMIT_ALLOWANCE_S):
                error = await answer
        except TimeoutError:
            raise WaitTimedOut(
                f"the commit was not answered within {timeout_ms:g} ms; whether it was made is unknown"
            ) from None
        if error is not None:
            raise error

    def start_commit(
        self, offsets: Mapping[TopicPartition, Committed], done: Callable[[HeadraceError | None], None]
    ) -> None:
        """Commit without repeating; ``done`` is called on the loop."""
        answer = self.committing.commit(offsets, None)
        answer.add_done_callback(lambda future: done(future.result()))

    async def wait_until_committed(self, timeout_ms: float) -> None:
        """Wait until every commit there is has its answer, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with limit_ms(timeout_ms):
                await self.committing.commit({}, None)

    async def leave(self, timeout_ms: float) -> None:
        """Say good-bye, and wait a little for the answer."""
        self._left = asyncio.Event()
        self.tell(Closing(self._clock.monotonic_ms()))
        if self.core.phase is Phase.LEAVING:
            timer = call_later_ms(min(timeout_ms, LEAVE_MS_MAX), self._left.set)
            await self._left.wait()
            timer.cancel()

    async def unsubscribe(self, timeout_ms: float) -> None:
        """Say good-bye, and be as if there had been no membership."""
        if not self.joined:
            return
        await self.leave(timeout_ms)
        with self.lock:
            self.core = _membership(self.settings)
            self.news = False
            self._todo.clear()
        self._left = None
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
        self._hang_up()
        self._arm()

    async def close(self) -> None:
        """End everything; without ``leave`` the coordinator keeps the place for a while."""
        self.committing.close()
        stream, self._stream = self._stream, None
        if self._timer is not None:
            self._timer.cancel()
        if stream is not None:
            await stream.close()
        await self._tasks.close()
        await self._transport.close()

    # --- what the machine wants (on the loop) -----------------------------------------------------------------------

    def _carry_out(self) -> None:
        if self._carrying:
            return
        self._carrying = True
        try:
            while self._todo:
                self._do(self._todo.popleft())
        finally:
            self._carrying = False
        self._arm()
        if self._left is not None and self.core.phase is Phase.LEFT:
            self._left.set()

    def _do(self, effect: Effect) -> None:
        match effect:
            case Connect(after_ms):
                self._hang_up()
                self._conversation = self._tasks.start(self._converse(after_ms), "consumer: membership")
            case HangUp():
                self._hang_up()
            case Send(Join() as join) if self._leader.tells_user_data:
                self._tasks.start(self._join_with_data(join), "consumer: what the assignor tells its leader")
            case Send(request):
                if self._stream is not None:
                    self._stream.send(self._wire.request(request))
            case Compute():
                self._tasks.start(self._compute(effect), "consumer: assignment of the group")
            case LookUp(version, partitions):
                self._tasks.start(self._look_up(version, partitions), "consumer: committed offsets")
            case Warn(text):
                _log.warning("%s", text)
            case Notify():
                pass  # told already

    async def _join_with_data(self, join: Join) -> None:
        core, stream = self.core, self._stream
        try:
            user_data = await self._leader.user_data(join.topics)
        except HeadraceError as error:
            self.tell(Broke(error, self._clock.monotonic_ms()), core)
            return
        if stream is not None and stream is self._stream and core.phase in ACTIVE:
            stream.send(self._wire.request(join, user_data))

    def _hang_up(self) -> None:
        conversation, self._conversation = self._conversation, None
        stream, self._stream = self._stream, None
        self.coordinator = None
        if conversation is not None:
            conversation.cancel()
        if stream is not None:
            self._tasks.start(stream.close(), "consumer: hang up")

    async def _converse(self, after_ms: float) -> None:
        core = self.core
        try:
            await self._clock.sleep_ms(after_ms)
            coordinator = await self.coordinators.find(anew=True)
            stream = self._stream = self._transport.membership(coordinator)
            self.coordinator = coordinator
            self.tell(Opened(self._clock.monotonic_ms()), core)
            while True:
                answer = self._wire.answer(await stream.receive())
                if answer is not None:
                    self.tell(Told(answer, self._clock.monotonic_ms()), core)
        except HeadraceError as error:
            self.coordinators.judge_failure(error)
            self.tell(Broke(error, self._clock.monotonic_ms()), core)

    def _arm(self) -> None:
        """Wake the machine when it wants to be."""
        with self.lock:
            due_ms = self.core.due_ms()
        if due_ms == self._timer_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_ms = None, due_ms
        if due_ms is not None:
            wait_ms = max(1.0, due_ms - self._clock.monotonic_ms())
            self._timer = call_later_ms(wait_ms, self._tick)

    def _tick(self) -> None:
        self._timer_ms = None
        self.tell(Ticked(self._clock.monotonic_ms()))

    async def _look_up(self, version: int, partitions: Partitions) -> None:
        core = self.core
        try:
            offsets = await self.coordinators.fetch(partitions, self.settings.default_api_timeout_ms)
        except HeadraceError as error:
            self.tell(NotLookedUp(version, error, self._clock.monotonic_ms()), core)
            return
        self.tell(LookedUp(version, offsets, self._clock.monotonic_ms()), core)

    # --- what a classic leader does ---------------------------------------------------------------------------------

    async def _compute(self, wanted: Compute) -> None:
        core = self.core
        try:
            shares, sizes = await self._leader.compute(wanted)
        except HeadraceError as error:
            self.tell(NotComputed(wanted.generation, error, self._clock.monotonic_ms()), core)
            return
        self.tell(Computed(wanted.generation, shares, sizes, self._clock.monotonic_ms()), core)

    async def _watch_topics(self, core: ClassicMembership) -> None:
        """Tell of new partitions, and of topics that match the pattern."""
        while True:
            await self._clock.sleep_ms(self.settings.metadata_max_age_ms)
            try:
                seen = await self._leader.topic_sizes(None if core.pattern is not None else core.watched)
            except HeadraceError as error:
                _log.info("group %s: topics could not be looked at: %s", self.settings.group_id, error)
                continue
            self.tell(TopicsSeen(seen, self._clock.monotonic_ms()), core)

    def _crashed(self, error: BaseException) -> None:
        self.crash = Internal(f"the consumer's group has met a bug and stopped: {type(error).__name__}: {error}")
        self.crash.__cause__ = error
        self.news = True
        self._notify()


def _membership(settings: ConsumerSettings) -> ClassicMembership | ConsumerMembership:
    """A new one, of nobody yet."""
    if settings.group_protocol == CLASSIC:
        return ClassicMembership(settings.group)
    return ConsumerMembership(settings.group, new_uuid())
