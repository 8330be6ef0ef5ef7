"""
The membership of one consumer: what ``_conversing`` does, and what concerns partitions and their positions.

``begin_job`` may be called by any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from headrace._core.group_messages import (
    Broke,
    Compute,
    Computed,
    Effect,
    Job,
    Join,
    LookedUp,
    LookUp,
    NotComputed,
    NotLookedUp,
    Partitions,
    Send,
    Subscribed,
    TopicsSeen,
)
from headrace._core.membership_classic import ClassicMembership
from headrace._core.membership_consumer import ConsumerMembership
from headrace._core.phases import ACTIVE, Identity, Phase
from headrace._transport.port import Transport
from headrace.aio._classic_leader import ClassicLeader
from headrace.aio._committing import Committing
from headrace.aio._conversing import Conversing
from headrace.aio._group_coordinator import GroupCoordinator
from headrace.aio._group_wire import GroupWire
from headrace.consumer_settings import CLASSIC, ConsumerSettings
from headrace.errors import (
    HeadraceError,
    IllegalGeneration,
    RebalanceInProgress,
    UnknownMemberId,
    WaitTimedOut,
)
from headrace.records import Committed
from headrace_common.core.ids import TopicPartition
from headrace_common.runtime.clock import Clock, limit_ms, limit_s
from headrace_common.runtime.entropy import new_uuid

COMMIT_ALLOWANCE_S: Final = 0.5
"""Beyond the time of a commit: for the answer to its last attempt."""

_log = logging.getLogger("headrace.consumer")


class Group(Conversing[ClassicMembership | ConsumerMembership]):
    """
    See the module's text.

    Args:
        transport: used on the loop thread only; closed here.
        notify: called, on any thread, when the application has something to do or to read.
    """

    _wire: GroupWire

    def __init__(
        self, transport: Transport, settings: ConsumerSettings, clock: Clock, notify: Callable[[], None]
    ) -> None:
        self.settings = settings
        self.coordinators = GroupCoordinator(transport, settings, clock)
        wire = GroupWire(settings)
        super().__init__("consumer", _membership(settings), wire, self.coordinators, transport, clock, notify)
        self._leader = ClassicLeader(transport, settings, wire)
        self.committing = Committing(transport, self.coordinators, settings, clock, self._tasks, self.identity)
        self._watching: asyncio.Task[None] | None = None

    # --- any thread -----------------------------------------------------------------------------------------------

    @property
    def joined(self) -> bool:
        """Whether there is a membership, as opposed to partitions that the application has chosen."""
        return self.core.phase is not Phase.NEW

    def begin_job(self) -> Job | None:
        """What the application has to do now, if anything; ``Did`` ends it."""
        with self.lock:
            job = self.core.begin()
            self.news = job is not None
            return job

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
        self.committing.close()
        await super().close()

    # --- what the machine wants (on the loop) -----------------------------------------------------------------------

    def _do(self, effect: Effect) -> None:
        match effect:
            case Send(Join() as join) if self._leader.tells_user_data:
                self._tasks.start(self._join_with_data(join), "consumer: what the assignor tells its leader")
            case Compute():
                self._tasks.start(self._compute(effect), "consumer: assignment of the group")
            case LookUp(version, partitions):
                self._tasks.start(self._look_up(version, partitions), "consumer: committed offsets")
            case _:
                super()._do(effect)

    async def _join_with_data(self, join: Join) -> None:
        core, stream = self.core, self._stream
        try:
            user_data = await self._leader.user_data(join.topics)
        except HeadraceError as error:
            self.tell(Broke(error, self._clock.monotonic_ms()), core)
            return
        if stream is not None and stream is self._stream and core.phase in ACTIVE:
            stream.send(self._wire.request(join, user_data))

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


def _membership(settings: ConsumerSettings) -> ClassicMembership | ConsumerMembership:
    """A new one, of nobody yet."""
    if settings.group_protocol == CLASSIC:
        return ClassicMembership(settings.group)
    return ConsumerMembership(settings.group, new_uuid())
