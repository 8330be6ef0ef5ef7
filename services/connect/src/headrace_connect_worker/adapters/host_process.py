"""
One host process: begun, spoken to, watched, and ended. ``headrace_connect.runtime.host`` is its other end.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from headrace_common.runtime.clock import Clock, limit_ms, until_beat_ms
from headrace_common.runtime.tasks import TaskRunner, first_of
from headrace_connect.core.host_messages import Command, HostOpened, Open, Ping, Pong, Report
from headrace_connect.core.host_protocol import NotAMessage
from headrace_connect.runtime.host_link import Link, LinkLost, open_worker_end
from headrace_connect_worker.adapters.children import Child, Started
from headrace_connect_worker.adapters.host_output import Output, Whose
from headrace_connect_worker.core.pinging import Pinging
from headrace_connect_worker.ports import HostUnavailable

LOOK_MS: Final = 1_000.0
"""Between two looks at a host's memory and silence."""
MORE_MS: Final = 5_000.0
"""So long a host may take to end after its tasks."""
_LATE: Final = 5
"""A look that comes so many times too late says that the worker itself stood still."""
_OUTPUT_MS: Final = 1_000.0
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HostSettings:
    """Of all hosts of a worker."""

    cluster: Mapping[str, Any]
    """The fields of ``headrace_connect.runtime.config.RunConfig``."""
    silence_ms: int = 30_000
    """A host that says nothing for so long is killed."""
    end_ms: int = 10_000
    """So long a host that ends waits for its tasks."""
    opens_ms_max: int = 60_000
    """So long a host may take to start."""
    directories: tuple[str, ...] | None = None
    """Where files with secrets may be; None: anywhere."""
    names: tuple[str, ...] | None = None
    """Variables of the environment that may be referred to; None: all."""
    variables: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    """Of the environment of hosts."""


