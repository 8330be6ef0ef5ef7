"""
Keeps one shard that the controller has given to this node: takes its log over, reads it, serves it, and lets it go.

What shards of groups and of transactions have in common; ``shard_host`` and ``transaction_host`` add what is asked of
them and what becomes of their effects.

Events wait in a bounded inbox and are handled by one task, which owns the state machine; another task writes
(``Outbox``). A host belongs to one shard epoch. When another writer turns up in the log the state is dropped at once
and everybody is told NOT_COORDINATOR; should the image still name this node after a while, the host begins anew.

What is answered from memory alone is shown at once only while this node surely has the shard: within its tenure at the
controller, or shortly after an append that succeeded. Otherwise it waits for a proof, and always does where being out
of date would harm. A process that was paused finds tenure and append in the past, so a zombie shows nothing; it gets a
new tenure when it has seen the image in which it takes part again, and with that, who has its shards now.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Generic, Protocol, TypeVar

from headrace_common.core.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    FencedWriter,
    HeadraceError,
    NotCoordinator,
    Overloaded,
)
from headrace_common.core.ids import Offset
from headrace_common.core.image import ShardKey
from headrace_common.runtime.clock import limit_ms
from headrace_common.runtime.entropy import backoff_ms
from headrace_common.runtime.logs import logger
from headrace_common.runtime.memory import exclude_from_gc
from headrace_common.runtime.tasks import first_of
from headrace_common.runtime.threads import run_in_thread
from headrace_coordinator.core.effects import Row
from headrace_coordinator.core.values import Moment
from headrace_coordinator.engine.host_ports import HostPorts
from headrace_coordinator.engine.outbox import Outbox, V
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

log = logger(__name__)


class Phase(Enum):
    """What a host answers."""

    LOADING = "loading"
    SERVING = "serving"
    LOST = "lost"
    """Another writer has the log; or the host was stopped."""
    FAILED = "failed"
    """The log cannot be read or written for a reason that waiting does not overcome; it is tried again."""


class Core(Protocol):
    """A shard's state machine, as hosts use it: events in, effects out."""

    def replay(self, rows: Iterable[Row]) -> None:
        """
        Take records in, before all events.

        Raises:
            RecordDamaged, UnsupportedVersion: a record cannot be read.
        """
        ...

    def handle(self, event: Any) -> Sequence[Any]:
        """The effects of an event, in order."""
        ...

    def next_wake_ms(self) -> float | None:
        """When it wants to be woken, monotonic; None: not until something happens."""
        ...


C = TypeVar("C", bound=Core)
E = TypeVar("E")


