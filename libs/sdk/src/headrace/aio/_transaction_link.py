"""
Asks whoever coordinates a transactional id, an owner of units, or a group: finds it, asks again, and gives up in time.

One per key. Who was found is kept until it errs. What an error means is decided by the caller (``Judge``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Final, TypeVar

from headrace._core.transaction import MOVED, Call, Remedy, TransactionCore, remedy_for
from headrace._transport.port import Coordinator
from headrace.errors import ClusterUnreachable, ErrorCode, HeadraceError, NetworkFailed, WaitTimedOut
from headrace.settings import ClientSettings
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.entropy import backoff_ms

A = TypeVar("A")
Ask = Callable[[Coordinator, float], Awaitable[A]]
"""One attempt: whom, and how long it may take in ms."""

Judge = Callable[[HeadraceError], Remedy]

ATTEMPT_MS: Final = 6_000
"""How long one attempt may take: longer than a coordinator waits for its log."""

SILENCE_S: Final = 1.0
"""When a coordinator has not answered after this time, brokers are asked who it is by now; and again."""

FIRST_PAUSE_MS: Final = 10
"""Ends of transactions are written in a few ms, so the first pauses are short."""

LONGEST_PAUSE_MS: Final = 250
"""A coordinator that moves is back within seconds, and a transaction holds up readers."""


class TransactionLink:
    """
    See the module's text. Lives on its client's loop.

    Args:
        find: who has the key now; raises as ``port.TransactionCalls.find_transaction_coordinator``.
    """

    def __init__(self, find: Callable[[], Awaitable[Coordinator]], settings: ClientSettings, clock: Clock) -> None:
        self._find = find
        self._settings = settings
        self._clock = clock
        self.known: Coordinator | None = None

    async def ask(self, what: str, attempt: Ask[A], judge: Judge, deadline_ms: float) -> A:
        """
        What the coordinator answers.

        Args:
            what: for people: what could not be done.
            deadline_ms: on the monotonic clock.

        Raises:
            WaitTimedOut: nobody answered in time, or only with what passes; the outcome may be unknown.
            HeadraceError: what ``judge`` says is to be told.
        """
        repetitions = 0
        while True:
            error = None
            try:
                answer = await self._once(attempt, deadline_ms)
            except HeadraceError as failed:
                error = failed
            else:
                return answer
            remedy = judge(error)
            if remedy is Remedy.RAISE or isinstance(error, ClusterUnreachable):
                raise error
            if remedy is Remedy.ELSEWHERE:
                self.known = None
            repetitions += 1
            pause_ms = self._pause_ms(repetitions)
            if self._clock.monotonic_ms() + pause_ms >= deadline_ms:
                raise WaitTimedOut(f"{what} was not answered in time; the last failure was: {error}") from error
            await self._clock.sleep_ms(pause_ms)

    async def _once(self, attempt: Ask[A], deadline_ms: float) -> A:
        if self.known is None:
            self.known = await self._found(max(1.0, deadline_ms - self._clock.monotonic_ms()))
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
            found = await self._found(SILENCE_S * 1_000)
        except HeadraceError:
            return
        if found != asked:
            raise NetworkFailed(f"{asked} did not answer, and {found} has taken over")

    async def _found(self, left_ms: float) -> Coordinator:
        try:
            async with asyncio.timeout(left_ms / 1_000):
                return await self._find()
        except TimeoutError:
            raise NetworkFailed("no broker said in time who coordinates; is the cluster up?") from None

    def _pause_ms(self, repetitions: int) -> float:
        settings = self._settings
        first_ms = min(FIRST_PAUSE_MS, settings.retry_backoff_ms)
        longest_ms = min(LONGEST_PAUSE_MS, settings.retry_backoff_max_ms)
        return backoff_ms(repetitions, first_ms=first_ms, ms_max=longest_ms)


class Passing(Exception):
    """An error that the caller has a remedy for."""

    def __init__(self, error: HeadraceError) -> None:
        super().__init__(str(error))
        self.error = error


class Asking:
    """
    Asks for one producer: its core hears of the last word, and says what the application is told.

    Args:
        link: to whoever coordinates the transactional id.
    """

    def __init__(self, core: TransactionCore, link: TransactionLink) -> None:
        self._core = core
        self.link = link

    async def ask(
        self,
        call: Call,
        attempt: Ask[A],
        deadline_ms: float,
        link: TransactionLink | None = None,
        passes: Collection[ErrorCode] = (),
    ) -> A:
        """
        Ask until there is an answer.

        Args:
            link: to somebody else than the coordinator of the transactional id.
            passes: errors that the caller knows a remedy for; raised as ``Passing``, and the core is not told.

        Raises:
            WaitTimedOut: nobody answered by ``deadline_ms``.
            HeadraceError: what the core makes of the last word.
        """
        try:
            return await (link or self.link).ask(
                call.value, attempt, lambda error: remedy_for(call, error), deadline_ms
            )
        except (WaitTimedOut, ClusterUnreachable) as error:
            self._core.gave_up(call, error)
            raise
        except HeadraceError as error:
            if error.code in passes:
                raise Passing(error) from error
            told = self._core.refused(call, error)
            if told is error:
                raise
            raise told from error


def plain_judge(error: HeadraceError) -> Remedy:
    """For calls that may simply be made again."""
    if error.code in MOVED:
        return Remedy.ELSEWHERE
    return Remedy.AGAIN if error.retriable else Remedy.RAISE
