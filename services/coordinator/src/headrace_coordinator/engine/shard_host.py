"""
Keeps one shard that the controller has given to this node: takes its log over, reads it, serves it, and lets it go.

Events come in through ``post`` and ``ask``, wait in a bounded inbox and are handled by one task, which owns the state
machine; another task writes (``Outbox``). A host belongs to one shard epoch. When another writer turns up in the log
the state is dropped at once and everybody is told NOT_COORDINATOR; should the image still name this node after a
while, the host begins anew.

What is answered from memory alone (heartbeats, descriptions) is shown at once only while this node surely has the
shard: within its tenure at the controller, or shortly after an append that succeeded. Otherwise it waits for a proof,
and always does where being out of date would harm: committed offsets, and telling a member that it is out. A process
that was paused finds tenure and append in the past, so a zombie shows nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

from headrace_common.core.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    Fenced,
    FencedWriter,
    HeadraceError,
    NotCoordinator,
    Overloaded,
)
from headrace_common.core.ids import Offset
from headrace_common.runtime.entropy import backoff_ms
from headrace_common.runtime.logs import logger
from headrace_common.runtime.memory import long_lived
from headrace_common.runtime.tasks import first_of
from headrace_coordinator.core.effects import (
    Answer,
    CloseStream,
    ConsumerStanding,
    Effect,
    GroupListing,
    JoinAnswer,
    Result,
    Send,
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
    MemberEvent,
    OffsetsAsked,
    OffsetsDeletionAsked,
    StreamBroke,
    TopicsChanged,
    Woken,
)
from headrace_coordinator.core.shard import Shard
from headrace_coordinator.core.values import Topics
from headrace_coordinator.engine.outbox import Outbox, Visible
from headrace_coordinator.engine.streams import MemberStream
from headrace_coordinator.engine.surroundings import Surroundings
from headrace_coordinator.ports import ShardLog

INBOX_MAX: Final = 20_000
HELD_MAX: Final = 100_000
"""Effects, and records, that may wait for the log; beyond it requests are refused."""
EVENTS_PER_TURN: Final = 200
"""Events handled before others on the event loop get a turn."""
PROVED_MS: Final = 3_000.0
"""How long after an append that succeeded memory is trusted without the controller; below any member's session."""
BEGIN_AGAIN_MS: Final = 500.0
BEGIN_AGAIN_MS_MAX: Final = 10_000.0
STALLED_MS: Final = 500.0
"""A timer that fires so late finds heartbeats unread: let them in before sessions are judged."""
STALL_GRACE_MS: Final = 1_000.0

PROVED: Final = (OffsetsAsked, CommitAsked, OffsetsDeletionAsked, GroupDeletionAsked)
"""Events whose answers, refusals too, must be current."""
MEMBER_REQUESTS: Final = (ConsumerHeartbeat, ClassicHeartbeat, ClassicJoined, ClassicSynced, Left)

log = logger(__name__)


class Phase(Enum):
    """What a host answers."""

    LOADING = "loading"
    SERVING = "serving"
    LOST = "lost"
    """Another writer has the log; or the host was stopped."""
    FAILED = "failed"
    """The log cannot be read or written for a reason that waiting does not overcome; it is tried again."""