class HostProcess:
    """One process. ``run`` is its life; it is started once."""

    def __init__(
        self,
        label: str,
        start: Callable[[], Awaitable[Started]],
        settings: HostSettings,
        clock: Clock,
        on_report: Callable[[Report], None],
        whose: Callable[[], Whose] = Whose,
    ) -> None:
        """
        Args:
            label: for people: whom it was begun for.
            start: starts the process; see ``HostStarts.start``.
            on_report: called with each report but the first.
            whose: what it prints is; see ``Output``.
        """
        self.memory_max = 0
        """In bytes; 0: no limit. May be changed."""
        self.memory = 0
        """In bytes, when it was looked at last."""
        self._start = start
        self._settings = settings
        self._clock = clock
        self._on_report = on_report
        self._output = Output(label, whose)
        self._link: Link[Command, Report] | None = None
        self._child: Child | None = None
        self._opened = asyncio.Event()
        self._ended = asyncio.Event()
        self._why = ""
        self._closing = False
        self._heard_all = asyncio.Event()
        self._heard_ms = 0.0
        self._pinging = Pinging(settings.silence_ms)

    async def run(self) -> str:
        """From its begin to its end; why it ended, with its last lines."""
        try:
            await self._live()
        except (OSError, LinkLost, HostUnavailable) as error:
            self._why = self._why or f"it cannot be started: {error}"
        finally:
            self.kill("the worker has ended it")
            if self._child is not None:
                self._child.close()
            self._ended.set()
        return self.trace

    async def opened(self) -> None:
        """
        Wait until it takes commands.

        Raises:
            HostUnavailable: it has ended, or takes too long; says what it said.
        """
        with suppress(TimeoutError):
            async with limit_ms(self._settings.opens_ms_max):
                await first_of(self._opened.wait(), self._ended.wait())
        if self._ended.is_set() or not self._opened.is_set():
            if not self._ended.is_set():
                self.kill(f"it did not start within {self._settings.opens_ms_max} ms")
                await self._ended.wait()
            raise HostUnavailable(self.trace)

    def send(self, command: Command) -> None:
        """
        Tell it something; it was opened.

        Raises:
            HostUnavailable: it has ended, or is ending.
        """
        if self._link is None or self._ended.is_set():
            raise HostUnavailable(self.trace)
        try:
            self._link.send(command)
        except LinkLost as error:
            self.kill(str(error))
            raise HostUnavailable(self.trace) from None

    def kill(self, why: str) -> None:
        """End it at once, by its id, with all that it has forked."""
        self._why = self._why or why
        if self._child is not None:
            self._child.kill()

    async def end(self) -> None:
        """Have its tasks commit, and wait until it has ended; it is killed if it does not."""
        self._closing = True
        if self._link is not None:
            self._link.close()
        elif self._child is not None:
            self.kill("it is not needed any more")
        limit = self._settings.end_ms + MORE_MS
        with suppress(TimeoutError):
            async with limit_ms(limit):
                await self._ended.wait()
                return
        self.kill(f"it did not end within {limit:.0f} ms")
        await self._ended.wait()

    @property
    def pid(self) -> int | None:
        """Of the process; None: it is not started."""
        return None if self._child is None else self._child.pid

    @property
    def was_open(self) -> bool:
        """Whether it has taken commands."""
        return self._opened.is_set()

    @property
    def trace(self) -> str:
        """Why it ended, and its last lines."""
        lines = self._output.last_lines
        return f"{self._why}; its last lines:\n{lines}" if lines else self._why

    # --- its life -------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        started = await self._start()
        self._child = started.child
        if self._why:  # it was killed before there was anything to kill
            self._child.kill()
        self._heard_ms = self._clock.monotonic_ms()
        async with TaskRunner() as runner:
            reads = runner.start(self._read_output(started.output), name="read a host's output")
            self._link = await open_worker_end(started.link)
            settings = self._settings
            self._link.send(
                Open(settings.cluster, settings.silence_ms, settings.end_ms, settings.directories, settings.names)
            )
            if self._closing:
                self._link.close()
            runner.start(self._receive(self._link), name="read a host's reports")
            runner.start(self._look(), name="look at a host")
            how = await self._child.ended()
            self._why = self._why or how
            with suppress(TimeoutError):
                async with limit_ms(_OUTPUT_MS):
                    await asyncio.wait([reads])
                    await self._heard_all.wait()
        self._link.close()

    async def _receive(self, link: Link[Command, Report]) -> None:
        try:
            while (report := await link.receive()) is not None:
                self._heard_ms = self._clock.monotonic_ms()
                if isinstance(report, HostOpened):
                    self._opened.set()
                    continue
                if isinstance(report, Pong):
                    self._pinging.hear(report.counted)
                self._on_report(report)
        except NotAMessage as error:
            self.kill(f"it says what the worker does not understand: {error}")
            return
        self._heard_all.set()
        if not self._closing:
            await self._clock.sleep_ms(LOOK_MS)  # it may be about to end
            self.kill("it has closed its pipe to the worker")

    async def _look(self) -> None:
        number, looked_ms = 0, self._clock.monotonic_ms()
        while True:
            await self._clock.sleep_ms(until_beat_ms(self._clock.monotonic_ms(), LOOK_MS))
            now_ms, before_ms = self._clock.monotonic_ms(), looked_ms
            looked_ms = now_ms
            self._output.breathe()
            if now_ms - before_ms > _LATE * LOOK_MS:
                self._heard_ms = now_ms
            silent_ms = now_ms - self._heard_ms
            if self.was_open and silent_ms > self._settings.silence_ms:
                self.kill(f"it was silent for {silent_ms / 1_000:.0f} s")
            used = self.memory = _memory_of(self.pid)
            if self.memory_max and used > self.memory_max:
                most = self.memory_max >> 20
                self.kill(f"it had {used >> 20} MiB of memory, and {most} MiB is the most: see task.memory.max")
            if self._link is not None and not self._closing and self._pinging.is_due(now_ms):
                number += 1
                with suppress(LinkLost):
                    self._link.send(Ping(number))

    async def _read_output(self, output: int) -> None:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        pipe = os.fdopen(output, "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        try:
            while data := await reader.read(1 << 16):
                self._output.feed(data)
        finally:
            transport.close()


def _memory_of(pid: int | None) -> int:
    """Bytes of a process that are in memory; 0 where that is not known."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_bytes().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
