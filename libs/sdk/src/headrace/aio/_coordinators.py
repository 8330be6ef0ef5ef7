"""
Asks whoever coordinates a transactional id, an owner of units, or a group: finds it, asks again, and gives up in time.

One per key. Who was found is kept until it errs. What an error means, ``_core.remedies`` says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from headrace._core.remedies import Asker, Remedy, remedy_for
from headrace._transport.port import Coordinator, CoordinatorCall
from headrace.errors import ClusterUnreachable, HeadraceError, NetworkFailed, RequestTimedOut, WaitTimedOut
from headrace.settings import ClientSettings
from headrace_common.runtime.clock import Clock, limit_ms
from headrace_common.runtime.entropy import backoff_ms

A = TypeVar("A")

ATTEMPT_MS: Final = 6_000
"""How long one attempt may take: longer than a coordinator waits for its log, shorter than a session."""

SILENCE_S: Final = 1.0
"""When a coordinator has not answered after this time, brokers are asked who it is by now; and again."""

FIRST_PAUSE_MS: Final = 10
"""Ends of transactions are written in a few ms, so the first pauses are short."""

LONGEST_PAUSE_MS: Final = 250
"""A coordinator that moves is back within seconds, and a transaction holds up readers."""


class CoordinatorLink:
    """
    See the module's text. Lives on its client's loop.

    Args:
        find: who has the key now; raises as ``port.Transport.find_coordinator``.
    """

    def __init__(self, find: Callable[[], Awaitable[Coordinator]], settings: ClientSettings, clock: Clock) -> None:
        self._find = find
        self._settings = settings
        self._clock = clock
        self.known: Coordinator | None = None

    async def find(self, *, anew: bool = False) -> Coordinator:
        """
        The coordinator; asked for when it is not known.

        Raises:
            HeadraceError: what brokers said.
        """
        if anew or self.known is None:
            self.known = None
            self.known = await self._find()
        return self.known

    def judge_failure(self, error: HeadraceError) -> Remedy:
        """A coordinator failed so: what to do about it. It is forgotten where somebody else may have the key."""
        remedy = remedy_for(Asker.COORDINATED, error.code)
        if remedy is Remedy.FIND:
            self.known = None
        return remedy

    async def ask(self, what: str, attempt: CoordinatorCall[A], deadline_ms: float) -> A:
        """
        What the coordinator answers.

        Args:
            what: for people: what could not be done.
            deadline_ms: on the monotonic clock.

        Raises:
            WaitTimedOut: nobody answered in time, or only with what passes; the outcome may be unknown.
            HeadraceError: what does not pass.
        """
        repetitions, before = 0, None
        while True:
            try:
                answer = await self._once(attempt, deadline_ms)
            except HeadraceError as failed:
                error = failed
            else:
                return answer
            if self.judge_failure(error) is Remedy.RAISE or isinstance(error, ClusterUnreachable):
                raise error
            repetitions += 1
            pause_ms = self._pause_ms(repetitions)
            if self._clock.monotonic_ms() + pause_ms >= deadline_ms:
                if isinstance(error, RequestTimedOut) and before is not None:
                    error = before  # the deadline cut the last attempt, which says less than the one before
                raise WaitTimedOut(f"{what} was not answered in time; the last failure was: {error}") from error
            before = error
            await self._clock.sleep_ms(pause_ms)

    async def _once(self, attempt: CoordinatorCall[A], deadline_ms: float) -> A:
        if self.known is None:
            self.known = await self._find_in_time(max(1.0, deadline_ms - self._clock.monotonic_ms()))
        left_ms = max(1.0, deadline_ms - self._clock.monotonic_ms())
        asked, timeout_ms = self.known, min(ATTEMPT_MS, self._settings.request_timeout_ms, left_ms)
        answer = asyncio.ensure_future(attempt(asked, timeout_ms))
        try:
            while not (await asyncio.wait({answer}, timeout=SILENCE_S))[0]:
                await self._look(asked)
            return answer.result()
        finally:
            answer.cancel()

    async def _look(self, asked: Coordinator) -> None:
        """``asked`` is silent: one that is stopped breaks no connection. Raises: ``NetworkFailed``: it was replaced."""
        try:
            found = await self._find_in_time(SILENCE_S * 1_000)
        except HeadraceError:
            return
        if found != asked:
            raise NetworkFailed(f"{asked} did not answer, and {found} has taken over")

    async def _find_in_time(self, left_ms: float) -> Coordinator:
        try:
            async with limit_ms(left_ms):
                return await self._find()
        except TimeoutError:
            raise NetworkFailed("no broker said in time who coordinates; is the cluster up?") from None

    def _pause_ms(self, repetitions: int) -> float:
        settings = self._settings
        first_ms = min(FIRST_PAUSE_MS, settings.retry_backoff_ms)
        longest_ms = min(LONGEST_PAUSE_MS, settings.retry_backoff_max_ms)
        return backoff_ms(repetitions, first_ms=first_ms, ms_max=longest_ms)
