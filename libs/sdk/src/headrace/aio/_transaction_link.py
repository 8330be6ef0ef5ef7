"""Asks coordinators for a transactional producer, and tells its core what they say."""

from __future__ import annotations

from collections.abc import Collection

from headrace._core.transaction import Call, TransactionCore
from headrace._transport.port import CoordinatorCall
from headrace.aio._coordinators import A, CoordinatorLink
from headrace.errors import ClusterUnreachable, ErrorCode, HeadraceError, WaitTimedOut


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

    def __init__(self, core: TransactionCore, link: CoordinatorLink) -> None:
        self._core = core
        self.link = link

    async def ask(
        self,
        call: Call,
        attempt: CoordinatorCall[A],
        deadline_ms: float,
        link: CoordinatorLink | None = None,
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
            return await (link or self.link).ask(call.value, attempt, deadline_ms)
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
