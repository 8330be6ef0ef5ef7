"""
Says that a node lives, from a thread with a connection of its own: a busy event loop must not look like death.

Owned by the controller client, which tells it what to say (``update``) and hears what comes back (``on_answer``, on
the event loop). What is said, and how long to wait, is ``HeartbeatTalk``; the thread carries it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Event, Lock, Thread
from typing import Final, Protocol, TypeAlias

import grpc

from headrace_common.adapters.controller_route import ControllerRoute
from headrace_common.core.errors import HeadraceError, NotController, UnknownOutcome
from headrace_common.core.ids import Endpoint
from headrace_common.core.image import NodeKey
from headrace_common.rpc.calls import name_unknown
from headrace_common.rpc.channels import PLAIN, Security, open_sync_channel
from headrace_common.rpc.convert import role_to_proto
from headrace_common.rpc.credentials import Pem
from headrace_common.rpc.status import error_from_rpc
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.entropy import backoff_ms
from headrace_common.runtime.threads import run_in_thread
from headrace_proto.v1 import controller_pb2 as pb
from headrace_proto.v1.controller_pb2_grpc import ControllerStub

_EAGER_MS: Final = 250.0
"""Interval while the node waits for the controller: to be unfenced, or to be let go."""
_RETRY_MS_MAX: Final = 1_000.0

_log = logging.getLogger(__name__)


Said: TypeAlias = int | float | bool | bytes | str | tuple[str, ...]
"""Of a field of ``Beat``."""


@dataclass(frozen=True, slots=True)
class Beat:
    """What the next heartbeat says."""

    epoch: int = -1
    """Below 0: the node is not registered, say nothing."""
    image_revision: int = 0
    want_fenced: bool = False
    want_shutdown: bool = False
    feature_level_max: int = 0
    disk_low: bool = False
    session_key: bytes = b""
    audit_start: str = ""
    """Of the node's audit; empty: it writes none."""
    audit_events: int = 0
    keys_wanted: tuple[str, ...] = ()
    """Issuers whose keys should be asked for; each once."""
    interval_ms: float = 2_000.0
    waiting: bool = False
    """The node waits for an answer that differs from the last one; ask more often."""


@dataclass(frozen=True, slots=True)
class BeatAnswered:
    """The controller heard the beat of ``epoch``."""

    epoch: int
    fenced: bool
    may_shut_down: bool
    controller: Endpoint
    """Who answered: the active one."""
    sent_ms: float
    """When the beat was sent, on the monotonic clock: the session lasts at least from then."""
    keys_wanted: tuple[str, ...] = ()
    """As the beat said."""


@dataclass(frozen=True, slots=True)
class BeatRefused:
    """The controller, or the way to it, refused the beat of ``epoch``."""

    epoch: int
    error: HeadraceError


class Heartbeats(Protocol):
    """Beats from ``start`` to ``stop``."""

    @property
    def beat(self) -> Beat:
        """What the next heartbeat says."""
        ...

    def update(self, *, at_once: bool = False, **changes: Said) -> None:
        """Change what is said; ``at_once`` says it without waiting for the interval."""
        ...

    def start(self) -> None:
        """Begin, on the running event loop."""
        ...

    async def stop(self) -> None:
        """Say nothing more; a call under way is broken off."""
        ...


MakeHeartbeats = Callable[
    [NodeKey, ControllerRoute, Clock, Callable[[BeatAnswered | BeatRefused], None], Security], Heartbeats
]
"""Of a node, by a route; told what comes back, on the event loop; with what the node shows of itself."""


