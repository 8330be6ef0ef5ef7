"""
Decides how long the connections of nodes last: until their certificates are over.

TLS looks at a certificate when a connection is made, and never again. A node has a new one long before, and connects
anew with it; what is still open with the old one ends then, as if the network had broken, so that whoever asked asks
again on a connection of now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import grpc.aio

from headrace_common.core.errors import NetworkFailed
from headrace_common.core.moments import iso_of
from headrace_common.rpc.node_gate import NodeGate
from headrace_common.rpc.status import NOT_TAKEN
from headrace_common.runtime.clock import Clock, Deadline

LATE_MS: Final = 100.0
"""A stream is looked at so long after its end: clocks of the loop and of the day differ a little."""

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


@dataclass(slots=True, eq=False)
class _Stream:
    task: asyncio.Task[Any]
    end_ms: int
    timer: asyncio.TimerHandle | None = None
    over: bool = False


class ConnectionEnds:
    """Of a listener that asks nodes for certificates. One event loop."""

    def __init__(self, nodes: NodeGate, clock: Clock, on_end: Callable[[], None]) -> None:
        """``on_end``: called with each stream that is ended."""
        from headrace_common.runtime.client_certificates import ClientCertificates

        assert nodes.trust_domain is not None, "nodes have certificates"
        self._nodes = nodes
        self._clock = clock
        self._on_end = on_end
        self._certificates = ClientCertificates(nodes.trust_domain)

    def check(self, context: Context) -> None:
        """
        To be called with each call, before anything is done for it.

        Raises:
            NetworkFailed: the certificate of its connection is over; nothing was done.
        """
        end_ms = self._end_ms(context)
        if end_ms is not None and self._clock.now_ms() >= end_ms:
            raise NetworkFailed(f"{self._why(end_ms)}; {NOT_TAKEN}")

    @contextmanager
    def lasting(self, context: Context) -> Iterator[None]:
        """
        The block lasts at most as long as the certificate of the connection.

        Raises:
            NetworkFailed: that is over.
        """
        end_ms = self._end_ms(context)
        if end_ms is None:
            yield
            return
        task = asyncio.current_task()
        assert task is not None, "handlers are tasks"
        stream = _Stream(task, end_ms)
        self._wake_at_end(stream)
        try:
            yield
        except asyncio.CancelledError:
            if not stream.over or task.uncancel() > 0:
                raise  # the caller is gone too
        finally:
            if stream.timer is not None:
                stream.timer.cancel()
        if stream.over:
            raise NetworkFailed(f"{self._why(end_ms)}; the outcome is unknown")

    def _wake_at_end(self, stream: _Stream) -> None:
        left_ms = stream.end_ms - self._clock.now_ms()
        stream.timer = Deadline(left_ms + LATE_MS).call(self._at_end, stream)

    def _at_end(self, stream: _Stream) -> None:
        stream.over = self._clock.now_ms() >= stream.end_ms
        if stream.over:
            self._on_end()
            stream.task.cancel()
        else:
            self._wake_at_end(stream)

    def _end_ms(self, context: Context) -> int | None:
        """None: it comes in plain text, to a process that answers that too."""
        return None if self._nodes.is_plain(context) else self._certificates.of(context).expires_ms

    def _why(self, end_ms: int) -> str:
        now = iso_of(int(self._clock.now_ms()))
        return f"the certificate of this connection was good until {iso_of(end_ms)}; this machine says {now}"
