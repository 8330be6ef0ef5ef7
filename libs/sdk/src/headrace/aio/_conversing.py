"""
The shell of one membership: feeds the pure machine with what happens, and does what it wants done.

It lives on the process's loop thread (``_runtime.loop_thread``), for the members of both twins: what the application
does on its own thread or event loop cannot keep heartbeats from leaving. ``tell`` may be called by any thread; one
short lock guards the machine. Consumers (``_group``) and work groups (``_work``) add what they do besides.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from headrace import _runtime
from headrace._core.conversation import Conversation
from headrace._core.group_messages import (
    Answer,
    Broke,
    Closing,
    Connect,
    Effect,
    Event,
    HangUp,
    Notify,
    Opened,
    Request,
    Send,
    Ticked,
    Told,
    Warn,
)
from headrace._core.phases import Phase
from headrace._runtime import Tasks
from headrace._transport.port import Coordinator, MembershipStream, Transport
from headrace.aio._coordinators import CoordinatorLink
from headrace.errors import HeadraceError, Internal
from headrace_common.runtime.clock import Clock, call_later_ms
from headrace_proto.v1 import coordinator_pb2 as pb

LEAVE_MS_MAX: Final = 2_000
"""How long the end waits for the coordinator's answer to the good-bye."""

C = TypeVar("C", bound=Conversation)


class Wire(Protocol):
    """Between the machine's messages and those of ``Membership``."""

    def request(self, request: Request) -> pb.MembershipRequest:
        """What the machine wants to say."""
        ...

    def answer(self, response: pb.MembershipResponse) -> Answer | None:
        """What the coordinator said; None: something that this version does not know."""
        ...


class Conversing(Generic[C]):
    """
    See the module's text.

    Args:
        kind: what this is a part of, for people: a consumer, a work group.
        transport: used on the loop thread only; closed here.
        notify: called, on any thread, when the application has something to do.
    """

    def __init__(
        self,
        kind: str,
        core: C,
        wire: Wire,
        coordinators: CoordinatorLink,
        transport: Transport,
        clock: Clock,
        notify: Callable[[], None],
    ) -> None:
        self.lock = threading.Lock()
        self.news = False
        """Whether there may be something to do, or a failure."""
        self.loop = _runtime.loop_thread()
        self.core = core
        self.coordinator: Coordinator | None = None
        """To whom there is a stream."""
        self.crash: HeadraceError | None = None
        """Set when a task met a bug: every step raises it."""
        self._kind = kind
        self._wire = wire
        self._link = coordinators
        self._transport = transport
        self._clock = clock
        self._notify = notify
        self._log = logging.getLogger(f"headrace.{kind}")
        self._tasks = Tasks(self._crashed)
        self._todo: deque[Effect] = deque()
        self._carrying = False
        self._conversation: asyncio.Task[None] | None = None
        self._stream: MembershipStream | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: float | None = None
        self._left: asyncio.Event | None = None

    # --- any thread -----------------------------------------------------------------------------------------------

    @property
    def joined(self) -> bool:
        """Whether there is a membership, or was one."""
        return self.core.phase is not Phase.NEW

    def tell(self, event: Event, core: C | None = None) -> None:
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

    def take_failure(self, now_ms: float) -> HeadraceError | None:
        """What the application has to be told now."""
        if self.crash is not None:
            return self.crash
        core = self.core
        if core.failure is None and core.trouble is None:
            return None
        with self.lock:
            return core.take_failure(now_ms)

    # --- calls of the application (on the loop) ---------------------------------------------------------------------

    async def leave(self, timeout_ms: float) -> None:
        """Say good-bye, and wait a little for the answer."""
        self._left = asyncio.Event()
        self.tell(Closing(self._clock.monotonic_ms()))
        if self.core.phase is Phase.LEAVING:
            timer = call_later_ms(min(timeout_ms, LEAVE_MS_MAX), self._left.set)
            await self._left.wait()
            timer.cancel()

    async def close(self) -> None:
        """End everything; without ``leave`` the coordinator keeps the place for a while."""
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
                self._conversation = self._tasks.start(self._converse(after_ms), f"{self._kind}: membership")
            case HangUp():
                self._hang_up()
            case Send(request):
                if self._stream is not None:
                    self._stream.send(self._wire.request(request))
            case Warn(text):
                self._log.warning("%s", text)
            case Notify():
                pass  # told already
            case _:
                raise AssertionError(f"nobody does {effect}")

    def _hang_up(self) -> None:
        conversation, self._conversation = self._conversation, None
        stream, self._stream = self._stream, None
        self.coordinator = None
        if conversation is not None:
            conversation.cancel()
        if stream is not None:
            self._tasks.start(stream.close(), f"{self._kind}: hang up")

    async def _converse(self, after_ms: float) -> None:
        core = self.core
        try:
            await self._clock.sleep_ms(after_ms)
            coordinator = await self._link.find(anew=True)
            stream = self._stream = self._transport.membership(coordinator)
            self.coordinator = coordinator
            self.tell(Opened(self._clock.monotonic_ms()), core)
            while True:
                answer = self._wire.answer(await stream.receive())
                if answer is not None:
                    self.tell(Told(answer, self._clock.monotonic_ms()), core)
        except HeadraceError as error:
            self._link.judge_failure(error)
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

    def _crashed(self, error: BaseException) -> None:
        self.crash = Internal(f"the {self._kind}'s group has met a bug and stopped: {type(error).__name__}: {error}")
        self.crash.__cause__ = error
        self.news = True
        self._notify()
