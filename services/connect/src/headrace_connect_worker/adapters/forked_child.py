"""
A host that a fork server has forked: a child of that server, which says how it has ended.

The worker has a descriptor that names the process (``pidfd``), so it can kill it, and sees it end, whether the server
is there or not, and whoever gets the process id next.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import signal
from contextlib import suppress
from typing import Final

from headrace_common.runtime.clock import limit_ms
from headrace_connect_worker.adapters.children import ending

REPORT_MS_MAX: Final = 2_000.0
"""So long after the end of a host its fork server may take to say how it was."""
_GROUP: Final = 4
"""``PIDFD_SIGNAL_PROCESS_GROUP``, from Linux 6.9 on."""


class ForkedChild:
    """Satisfies ``Child``."""

    def __init__(self, pid: int, named: int) -> None:
        """
        Args:
            named: names the process; closed here.
        """
        self._pid = pid
        self._named = named
        self._code: int | None = None
        self._is_open = True
        self._over = asyncio.Event()
        self._reported = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(named, self._end)

    @property
    def pid(self) -> int:
        """See ``Child``."""
        return self._pid

    async def ended(self) -> str:
        """See ``Child``."""
        await self._over.wait()
        with suppress(TimeoutError):
            async with limit_ms(REPORT_MS_MAX):
                await self._reported.wait()
        if self._code is None:
            self._bury()
        if self._code is None:
            return "its process has ended, nobody knows how: the fork server, whose child it was, has not said so"
        return ending(self._code)

    def kill(self) -> None:
        """See ``Child``."""
        if not self._is_open or self._code is not None:
            return
        if not self._kill_group() and not select.select([self._named], [], [], 0)[0]:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)  # it has its id: it is not over
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._named, signal.SIGKILL)

    def close(self) -> None:
        """See ``Child``."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._named)
            os.close(self._named)

    def report(self, code: int) -> None:
        """Its fork server has seen it end, killed what was left of its group, and reaped it."""
        self._code = code
        self._over.set()
        self._reported.set()

    def orphan(self) -> None:
        """Its fork server is no more."""
        self._reported.set()

    def _end(self) -> None:
        self._loop.remove_reader(self._named)
        self._over.set()

    def _kill_group(self) -> bool:
        """Whether that can be done by its name; whoever leads no group yet has forked nothing."""
        try:
            signal.pidfd_send_signal(self._named, signal.SIGKILL, None, _GROUP)
        except OSError as error:
            return error.errno != errno.EINVAL
        return True

    def _bury(self) -> None:
        """It is over, and nobody says how. Orphans are the first process's, which this one may be."""
        seen = None
        with suppress(ChildProcessError):
            seen = os.waitid(os.P_PIDFD, self._named, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if not self._kill_group() and seen is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)  # it has its id: it is not reaped
        if seen is not None:
            os.waitid(os.P_PIDFD, self._named, os.WEXITED | os.WNOHANG)
            self._code = seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status
