"""
One HTTP connection with an end to every wait: for a request's head, for its body, for the next request, and for a
client that does not read its answer. Made by the HTTP server for each connection; uvicorn does the rest.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace_common.core.connections import Connections, Refused
from headrace_common.runtime.clock import call_later_ms

HEAD_BYTES_MAX: Final = 64 << 10
FLUSH_SECONDS: Final = 30.0
"""For what is still to be sent when a connection is closed."""

if TYPE_CHECKING:
    Open: TypeAlias = Connections["Endable"]

Phase: TypeAlias = Literal["idle", "head", "body"]
"""What of a request is awaited; idle: a further request may come, or not."""


@dataclass(frozen=True, slots=True)
class HttpBounds:
    """What clients may take of a server."""

    connections_max: int
    """Open connections; a quarter of the descriptors of the process at most."""
    connections_per_address_max: int
    """Of one address; 0: only the sum is bounded."""
    head_ms_max: int
    """From the connection, or the first byte of a further request, to the end of the head."""
    body_ms_max: int
    """From the end of the head to the end of the body."""
    refusal: Callable[[int, str, str], bytes]
    """A whole answer with this status, what is wrong, and what to do; it closes the connection."""


class Endable(ABC):
    """A connection that can be ended for another's sake."""

    @abstractmethod
    def give_way(self) -> None:
        """End at once: a newer connection takes this place."""


class BoundedProtocol(HttpToolsProtocol, Endable):
    """Subclassed by ``bounded`` with what all connections of one server share."""

    open_connections: Open
    bounds: HttpBounds

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._phase: Phase = "head"
        self._head_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._flush_deadline: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        outcome = self.open_connections.admit(self, self.client[0] if self.client else "")
        if isinstance(outcome, Refused):
            self._refuse(503, outcome.reason, "Wait a moment, or use fewer connections at one time.")
            return
        if outcome.instead_of is not None:
            outcome.instead_of.give_way()
        self._await("head")

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.open_connections.closed(self)
        self._in_time()
        if self._flush_deadline is not None:
            self._flush_deadline.cancel()
        super().connection_lost(exc)

    @override
    def data_received(self, data: bytes) -> None:
        before = self._phase
        super().data_received(data)
        if self.transport.is_closing():
            self._closing()
        elif before == self._phase == "head":
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self._refuse(431, f"the head is larger than {HEAD_BYTES_MAX} bytes", "Send shorter headers.")
        elif self._phase == "idle" and self._deadline is None and self._all_answered():
            self._await("head")  # what came began no request, and ended uvicorn's wait for one

    @override
    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._phase, self._head_bytes = "head", 0
        if self._deadline is None:
            self._await("head")

    @override
    def on_headers_complete(self) -> None:
        self._phase = "body"
        self._await("body")
        super().on_headers_complete()

    @override
    def on_message_complete(self) -> None:
        self._phase = "idle"
        self._in_time()
        if not self._all_answered():
            self.open_connections.answering(self)
        super().on_message_complete()

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._all_answered():
            self.open_connections.answered(self)
        self._closing()

    @override
    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._closing()

    @override
    def give_way(self) -> None:
        self.transport.abort()

    # --- deadlines --------------------------------------------------------------------------------------------------

    def _await(self, what: Literal["head", "body"]) -> None:
        self._in_time()
        ms_max = self.bounds.head_ms_max if what == "head" else self.bounds.body_ms_max
        self._deadline = call_later_ms(ms_max, self._late, what, ms_max)

    def _in_time(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self, what: Literal["head", "body"], ms_max: int) -> None:
        self._deadline = None
        answering_another = bool(self.pipeline) or (what == "head" and not self._all_answered())
        if not self.transport.is_closing() and (answering_another or self.flow.read_paused):
            self._await(what)  # it is us who are slow
            return
        step = "Send the whole request at once, over a connection that is fast enough."
        self._refuse(408, f"the {what} of the request did not come within {ms_max} ms", step)

    def _all_answered(self) -> bool:
        return not self.pipeline and (self.cycle is None or self.cycle.response_complete)

    def _refuse(self, status: int, detail: str, step: str) -> None:
        """Answer where nothing was answered yet, and close."""
        if not self.transport.is_closing():
            if self._all_answered() or not self.cycle.response_started:
                self.transport.write(self.bounds.refusal(status, detail, step))
            self.transport.close()
        self._closing()

    def _closing(self) -> None:
        """What is being closed ends, though the client may never read."""
        if self.transport.is_closing() and self._flush_deadline is None:
            self._in_time()
            self._flush_deadline = call_later_ms(FLUSH_SECONDS * 1_000, self.transport.abort)


def bounded(open_connections: Open, bounds: HttpBounds) -> type[BoundedProtocol]:
    """The protocol of the connections of one server."""
    return type("Bounded", (BoundedProtocol,), {"open_connections": open_connections, "bounds": bounds})
