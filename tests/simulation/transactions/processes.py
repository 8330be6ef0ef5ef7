"""
Processes of the simulated world: their clocks, what they do later, calls between them, and streams that break.

A paused process finds everything that came meanwhile when it goes on, in the order in which it came, its own timers
too. One that was killed forgets everything. Clocks have a zero and a speed of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from headrace_common.core.errors import HeadraceError, NetworkFailed, RequestTimedOut

if TYPE_CHECKING:
    from tests.simulation.transactions.world import World

Script = Generator[Any, Any, Any]
"""A piece of sequential work: yields how many ms it waits, or a ``Promise`` whose value it gets (or error raised)."""


class Promise:
    """Something that is answered later; the first answer counts."""

    def __init__(self) -> None:
        self.done = False
        self.value: Any = None
        self.error: HeadraceError | None = None
        self._waiting: list[Callable[[], None]] = []

    def settle(self, value: Any = None, error: HeadraceError | None = None) -> None:
        """The answer."""
        if self.done:
            return
        self.done, self.value, self.error = True, value, error
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one()

    def when_done(self, action: Callable[[], None]) -> None:
        """Call ``action`` when it is settled; at once if it is."""
        if self.done:
            action()
        else:
            self._waiting.append(action)


class Process:
    """What coordinators, consumers and the controller have in common."""

    def __init__(self, number: int, world: World) -> None:
        self.id = number
        self.world = world
        self.up = False
        self.paused = False
        self.incarnation = 0
        self.inbox: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self.stuck_until = 0.0
        """Its calls get nowhere until then, while its streams do."""
        self.zero = world.rng.random() * 1e6
        self.speed = 1.0 + (world.rng.random() - 0.5) * world.profile.clock_error
        self.wall_offset = world.rng.choice((0, 0, -3_600_000, 3_600_000))

    @property
    def mono(self) -> float:
        """Its monotonic clock, ms."""
        return self.zero + self.world.schedule.now * self.speed

    @property
    def wall(self) -> int:
        """Its wall clock, ms."""
        return int(1_700_000_000_000 + self.wall_offset + self.world.schedule.now * self.speed)

    def later(self, ms: float, action: Callable[..., None], *args: object) -> None:
        """Do something after ``ms`` of its own clock."""
        self.world.schedule.after(max(0.0, ms) / self.speed, self._fire, self.incarnation, action, args)

    def _fire(self, incarnation: int, action: Callable[..., None], args: tuple[object, ...]) -> None:
        if self.up and self.incarnation == incarnation:
            self.meet(action, *args)

    def meet(self, action: Callable[..., None], *args: object) -> None:
        """Something reaches it."""
        if self.paused:
            self.inbox.append((action, args))
        else:
            action(*args)

    def go_on(self) -> None:
        """After a pause."""
        self.paused = False
        inbox, self.inbox = self.inbox, []
        incarnation = self.incarnation
        for action, args in inbox:
            if self.up and self.incarnation == incarnation:
                self.meet(action, *args)

    def die(self) -> None:
        """The process is gone."""
        self.up = self.paused = False
        self.inbox = []
        self.incarnation += 1

    def run(self, script: Script) -> Promise:
        """Start a script; it ends with the process."""
        over = Promise()
        self._advance(script, over, None)
        return over

    def _advance(self, script: Script, over: Promise, given: Promise | None) -> None:
        try:
            if given is not None and given.error is not None:
                wanted = script.throw(given.error)
            else:
                wanted = script.send(None if given is None else given.value)
        except StopIteration as end:
            over.settle(end.value)
            return
        except HeadraceError as error:
            over.settle(error=error)
            return
        if isinstance(wanted, Promise):
            incarnation = self.incarnation
            promise = wanted

            def resume() -> None:
                if self.up and self.incarnation == incarnation:
                    self.meet(self._advance, script, over, promise)

            promise.when_done(resume)
        else:
            self.later(wanted, self._advance, script, over, None)

    # --- calls ------------------------------------------------------------------------------------------------

    def call(self, to: Process, handler: Callable[..., None], *args: object, timeout_ms: float) -> Promise:
        """
        Ask another process: ``handler(answer, *args)`` runs there, ``answer`` is a promise whose value comes back.

        A call whose caller has given up is dropped before it is handled, as a reset stream is. A lost answer is a
        timeout, or a broken connection at once.
        """
        answer, back, world = Promise(), Promise(), self.world
        self.later(timeout_ms, lambda: answer.settle(error=RequestTimedOut(f"no answer within {timeout_ms:g} ms")))

        def returned() -> None:
            if world.lossy():
                self._broken(answer)
            else:
                world.send(to, self, lambda: answer.settle(back.value, back.error), channel=2)

        def arrived() -> None:
            if not answer.done:
                handler(back, *args)

        back.when_done(returned)
        if not to.up:
            self.later(5.0, self._refused, answer)
        elif world.lossy():
            self._broken(answer)
        elif self.stuck_until <= world.schedule.now:
            world.send(self, to, arrived, channel=1)
        return answer

    @staticmethod
    def _refused(answer: Promise) -> None:
        answer.settle(error=NetworkFailed("the connection was refused"))

    def _broken(self, answer: Promise) -> None:
        if self.world.rng.random() < 0.7:
            self.later(20.0, self._refused, answer)


class Link:
    """
    One stream between a consumer and a coordinator: messages of a direction keep their order or the stream breaks.

    ``heard`` and ``ended`` of the two ends are set by those who own them.
    """

    def __init__(self, client: Process, server: Process, world: World) -> None:
        self.world = world
        self.client, self.server = client, server
        self._incarnations = {client.id: client.incarnation, server.id: server.incarnation}
        self._last = {client.id: 0.0, server.id: 0.0}
        self.dead = False
        self.on_up: Callable[[Any], None] | None = None
        self.on_down: Callable[[Any], None] | None = None
        self.on_client_end: Callable[[HeadraceError], None] | None = None
        self.on_server_end: Callable[[], None] | None = None

    def up(self, message: Any) -> None:
        """From the consumer to the coordinator."""
        self._carry(self.client, self.server, lambda: self.on_up is not None and self.on_up(message))

    def down(self, message: Any) -> None:
        """From the coordinator to the consumer."""
        self._carry(self.server, self.client, lambda: self.on_down is not None and self.on_down(message))

    def end_by_server(self, error: HeadraceError) -> None:
        """The coordinator ends it, after what it sent before."""
        self._carry(self.server, self.client, lambda: self._client_ends(error))

    def hang_up(self) -> None:
        """The consumer ends it: it hears nothing more; what it sent before may still arrive."""
        self.on_down = self.on_client_end = None
        if self.world.rng.random() < 0.2:
            self.break_()
        else:
            self._carry(self.client, self.server, self._server_ends)

    def _carry(self, source: Process, target: Process, action: Callable[[], object]) -> None:
        world = self.world
        if self.dead:
            return
        if not world.network.reaches(source.id, target.id) or world.lossy():
            self.break_()
            return
        at = max(world.schedule.now + world.delay(), self._last[target.id])
        self._last[target.id] = at
        world.schedule.after(at - world.schedule.now, self._arrive, source, target, action)

    def _arrive(self, source: Process, target: Process, action: Callable[[], object]) -> None:
        alive = target.up and target.incarnation == self._incarnations[target.id]
        if self.dead:
            return
        if not alive or not self.world.network.reaches(source.id, target.id):
            self.break_()
        else:
            target.meet(action)

    def break_(self) -> None:
        """Nothing passes any more. Each end learns it some time later, or is gone."""
        if self.dead:
            return
        self.dead = True
        rng = self.world.rng
        self.world.counts["streams broken"] += 1
        for end, action in ((self.client, self._client_broken), (self.server, self._server_ends)):
            wait = rng.random() * (50.0 if rng.random() < 0.6 else 6_000.0)
            self.world.schedule.after(wait, self._reach, end, action)

    def _reach(self, end: Process, action: Callable[[], None]) -> None:
        if end.up and end.incarnation == self._incarnations[end.id]:
            end.meet(action)

    def _client_broken(self) -> None:
        self._client_ends(NetworkFailed("the stream broke"))

    def _client_ends(self, error: HeadraceError) -> None:
        on_end, self.on_client_end, self.on_down = self.on_client_end, None, None
        if on_end is not None:
            on_end(error)
            self._server_gone()

    def _server_gone(self) -> None:
        if not self.dead:
            self._carry(self.client, self.server, self._server_ends)

    def _server_ends(self) -> None:
        on_end, self.on_server_end, self.on_up = self.on_server_end, None, None
        if on_end is not None:
            on_end()
