"""
Calls to the active controller, wherever it is: follows hints, tries the others, waits between tries, and gives up.

Used by the controller client (brokers, admin) and by the admin service's forwarding. What may be repeated is the
caller's to say: after a broken connection nobody knows whether a request was carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from headrace_common.adapters.controller_route import ControllerRoute
from headrace_common.core.errors import Busy, HeadraceError, NotController, RequestTimedOut, UnknownOutcome
from headrace_common.core.ids import Endpoint
from headrace_common.rpc.calls import A_co, CallTo, Method, Q_contra, name_unknown, never_sent
from headrace_common.rpc.channels import PLAIN, Channels, Security
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.entropy import backoff_ms
from headrace_proto.v1.controller_pb2_grpc import ControllerStub

if TYPE_CHECKING:
    from headrace_proto.v1.controller_pb2_grpc import ControllerAsyncStub


class ControllerCalls:
    """One channel per controller, opened when first needed. One event loop."""

    def __init__(
        self, route: ControllerRoute, clock: Clock, security: Security = PLAIN, *, attempt_ms_max: float = 5_000
    ) -> None:
        self.route = route
        self._clock = clock
        self._attempt_ms_max = attempt_ms_max
        self._channels: Channels[Endpoint] = Channels(security)

    def stub(self, target: Endpoint) -> ControllerAsyncStub:
        stub: ControllerAsyncStub = ControllerStub(self._channels.to(target))
        return stub

    async def active(
        self,
        method: Callable[[ControllerAsyncStub], Method[Q_contra, A_co]],
        request: Q_contra,
        *,
        timeout_ms: float,
        repeatable: bool = True,
    ) -> A_co:
        """
        The active controller's answer.

        Args:
            method: ``lambda stub: stub.Heartbeat``.
            timeout_ms: for all tries together.
            repeatable: the request may be carried out twice; False gives up when its fate is unknown.

        Raises:
            HeadraceError: the controller's own; or, after ``timeout_ms``, what the last try said.
        """
        end = self._clock.monotonic_ms() + timeout_ms
        tries, hints = 0, 0
        while True:
            target = self.route.target()
            left = end - self._clock.monotonic_ms()
            try:
                with CallTo(target):
                    attempt_ms = min(left, self._attempt_ms_max) if repeatable else left
                    return await method(self.stub(target))(request, timeout=max(0.001, attempt_ms / 1_000))
            except HeadraceError as failure:
                error = failure
                if isinstance(error, NotController) and self.route.moved(target, error.endpoint_hint):
                    hints += 1
                    if hints <= self.route.size + 1:
                        continue
                again = self._worth_another_try(error, target, repeatable)
                await self.forget_unknown(target, error)
                if not again:
                    raise
            tries += 1
            pause = backoff_ms(tries)
            if self._clock.monotonic_ms() + pause >= end:
                raise _explain_failure(error, timeout_ms) from error
            await self._clock.sleep_ms(pause)
            hints = 0

    async def forget_unknown(self, target: Endpoint, error: Exception) -> None:
        """Give the channel to ``target`` up if ``error`` says that its name was not known; see ``name_unknown``."""
        if name_unknown(error):
            await self._channels.drop(target)

    def _worth_another_try(self, error: HeadraceError, target: Endpoint, repeatable: bool) -> bool:
        match error:
            case NotController():
                return True
            case UnknownOutcome():
                self.route.failed(target)
                return repeatable or never_sent(error)
            case Busy():
                return repeatable
        return False

    async def keep(self, known: Collection[Endpoint]) -> None:
        """Close the channels to all other addresses: those controllers have moved or are gone. Calls there fail."""
        await self._channels.keep(known)

    @property
    def addresses(self) -> frozenset[Endpoint]:
        """Where there are channels to."""
        return frozenset(self._channels)

    async def close(self) -> None:
        """Close all channels; calls under way fail."""
        await self._channels.close()


def _explain_failure(error: HeadraceError, timeout_ms: float) -> HeadraceError:
    if isinstance(error, NotController):
        return RequestTimedOut(
            f"no controller was active for {timeout_ms:.0f} ms; nothing was changed. Check that a majority of etcd "
            "and one controller run, then try again"
        )
    return error