class Host(ABC, Generic[C, E, V]):
    """Of one shard in one epoch; ``start`` it once, ``stop`` it once."""

    def __init__(self, key: ShardKey, epoch: int, ports: HostPorts) -> None:
        self.key = key
        self.number = key.number
        self.epoch = epoch
        self.phase = Phase.LOADING
        self._ports = ports
        self._core = self._new_core()
        self._outbox = self._new_outbox()
        self._inbox: deque[Callable[[], E] | E] = deque()
        """Events, or what makes one when its turn has come."""
        self._filled = asyncio.Event()
        self._append_wanted = asyncio.Event()
        self._asked: set[asyncio.Future[Any]] = set()
        self._proved_until_ms = 0.0
        self._timer: asyncio.Task[None] | None = None
        self._timer_at_ms = 0.0
        self._run_task: asyncio.Task[None] | None = None

    # --- what kinds of shards differ in -----------------------------------------------------------------------

    @abstractmethod
    def _new_core(self) -> C:
        """A state machine that knows nothing yet."""

    @abstractmethod
    def _new_outbox(self) -> Outbox[V]:
        """What holds the effects of ``self._core`` back."""

    @abstractmethod
    def _first_events(self) -> Iterable[E]:
        """What the state machine is told when its log has been read."""

    @abstractmethod
    def _make_wake(self, at: Moment) -> E:
        """What the state machine is told when its time has come."""

    @abstractmethod
    def _needs_proof(self, event: E, effects: Sequence[Any]) -> bool:
        """Whether these effects must be current, even within the tenure."""

    @abstractmethod
    def _show(self, effect: V) -> None:
        """Carry out an effect; what it stands on is durable."""

    @abstractmethod
    def _let_go(self, error: HeadraceError) -> None:
        """The state was dropped: tell everybody but those who wait in ``ask``."""

    def _prepare(self, core: C) -> C:
        """``core`` after its replay; beside the event loop, for what takes long."""
        return core

    def _carry_out_at_once(self, event: E, effects: Sequence[Any]) -> Sequence[Any]:
        """See to those effects that need not wait; the others are returned."""
        del event
        return effects

    def _urgent(self, effects: Sequence[Any]) -> bool:
        """Whether somebody waits for these effects: else their records may gather for a while."""
        del effects
        return True

    def _handled(self, event: E) -> None:
        """An event was handled."""

    def _appending(self) -> None:
        """What has gathered is about to be appended."""

    def _appended(self) -> None:
        """It is committed; nobody has been told yet."""

    # --- called by the coordinator ----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to take the shard over."""
        self._run_task = self._ports.tasks.start(self._run(), name=f"{self.key}@{self.epoch}")

    def stop(self) -> None:
        """The shard has another owner, or another epoch: drop everything at once."""
        if self._run_task is not None:
            self._run_task.cancel()
        self._drop(Phase.LOST, NotCoordinator(f"shard {self.number} has moved; find its coordinator again"))

    def check_serving(self) -> None:
        """
        Raises:
            NotCoordinator, CoordinatorLoading, CoordinatorNotAvailable, Overloaded: nothing more is taken in now.
        """
        match self.phase:
            case Phase.LOADING:
                raise CoordinatorLoading(f"shard {self.number} is being read; try again in a moment")
            case Phase.LOST:
                raise NotCoordinator(f"shard {self.number} has moved; find its coordinator again")
            case Phase.FAILED:
                raise CoordinatorNotAvailable(
                    f"shard {self.number} cannot be served now, the coordinator's log says why; try again"
                )
        if len(self._inbox) >= INBOX_MAX or self._outbox.held + self._outbox.rows >= HELD_MAX:
            raise Overloaded(f"too much waits for the log of shard {self.number}; try again in a second")

    def _take_in(self, event: Callable[[], E] | E) -> None:
        self._inbox.append(event)
        self._filled.set()

    async def _answer_to(self, make: Callable[[object], E], gave_up: Callable[[object], HeadraceError]) -> Any:
        """
        The answer to the event that ``make`` makes of a reference.

        Args:
            gave_up: called when it did not come within ``append_timeout_ms``, for the error to raise, and when the
                caller is cancelled.
        """
        self.check_serving()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked.add(future)
        self._take_in(make(future))
        try:
            async with limit_ms(self._ports.append_timeout_ms):
                return await future
        except TimeoutError:
            raise gave_up(future) from None
        except asyncio.CancelledError:
            gave_up(future)
            raise
        finally:
            self._asked.discard(future)

    def _unconfirmed(self) -> HeadraceError:
        return CoordinatorNotAvailable(
            f"the log of shard {self.number} did not confirm within {self._ports.append_timeout_ms:g} ms; what was "
            "asked may have happened: try again, and see that its partition has enough replicas in sync"
        )

    @staticmethod
    def _resolve(ref: object, result: object) -> None:
        """Hand ``result`` to whoever waits in ``_answer_to``."""
        assert isinstance(ref, asyncio.Future), "a reference is what _answer_to made"
        if ref.done():
            return  # whoever asked has given up
        if isinstance(result, HeadraceError):
            ref.set_exception(result)
        else:
            ref.set_result(result)

    # --- the life of a host -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        about = {"shard": str(self.key), "epoch": self.epoch}
        failures = 0
        while True:
            shard_log = self._ports.logs.open(self.key, self.epoch)
            try:
                await self._load(shard_log)
                failures = 0
                await first_of(self._serve(), self._write(shard_log))
            except FencedWriter as error:
                self._ports.measures.lost()
                log.warning("shard lost: %s", error, extra=about)
                self._drop(Phase.LOST, NotCoordinator(f"another coordinator has shard {self.number}; find it again"))
            except HeadraceError as error:
                log.error("shard cannot be served: %s", error, extra=about)
                self._drop(Phase.FAILED, CoordinatorNotAvailable(f"shard {self.number} is read again: {error}"))
            finally:
                await shard_log.close()
            failures += 1
            pause = backoff_ms(failures, first_ms=BEGIN_AGAIN_MS, ms_max=BEGIN_AGAIN_MS_MAX)
            await self._ports.clock.sleep_ms(pause)
            if self.phase is Phase.FAILED:
                self.phase = Phase.LOADING

    async def _load(self, shard_log: ShardLog) -> None:
        """Fence, wait until that is committed, read, serve."""
        clock = self._ports.clock
        began = clock.monotonic_ms()
        until = await shard_log.take_over()
        self._proved_until_ms = began + PROVED_MS
        core, records = await self._read(shard_log, until)
        self._core = core
        self._outbox = self._new_outbox()
        self.phase = Phase.SERVING
        for event in self._first_events():
            self._handle(event)
        self._schedule()
        spent = clock.monotonic_ms() - began
        self._ports.measures.loaded(records, spent)
        about = {"shard": str(self.key), "epoch": self.epoch, "records": records, "ms": round(spent)}
        log.info("shard is served", extra=about)

    async def _read(self, shard_log: ShardLog, until: Offset) -> tuple[C, int]:
        """The state machine as the log has it, and how many records that were."""
        latest: dict[bytes | None, bytes | None] = {}
        records = 0
        async for part in shard_log.read(until):
            records += len(part.keys)
            latest.update(zip(part.keys, part.values, strict=True))
            await self._ports.clock.sleep_ms(0)
        # Beside the event loop, like the decoding before it: nobody else has the state machine yet.
        with exclude_from_gc():
            core = await run_in_thread(self._replay, latest)
        return core, records

    def _replay(self, latest: Mapping[bytes | None, bytes | None]) -> C:
        core = self._new_core()
        core.replay((key, value) for key, value in latest.items() if key is not None and value is not None)
        return self._prepare(core)

    async def _serve(self) -> None:
        """Handle what comes in, for ever."""
        while True:
            while self._inbox:
                for _ in range(min(len(self._inbox), EVENTS_PER_TURN)):
                    event = self._inbox.popleft()
                    self._handle(event() if callable(event) else event)
                self._schedule()
                if self._inbox:
                    await self._ports.clock.sleep_ms(0)
            self._filled.clear()
            await self._filled.wait()

    async def _write(self, shard_log: ShardLog) -> None:
        """Append what gathers, one append at a time, for ever."""
        clock = self._ports.clock
        while True:
            while self._outbox.append_wanted:
                self._appending()
                rows = self._outbox.begin()
                began = clock.monotonic_ms()
                await shard_log.append(rows)
                self._appended()
                self._proved_until_ms = began + PROVED_MS
                self._ports.measures.appended(len(rows), clock.monotonic_ms() - began)
                self._outbox.done()
            self._append_wanted.clear()
            await self._append_wanted.wait()

    def _drop(self, phase: Phase, error: HeadraceError) -> None:
        self.phase = phase
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._inbox.clear()
        self._core = self._new_core()
        self._outbox = self._new_outbox()
        for future in self._asked:
            if not future.done():
                future.set_exception(error)
        self._let_go(error)

    # --- events -----------------------------------------------------------------------------------------------

    def _handle(self, event: E) -> None:
        effects = self._carry_out_at_once(event, self._core.handle(event))
        self._outbox.take(effects, proof=not self._surely_ours() or self._needs_proof(event, effects))
        if self._outbox.append_wanted and self._urgent(effects):
            self._append_wanted.set()
        self._handled(event)

    def _surely_ours(self) -> bool:
        shard = self._ports.cluster.image.shards.get(self.key)
        if shard is None or shard.epoch != self.epoch:
            return False  # an image that has come, and of which this host has not been told yet
        return self._ports.clock.monotonic_ms() < max(self._ports.cluster.tenure_until_ms, self._proved_until_ms)

    # --- time -------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Have the core woken in time. A timer that is early stays: waking is cheaper than starting timers anew."""
        due_ms = self._core.next_wake_ms()
        if due_ms is None or (self._timer is not None and self._timer_at_ms <= due_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = due_ms
        self._timer = self._ports.tasks.start(self._wake_at(due_ms), name=f"{self.key}-timer")

    async def _wake_at(self, due_ms: float) -> None:
        clock = self._ports.clock
        await clock.sleep_ms(due_ms - clock.monotonic_ms())
        late_ms = clock.monotonic_ms() - due_ms
        if late_ms > STALLED_MS:
            log.warning("this process was held up", extra={"shard": str(self.key), "ms": round(late_ms)})
            await clock.sleep_ms(STALL_GRACE_MS)
        self._timer = None
        self._take_in(self._make_wake(self._ports.moment()))