class HeartbeatTalk:
    """
    What is said, to whom, how often, and what an answer means. Any thread may ``change`` it, one carries it.

    ``tell`` hears each answer and each refusal.
    """

    def __init__(
        self,
        key: NodeKey,
        route: ControllerRoute,
        clock: Clock,
        tell: Callable[[BeatAnswered | BeatRefused], None],
    ) -> None:
        self._key = key
        self._route = route
        self._clock = clock
        self._tell = tell
        self._lock = Lock()
        self._beat = Beat()
        self._failures = 0

    @property
    def beat(self) -> Beat:
        """What the next heartbeat says."""
        with self._lock:
            return self._beat

    def change(self, **changes: Said) -> None:
        """Names are those of ``Beat``."""
        with self._lock:
            self._beat = replace(self._beat, **changes)  # type: ignore[arg-type]  # names are Beat's fields

    @property
    def target(self) -> Endpoint:
        """Whom to ask next."""
        return self._route.target()

    def request(self, beat: Beat) -> pb.HeartbeatRequest:
        """The beat on the wire."""
        return pb.HeartbeatRequest(
            role=role_to_proto(self._key.role),
            id=self._key.id,
            epoch=beat.epoch,
            image_revision=beat.image_revision,
            want_fenced=beat.want_fenced,
            want_shutdown=beat.want_shutdown,
            feature_level_max=beat.feature_level_max,
            disk_low=beat.disk_low,
            session_key=beat.session_key,
            audit_start=beat.audit_start,
            audit_events=beat.audit_events,
            keys_wanted=beat.keys_wanted,
        )

    def answered(self, beat: Beat, target: Endpoint, answer: pb.HeartbeatResponse, sent_ms: float) -> None:
        """``target`` heard ``beat``, which was sent at ``sent_ms``."""
        self._failures = 0
        told = BeatAnswered(beat.epoch, answer.fenced, answer.may_shut_down, target, sent_ms, beat.keys_wanted)
        self._tell(told)

    def refused(self, beat: Beat, target: Endpoint, error: HeadraceError) -> None:
        """``target``, or the way to it, refused ``beat``; another may be asked next."""
        self._failures += 1
        if isinstance(error, NotController):
            self._route.moved(target, error.endpoint_hint)
        elif isinstance(error, UnknownOutcome):
            self._route.failed(target)
        self._tell(BeatRefused(beat.epoch, error))

    def pause_ms(self) -> float:
        """Until the next beat."""
        beat = self.beat
        interval = min(beat.interval_ms, _EAGER_MS) if beat.waiting else beat.interval_ms
        failures = self._failures
        return min(interval, backoff_ms(failures, ms_max=_RETRY_MS_MAX)) if failures else interval


class HeartbeatThread:
    """See ``Heartbeats``. ``on_answer`` runs on the loop that started it."""

    def __init__(
        self,
        key: NodeKey,
        route: ControllerRoute,
        clock: Clock,
        on_answer: Callable[[BeatAnswered | BeatRefused], None],
        security: Security = PLAIN,
    ) -> None:
        self._talk = HeartbeatTalk(key, route, clock, self._tell)
        self._clock = clock
        self._security = security
        self._on_answer = on_answer
        self._wake = Event()
        self._stopping = False
        self._channel: tuple[tuple[Endpoint, Pem | None], grpc.Channel, ControllerStub] | None = None
        """Where it leads and what it was opened with; and it, which ``stop`` may close at any time. Its stub was made
        before: to make one of a closed channel ends the process, in gRPC."""
        self._thread = Thread(target=self._run, name=f"heartbeat-{key}", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def beat(self) -> Beat:
        """What the next heartbeat says."""
        return self._talk.beat

    def update(self, *, at_once: bool = False, **changes: Said) -> None:
        """Change what is said; ``at_once`` says it without waiting for the interval."""
        self._talk.change(**changes)
        if at_once:
            self._wake.set()

    def start(self) -> None:
        """Begin, on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """Say nothing more; returns when the thread has ended (a call under way is broken off)."""
        if self._loop is None:
            return
        self._stopping = True
        self._wake.set()
        channel = self._channel
        if channel is not None:
            channel[1].close()
        await run_in_thread(self._thread.join)

    def _run(self) -> None:
        while not self._stopping:
            beat = self.beat
            if beat.epoch >= 0:
                self._send(beat)
            self._wake.wait(self._talk.pause_ms() / 1_000)
            self._wake.clear()
        if self._channel is not None:
            self._channel[1].close()

    def _send(self, beat: Beat) -> None:
        target, sent_ms = self._talk.target, self._clock.monotonic_ms()
        try:
            answer = self._stub(target).Heartbeat(self._talk.request(beat), timeout=beat.interval_ms / 1_000)
        except grpc.RpcError as failure:
            error = error_from_rpc(failure)
            self._talk.refused(beat, target, error)
            if name_unknown(error) and self._channel is not None:
                unknown, self._channel = self._channel, None
                unknown[1].close()
        except ValueError:
            return  # the channel was closed: we are stopping
        else:
            self._talk.answered(beat, target, answer, sent_ms)

    def _stub(self, target: Endpoint) -> ControllerStub:
        opened = target, self._security.newest
        if self._channel is None or self._channel[0] != opened:
            if self._channel is not None:
                self._channel[1].close()
            channel = open_sync_channel(str(target), self._security, own_connection=True)
            self._channel = opened, channel, ControllerStub(channel)
        return self._channel[2]

    def _tell(self, what: BeatAnswered | BeatRefused) -> None:
        assert self._loop is not None, "the thread runs only after start"
        try:
            self._loop.call_soon_threadsafe(self._on_answer, what)
        except RuntimeError:
            self._stopping = True  # the loop is closed: the process ends
