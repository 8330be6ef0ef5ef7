"""
The life of a shard at a coordinator, as ``headrace_coordinator.engine.host`` leads it, whatever the shard keeps.

Played here: fence, read, serve, drop, and the writer of ``adapters.grpc_shard_log`` (one batch under way, repeated in
its place until there is an answer). The state machine and the ``Outbox`` are the real ones.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tests.simulation.transactions.processes import Process, Promise, Script
from tests.simulation.transactions.shard_log import Numbered, OtherToken, ShardLog

from headrace_common.core.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    FencedWriter,
    HeadraceError,
    NetworkFailed,
    NotCoordinator,
)
from headrace_coordinator.core.effects import Persist, PersistGroup, Row
from headrace_coordinator.core.values import Moment
from headrace_coordinator.engine.host import BEGIN_AGAIN_MS, PROVED_MS, STALL_GRACE_MS, STALLED_MS, Phase
from headrace_coordinator.engine.outbox import Outbox

if TYPE_CHECKING:
    from tests.simulation.transactions.world import World

APPEND_TIMEOUT_MS = 5_000.0
ATTEMPT_MS = 3_000.0


class Node(Process):
    """Who has shards."""

    tenure_until = -math.inf

    def moment(self) -> Moment:
        """Now, by its clocks."""
        return Moment(self.mono, self.wall)


class ShardLife(ABC):
    """One shard in one epoch, as ``Host``."""

    def __init__(self, number: int, epoch: int, owner: Node) -> None:
        self.number = number
        self.epoch = epoch
        self.owner = owner
        self.world: World = owner.world
        self.phase = Phase.LOADING
        self.stopped = False
        self.core = self._new_core()
        self.outbox = self._new_outbox()
        self.asked: dict[Promise, None] = {}
        self._numbers: dict[bytes, Numbered] = {}
        self._proved_until = -math.inf
        self._timer_at = math.inf
        self._writing = False
        self._sequence = 0
        owner.run(self._life())

    @property
    def log(self) -> ShardLog:
        """Its partition."""
        return self.world.logs.logs[self.number]

    # --- what kinds of shards differ in -----------------------------------------------------------------------

    @abstractmethod
    def _new_core(self) -> Any:
        """A state machine that knows nothing yet."""

    @abstractmethod
    def _new_outbox(self) -> Outbox[Any]:
        """What holds its effects back."""

    @abstractmethod
    def _first_events(self) -> Iterable[Any]:
        """What the state machine is told when its log has been read."""

    @abstractmethod
    def _woken_event(self) -> Any:
        """What it is told when its time has come."""

    @abstractmethod
    def _needs_proof(self, event: Any, effects: list[Any]) -> bool:
        """Whether these effects must be current, even within the tenure."""

    @abstractmethod
    def _note(self, event: Any, effects: list[Any]) -> int:
        """Number what was decided, for the invariants."""

    @abstractmethod
    def _about_to_show(self, effect: Any, event: Any, number: int) -> None:
        """An effect is on its way out; the outbox shows it when it may be seen."""

    @abstractmethod
    def _let_go(self, error: HeadraceError) -> None:
        """The state was dropped: tell everybody but those who wait in ``ask``."""

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

    def ask(self, event: Any, answer: Promise) -> None:
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
        self.core = self._new_core()
        self.core.replay(rows)
        self.outbox = self._new_outbox()
        self.phase = Phase.SERVING
        self.world.say("coordinator", self.owner.id, "serves shard", self.number, "epoch", self.epoch)
        self.world.counts["shards loaded"] += 1
        for event in self._first_events():
            self.handle(event)

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
        brokers, rng = world.logs, world.rng
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
                return (yield attempt())
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
        self.core = self._new_core()
        self.outbox = self._new_outbox()
        self._writing, self._timer_at = False, math.inf
        asked, self.asked = self.asked, {}
        for answer in asked:
            answer.settle(error=error)
        self._let_go(error)

    # --- events and effects -----------------------------------------------------------------------------------

    def handle(self, event: Any) -> None:
        """As ``Host``: let the state machine take it in, and what follows from it out when it may be seen."""
        if self.phase is not Phase.SERVING:
            return
        effects = self.core.handle(event)
        number = self._note(event, effects)
        proof = not self._surely_ours() or self._needs_proof(event, effects)
        told = []
        for effect in effects:
            if not isinstance(effect, Persist | PersistGroup):
                self._about_to_show(effect, event, number)
            told.append(effect)
        self._take(told, proof=proof)
        if self.outbox.append_wanted and not self._writing:
            self._writing = True
            self.owner.run(self._write())
        self._schedule()

    def _take(self, effects: Iterable[Any], *, proof: bool) -> None:
        self.outbox.take(effects, proof=proof)

    def _surely_ours(self) -> bool:
        return self.owner.mono < max(self.owner.tenure_until, self._proved_until)

    # --- time -------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        due = self.core.next_wake_ms()
        if due is None or self._timer_at <= due:
            return
        self._timer_at = due
        self.owner.later(due - self.owner.mono, self._wake, due, self.core)

    def _wake(self, due: float, core: object) -> None:
        if core is not self.core or due != self._timer_at:
            return
        if self.owner.mono - due > STALLED_MS:
            self.owner.later(STALL_GRACE_MS, self._woken, due, core)
        else:
            self._woken(due, core)

    def _woken(self, due: float, core: object) -> None:
        if core is self.core and due == self._timer_at:
            self._timer_at = math.inf
            self.handle(self._woken_event())
