"""
Decides when open streams are begun anew because of what they were begun with: before that ends, with what is shown by
then, so that nothing is cut off and nobody is told.

Used by ``grpc.GrpcTransport``, which has one from its first stream on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from headrace._credentials import Credentials, LogIn
from headrace._runtime import Tasks
from headrace_common.core.errors import HeadraceError
from headrace_common.runtime.clock import pause_ms

_log = logging.getLogger("headrace")


class Movable(Protocol):
    """A stream of the transport."""

    def renew(self) -> None:
        """Go on over another call, begun with what is shown now. What is under way on the one of before stays there."""
        ...


class Moving:
    """
    Looks after the streams of one transport; see the module's text. One event loop.

    Args:
        streams: those there are now.
    """

    def __init__(
        self, credentials: Credentials, log_in: LogIn, streams: Callable[[], Iterable[Movable]], tasks: Tasks
    ) -> None:
        self._credentials = credentials
        self._log_in = log_in
        self._streams = streams
        self._tasks = tasks
        self._begun = False

    def begin(self) -> None:
        """A stream is being opened. Idempotent."""
        if not self._begun:
            self._begun = True
            if self._credentials.look_ms() is not None:
                self._tasks.start(self._look(), "streams with a newer credential")

    async def _look(self) -> None:
        credentials = self._credentials
        shown = credentials.number
        while (wait_ms := credentials.look_ms()) is not None:
            await pause_ms(wait_ms)
            try:
                await credentials.keep(self._log_in)
            except HeadraceError as error:
                _log.debug("no newer credential: %s", error)  # calls tell it when what there is is over
            if credentials.number != shown:
                shown = credentials.number
                for stream in list(self._streams()):
                    stream.renew()