class ShardHost:
    """Of one shard in one epoch; ``start`` it once, ``stop`` it once."""

    def __init__(self, number: int, epoch: int, around: Surroundings, topics: Topics) -> None:
        self.number = number
        self.epoch = epoch
        self.phase = Phase.LOADING
        self._around = around
        self._topics = topics
        self._core = Shard(number, around.settings)
        self._outbox = Outbox(self._core.group_record, self._show)
        self._inbox: deque[Event | None] = deque()
        """None: the topics have changed."""
        self._filled = asyncio.Event()
        self._append_wanted = asyncio.Event()
        self._streams: dict[int, MemberStream] = {}
        self._asked: set[asyncio.Future[Result]] = set()
        self._proved_until_ms = 0.0
        self._timer: asyncio.Task[None] | None = None
        self._timer_at_ms = 0.0
        self._run_task: asyncio.Task[None] | None = None

    # --- called by the coordinator ----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to take the shard over."""
        self._run_task = self._around.tasks.start(self._run(), name=f"shard-{self.number}@{self.epoch}")

    def stop(self) -> None:
        """The shard has another owner, or another epoch: drop everything at once."""
        if self._run_task is not None:
            self._run_task.cancel()
        self._drop(Phase.LOST, NotCoordinator(f"shard {self.number} has moved; find the group's coordinator anew"))

    def topics_changed(self, topics: Topics) -> None:
        """The image has other topics."""
        self._topics = topics
        if self.phase is Phase.SERVING:
            self._inbox.append(None)
            self._filled.set()

    def open_stream(self, number: int, group_id: str, address: str) -> MemberStream:
        """
        A stream for one member of a group of this shard.

        Raises:
            HeadraceError: as ``check_serving``.
        """
        self.check_serving()
        stream = self._streams[number] = MemberStream(number, group_id, address)
        return stream

    def close_stream(self, stream: MemberStream) -> None:
        """The call has ended: nothing can be sent over it any more."""
        if self._streams.pop(stream.number, None) is not None:
            stream.close()

    def stream_broke(self, stream: MemberStream) -> None:
        """No more requests will come over it. Once per stream."""
        if self._streams.get(stream.number) is stream:
            self._inbox.append(StreamBroke(stream.group_id, stream.number, self._around.moment()))
            self._filled.set()

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
            raise NotCoordinator(f"shard {self.number} has moved meanwhile; find the group's coordinator anew")
        stream.taken()
        self._inbox.append(event)
        self._filled.set()

    async def ask(self, make: Callable[[object], AdminEvent]) -> Result:
        """
        The answer to the event that ``make`` makes of a reference; durable, and current when the call began.

        Raises:
            CoordinatorNotAvailable: the log did not confirm it in time; the outcome is unknown.
            HeadraceError: as ``check_serving``, or what the group answers.
        """
        self.check_serving()
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._asked.add(future)
        self._inbox.append(make(future))
        self._filled.set()
        try:
            async with asyncio.timeout(self._around.append_timeout_ms / 1_000):
                return await future
        except TimeoutError:
            raise CoordinatorNotAvailable(
                f"the log of shard {self.number} did not confirm within {self._around.append_timeout_ms:g} ms; what "
                "was asked may have happened: try again, and see that its partition has enough replicas in sync"
            ) from None
        finally:
            self._asked.discard(future)

    def check_serving(self) -> None:
        """
        Raises:
            NotCoordinator, CoordinatorLoading, CoordinatorNotAvailable, Overloaded: nothing more is taken in now.
        """
        match self.phase:
            case Phase.LOADING:
                raise CoordinatorLoading(f"shard {self.number} is being read; try again in a moment")
            case Phase.LOST:
                raise NotCoordinator(f"shard {self.number} has moved; find the group's coordinator anew")
            case Phase.FAILED:
                raise CoordinatorNotAvailable(
                    f"shard {self.number} cannot be served now, the coordinator's log says why; try again"
                )
        if len(self._inbox) >= INBOX_MAX or self._outbox.held + self._outbox.rows >= HELD_MAX:
            raise Overloaded(f"too much waits for the log of shard {self.number}; try again in a second")

    # --- reading beside the events ----------------------------------------------------------------------------

    def listing(self) -> list[GroupListing]:
        """All groups as they are in memory; they may be ahead of the log, or out of date by a moment."""
        return self._core.listing() if self.phase is Phase.SERVING else []

    def peek(self, event: OffsetsAsked) -> Result | HeadraceError:
        """What a read finds in memory, unproved: for measuring."""
        (answer,) = self._core.handle(event)
        assert isinstance(answer, Answer), "reading has no other effect"
        return answer.result

    # --- the life of a host -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        failures = 0
        while True:
            shard_log = self._around.logs.open(self.number, self.epoch)
            try:
                await self._load(shard_log)
                failures = 0
                await first_of(self._serve(), self._write(shard_log))
            except FencedWriter as error:
                self._around.measures.lost()
                log.warning("shard lost: %s", error, extra={"shard": self.number, "epoch": self.epoch})
                self._drop(Phase.LOST, NotCoordinator(f"another coordinator has shard {self.number}; find it anew"))
            except HeadraceError as error:
                log.error("shard cannot be served: %s", error, extra={"shard": self.number, "epoch": self.epoch})
                self._drop(Phase.FAILED, CoordinatorNotAvailable(f"shard {self.number} is read anew: {error}"))
            finally:
                await shard_log.close()
            failures += 1
            pause = backoff_ms(failures, first_ms=BEGIN_AGAIN_MS, ms_max=BEGIN_AGAIN_MS_MAX)
            await self._around.clock.sleep_ms(pause)
            if self.phase is Phase.FAILED:
                self.phase = Phase.LOADING

    async def _load(self, shard_log: ShardLog) -> None:
        """Fence, wait until that is committed, read, serve."""
        clock = self._around.clock
        began = clock.monotonic_ms()
        until = await shard_log.take_over()
        self._proved_until_ms = began + PROVED_MS
        core, records = await self._read(shard_log, until)
        self._core = core
        self._outbox = Outbox(core.group_record, self._show)
        self.phase = Phase.SERVING
        self._handle(self._topics_event())
        self._handle(Loaded(self._around.moment()))
        self._schedule()
        spent = clock.monotonic_ms() - began
        self._around.measures.loaded(records, spent)
        about = {"shard": self.number, "epoch": self.epoch, "records": records, "ms": round(spent)}
        log.info("shard is served", extra=about)

    async def _read(self, shard_log: ShardLog, until: Offset) -> tuple[Shard, int]:
        """The state machine as the log has it, and how many records that were."""
        latest: dict[bytes | None, bytes | None] = {}
        records = 0
        async for part in shard_log.read(until):
            records += len(part.keys)
            latest.update(zip(part.keys, part.values, strict=True))
            await self._around.clock.sleep_ms(0)
        # Beside the event loop, like the decoding before it: nobody else has the state machine yet.
        with long_lived():
            core = await asyncio.to_thread(_replayed, Shard(self.number, self._around.settings), latest)
        return core, records

    async def _serve(self) -> None:
        """Handle what comes in, for ever."""
        while True:
            while self._inbox:
                for _ in range(min(len(self._inbox), EVENTS_PER_TURN)):
                    event = self._inbox.popleft()
                    self._handle(self._topics_event() if event is None else event)
                self._schedule()
                await self._around.clock.sleep_ms(0)
            self._filled.clear()
            await self._filled.wait()

    async def _write(self, shard_log: ShardLog) -> None:
        """Append what gathers, one append at a time, for ever."""
        clock = self._around.clock
        while True:
            while self._outbox.append_wanted:
                rows = self._outbox.begin()
                began = clock.monotonic_ms()
                await shard_log.append(rows)
                self._proved_until_ms = began + PROVED_MS
                self._around.measures.appended(len(rows), clock.monotonic_ms() - began)
                self._outbox.done()
            self._append_wanted.clear()
            await self._append_wanted.wait()

    def _drop(self, phase: Phase, error: HeadraceError) -> None:
        self.phase = phase
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._inbox.clear()
        self._core = Shard(self.number, self._around.settings)
        self._outbox = Outbox(self._core.group_record, self._show)
        for future in self._asked:
            if not future.done():
                future.set_exception(error)
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(error)

    # --- events and effects -----------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        effects = self._core.handle(event)
        proof = isinstance(event, PROVED) or not self._surely_ours() or any(map(_refuses, effects))
        self._outbox.take(effects, proof=proof)
        if self._outbox.append_wanted:
            self._append_wanted.set()
        if isinstance(event, MEMBER_REQUESTS) and (stream := self._streams.get(event.stream)) is not None:
            stream.handled()

    def _surely_ours(self) -> bool:
        return self._around.clock.monotonic_ms() < max(self._around.cluster.tenure_until_ms, self._proved_until_ms)

    def _topics_event(self) -> TopicsChanged:
        patterns, topics = self._around.patterns, self._topics
        matches = {pattern: patterns.matching(pattern, topics) for pattern in self._core.patterns()}
        return TopicsChanged(self._around.moment(), topics, matches)

    def _show(self, effect: Visible) -> None:
        match effect:
            case Send(_, number, message):
                stream = self._streams.get(number)
                if stream is not None:
                    stream.send(message)
                if isinstance(message, JoinAnswer) and message.members:
                    self._around.measures.rebalanced()
                elif isinstance(message, ConsumerStanding) and message.assignment is not None:
                    self._around.measures.assigned()
            case CloseStream(_, number):
                stream = self._streams.get(number)
                if stream is not None:
                    stream.close()
            case Answer(_, ref, result):
                assert isinstance(ref, asyncio.Future), "a reference is what ask made"
                if ref.done():
                    return  # whoever asked has given up
                if isinstance(result, HeadraceError):
                    ref.set_exception(result)
                else:
                    ref.set_result(result)

    # --- time -------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Have the core woken in time. A timer that is early stays: waking is cheaper than starting timers anew."""
        due_ms = self._core.next_wake_ms()
        if due_ms is None or (self._timer is not None and self._timer_at_ms <= due_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = due_ms
        self._timer = self._around.tasks.start(self._wake_at(due_ms), name=f"shard-{self.number}-timer")

    async def _wake_at(self, due_ms: float) -> None:
        clock = self._around.clock
        await clock.sleep_ms(due_ms - clock.monotonic_ms())
        late_ms = clock.monotonic_ms() - due_ms
        if late_ms > STALLED_MS:
            log.warning("this process was held up", extra={"shard": self.number, "ms": round(late_ms)})
            await clock.sleep_ms(STALL_GRACE_MS)
        self._timer = None
        self._inbox.append(Woken(self._around.moment()))
        self._filled.set()


def _refuses(effect: Effect) -> bool:
    """Whether it tells a member that it is out, or somebody else."""
    return isinstance(effect, Send) and isinstance(effect.message.error, Fenced)


def _replayed(core: Shard, latest: Mapping[bytes | None, bytes | None]) -> Shard:
    """
    ``core`` with the records taken in and read.

    Raises:
        RecordDamaged, UnsupportedVersion: a record cannot be read.
    """
    core.replay((key, value) for key, value in latest.items() if key is not None and value is not None)
    core.patterns()  # reads them
    return core
