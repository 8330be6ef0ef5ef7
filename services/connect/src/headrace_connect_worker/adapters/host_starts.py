"""
Starts hosts: forked from a server of their environment, which has imported what they need; else each by itself.

A fork server that has ended is begun anew with the next host. One that never came to fork, as its Python or the system
does not allow it, is not tried again for a while; hosts start without it, which takes them longer.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Final

from headrace_common.runtime.clock import Clock
from headrace_common.runtime.tasks import TaskRunner
from headrace_connect_worker.adapters.children import Started, open_ends, start_alone
from headrace_connect_worker.adapters.environments import OWN, Environment
from headrace_connect_worker.adapters.fork_server import ForkServer, NotForked
from headrace_connect_worker.ports import HostUnavailable

AGAIN_MS: Final = 60_000.0
"""After a fork server that never came to fork."""
NO_THREADS: Final = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""NumPy and Arrow would begin threads when they are imported, and nothing can be forked beside those."""
_FOREIGN: Final = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""What would give an environment the worker's packages."""
_log: Final = logging.getLogger(__name__)


class HostStarts:
    """Of one worker."""

    def __init__(self, variables: Mapping[str, str], end_ms: float, clock: Clock) -> None:
        """
        Args:
            variables: of the environment of hosts, as it is when their fork server begins.
            end_ms: so long hosts may go on when the worker has died.
        """
        self._variables = variables
        self._end_ms = end_ms
        self._clock = clock
        self._servers: dict[str, tuple[ForkServer, object]] = {}
        """By environment: and how that was when the server began."""
        self._retired: list[ForkServer] = []
        self._not_before_ms: dict[str, float] = {}
        self._runner = TaskRunner()
        self._closing = False

    def warm(self) -> None:
        """Have what hosts of the worker's own environment need imported before there is one."""
        self._server_of(OWN)

    async def start(self, environment: Environment) -> Started:
        """
        A host process in ``environment``.

        Raises:
            HostUnavailable: the worker is closing.
            OSError: it cannot be started.
        """
        server = self._server_of(environment)
        if server is not None:
            try:
                with open_ends() as ends:
                    return Started(await server.fork(ends), ends.link, ends.output)
            except NotForked as error:
                self._note_failure(environment, server, error)
        if self._closing:
            raise HostUnavailable("the worker is closing")
        return await start_alone(environment.python, self._variables_of(environment))

    def stop(self) -> None:
        """Start no more; who waits for a fork server that is not ready waits no longer."""
        self._closing = True
        for server, _ in self._servers.values():
            if not server.was_ready:
                server.kill("the worker is closing")

    async def close(self) -> None:
        """End all fork servers; their hosts have ended."""
        self._closing = True
        for server in (*self._retired, *(server for server, _ in self._servers.values())):
            await server.end()
        await self._runner.close()

    # --- fork servers -------------------------------------------------------------------------------------------------

    def _server_of(self, environment: Environment) -> ForkServer | None:
        """The one of this environment as it is now, which may have just begun; None: there can be none."""
        if self._closing or not hasattr(os, "pidfd_open"):
            return None
        name, stamp = environment.name, environment.stamp()
        if name in self._servers:
            server, begun = self._servers[name]
            if server.is_usable and begun == stamp:
                return server
            del self._servers[name]
            if server.is_usable:
                server.retire()
                self._retired.append(server)
        if self._clock.monotonic_ms() < self._not_before_ms.get(name, 0.0):
            return None
        server = ForkServer(environment.python, self._variables_of(environment), self._end_ms)
        self._servers[name] = server, stamp
        self._runner.start(self._keep(server), name="fork server")
        return server

    async def _keep(self, server: ForkServer) -> None:
        await server.run()
        if server in self._retired:
            self._retired.remove(server)

    def _note_failure(self, environment: Environment, server: ForkServer, error: NotForked) -> None:
        if self._closing:
            return
        if not server.was_ready:
            self._not_before_ms[environment.name] = self._clock.monotonic_ms() + AGAIN_MS
        where = environment.name or "the worker's own environment"
        _log.warning("a host of %s starts by itself, for the fork server has not forked it: %s", where, error)

    def _variables_of(self, environment: Environment) -> dict[str, str]:
        variables = {**NO_THREADS, **self._variables, "PYTHONUNBUFFERED": "1"}
        if environment.home is not None:
            for name in _FOREIGN:
                variables.pop(name, None)
        return variables
