"""
Decides whether a program that others ask lets them: workers of streams and of Connect, which have no rules themselves.

A broker is asked, and what it has said counts for ``FRESH_MS``: so long what was taken back may still be done. Where
the cluster is not closed everybody may; while it cannot be asked what is known of that stays, and who has not heard of
it lets nobody in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Final

from headrace.errors import CredentialInPlainText, HeadraceError, Unauthenticated
from headrace.ticket_types import AccessAnswer, AccessQuestion, AnnouncedChange, TicketAudience
from headrace_common.core.errors import (
    AuditUnavailable,
    ClusterAuthorizationFailed,
    CoordinatorNotAvailable,
    NetworkFailed,
    Overloaded,
    RequestTimedOut,
)
from headrace_common.core.secret import Secret
from headrace_common.runtime.clock import Clock

FRESH_MS: Final = 5_000.0
KNOWN_MAX: Final = 10_000
"""Answers that are remembered, to as many questions; then it begins anew."""
ASKING_MAX: Final = 64
"""Questions to brokers at one time."""

Ask = Callable[[], Awaitable[AccessAnswer]]


class Guard:
    """What one program knows of who may ask it. One event loop."""

    def __init__(self, admin: Any, clock: Clock) -> None:
        """
        Args:
            admin: ``headrace.aio.AdminClient``, with the program's own credential.
        """
        self._admin = admin
        self._clock = clock
        self._known: dict[Hashable, tuple[float, AccessAnswer]] = {}
        self._known_count = 0
        self._asking: dict[Hashable, asyncio.Future[AccessAnswer]] = {}
        self._announcing = 0
        self._open: bool | None = None
        """Whether the cluster lets everybody, as was heard last; None: never heard."""
        self._open_until_ms = -float("inf")

    async def is_open(self) -> bool:
        """
        Whether everybody may, so that nobody is asked who it is.

        Raises:
            CoordinatorNotAvailable: that is not known, as the cluster cannot be asked.
        """
        if self._open_until_ms > self._clock.monotonic_ms():
            return True
        try:
            answer = await self.ask("mode", self._admin.check_access)
        except Overloaded:
            raise
        except HeadraceError as error:
            if not self._open:
                raise _unknown(error) from error
            self._open_until_ms = self._clock.monotonic_ms() + FRESH_MS
            return True
        return not answer.closed

    async def check_ticket(self, ticket: bytes, audience: TicketAudience, questions: Sequence[AccessQuestion]) -> None:
        """
        Let in who shows ``ticket`` to this program, which is ``audience``, and may all of this.

        Raises:
            Unauthenticated: it is none, or none any more; another one is to be shown.
            Denied: its owner may not.
            CoordinatorNotAvailable, Overloaded: the cluster cannot be asked now.
        """
        if await self.is_open():
            return
        if not ticket:
            raise Unauthenticated(
                f"this cluster is closed: show a ticket for {audience.group} at {audience.endpoint}, as clients of "
                "this version do"
            )
        refuse_if_not(await self.ask_by_ticket(ticket, audience, questions))

    async def ask_by_ticket(
        self, ticket: bytes, audience: TicketAudience, questions: Sequence[AccessQuestion]
    ) -> AccessAnswer:
        """
        What the owner of ``ticket`` may, by it, at this program, which is ``audience``. For closed clusters.

        Raises:
            Unauthenticated: it is none, or none any more; another one is to be shown.
            CoordinatorNotAvailable, Overloaded: the cluster cannot be asked now.
        """
        if not ticket:
            raise Unauthenticated("no ticket was shown")  # without one the question would be what this program may
        key = ticket, audience, tuple(questions)
        try:
            answer = await self.ask(key, lambda: self._admin.check_access(questions, ticket=ticket, audience=audience))
        except Overloaded:
            raise
        except (NetworkFailed, RequestTimedOut) as error:
            raise Unauthenticated("the broker that made the ticket does not answer; show another one") from error
        except HeadraceError as error:
            raise _unknown(error) from error
        if answer.ticket_refused:
            raise Unauthenticated(answer.ticket_refused)
        return answer

    async def ask_by_bearer(
        self, bearer: Secret, questions: Sequence[AccessQuestion], change: AnnouncedChange | None = None
    ) -> AccessAnswer:
        """
        What may be done by who shows ``bearer`` to this program: brokers are shown that, and nothing of the program's.
        For closed clusters.

        Args:
            change: what is done next if it may be: a broker is asked anew, and has it in the audit.

        Raises:
            Unauthenticated: it is nobody's, or nobody's any more.
            CoordinatorNotAvailable, Overloaded: the cluster cannot be asked now.
            AuditUnavailable: ``change`` must not be done.
        """
        try:
            if change is not None:
                return await self._announce(bearer, questions, change)
            key = bearer, tuple(questions)
            return await self.ask(key, lambda: self._admin.check_access(questions, bearer=bearer))
        except CredentialInPlainText as error:  # by this program, to a broker
            raise _unknown(error) from error
        except (Unauthenticated, Overloaded, AuditUnavailable):
            raise
        except HeadraceError as error:
            raise _unknown(error) from error

    async def _announce(
        self, bearer: Secret, questions: Sequence[AccessQuestion], change: AnnouncedChange
    ) -> AccessAnswer:
        if self._announcing >= ASKING_MAX:
            raise Overloaded("too many change something at one time; ask again in a moment")
        self._announcing += 1
        try:
            answer: AccessAnswer = await self._admin.check_access(questions, bearer=bearer, change=change)
        finally:
            self._announcing -= 1
        return answer

    async def ask(self, key: Hashable, ask: Ask) -> AccessAnswer:
        """
        What a broker says, at most ``FRESH_MS`` ago; those who ask the same at one time ask once.

        Raises:
            Overloaded: too much is being asked.
            HeadraceError: what was said instead, which is not remembered.
        """
        known = self._known.get(key)
        if known is not None and known[0] > self._clock.monotonic_ms():
            return known[1]
        asking = self._asking.get(key)
        if asking is None:
            if len(self._asking) >= ASKING_MAX:
                raise Overloaded("too many want to know what they may; ask again in a moment")
            asking = self._asking[key] = asyncio.ensure_future(self._fresh(key, ask))
            asking.add_done_callback(lambda done: self._done(key, done))
        return await asyncio.shield(asking)

    async def _fresh(self, key: Hashable, ask: Ask) -> AccessAnswer:
        until_ms = self._clock.monotonic_ms() + FRESH_MS
        answer = await ask()
        self._open = not answer.closed
        if self._open:
            self._open_until_ms = until_ms
        if self._known_count >= KNOWN_MAX:
            self._known.clear()
            self._known_count = 0
        self._known_count += max(1, len(answer.refusals))
        self._known[key] = until_ms, answer
        return answer

    def _done(self, key: Hashable, done: asyncio.Future[AccessAnswer]) -> None:
        del self._asking[key]
        if not done.cancelled():
            done.exception()  # who asked has it


def refuse_if_not(answer: AccessAnswer) -> None:
    """
    Raises:
        Denied: some of what was asked it may not.
    """
    for refusal in filter(None, answer.refusals):
        raise ClusterAuthorizationFailed(refusal)


def _unknown(error: HeadraceError) -> CoordinatorNotAvailable:
    return CoordinatorNotAvailable(f"the cluster cannot be asked who may do what, so nobody is let in: {error}")
