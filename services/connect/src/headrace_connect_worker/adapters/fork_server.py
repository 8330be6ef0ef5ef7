"""
A fork server as a child of the worker: begun, asked for hosts, and ended. ``headrace_connect.runtime.fork_server`` is
its other end.

One that does not answer is killed. Hosts that it has forked go on without it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from headrace_common.runtime.clock import limit_ms
from headrace_common.runtime.tasks import first_of
from headrace_connect.core.fork_messages import Fork, ForkServerReady, HostEnded, HostForked, HostNotForked
from headrace_connect.core.host_protocol import NotAMessage, decode_fork_report, encode
from headrace_connect_worker.adapters.children import Ends, ending
from headrace_connect_worker.adapters.forked_child import ForkedChild
from headrace_connect_worker.adapters.host_output import Output

READY_MS_MAX: Final = 20_000.0
"""So long it may take to import what hosts need."""
FORK_MS_MAX: Final = 5_000.0
"""So long it may take to fork one."""
END_MS_MAX: Final = 2_000.0
"""So long it may take to end when it has no hosts."""
PACKET_BYTES_MAX: Final = 16 << 10
_LABEL: Final = "fork server"
_log: Final = logging.getLogger(__name__)


class NotForked(Exception):
    """It has not forked a host, and will not; says why."""


class ForkServer:
    """One process. ``run`` is its life; it is started once."""

    def __init__(self, python: Path, variables: Mapping[str, str], end_ms: float) -> None:
        """
        Args:
            variables: of its environment, and so of that of its hosts.
            end_ms: so long its hosts may go on when the worker has died.
        """
        self.was_ready = False
        """Whether it has ever been able to fork."""
        self._python = python
        self._variables = variables
        self._end_ms = end_ms
        self._process: asyncio.subprocess.Process | None = None
        control, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.setblocking(False)
        self._control: socket.socket | None = control
        self._output = Output(_LABEL)
        self._ready = asyncio.Event()
        self._lost = asyncio.Event()
        self._why = ""
        self._number = 0
        self._waiting: dict[int, asyncio.Future[ForkedChild]] = {}
        self._children: dict[int, ForkedChild] = {}
        """Those that have not ended, by the number of their order."""
        self._is_retired = False

    # --- its life -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """From its begin to its end."""
        try:
            with self._theirs:
                self._process = await self._start(self._theirs)
            if self._control is None or self._why:  # it was ended before it had begun
                self._kill()
            else:
                asyncio.get_running_loop().add_reader(self._control, self._receive)
            await self._read_output(self._process)
            self._why = self._why or ending(await self._process.wait())
        except OSError as error:
            self._why = f"it cannot be started: {error}"
        finally:
            self._let_go()
            self._kill()
            self._lose()

    async def _start(self, theirs: socket.socket) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            str(self._python),
            "-m",
            "headrace_connect.runtime.fork_server",
            str(theirs.fileno()),
            str(self._end_ms),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
            env=self._variables,
        )

    async def _read_output(self, process: asyncio.subprocess.Process) -> None:
        """All that it prints; hosts have let go of its output."""
        assert process.stdout is not None, "it is a pipe"
        while data := await process.stdout.read(1 << 16):
            self._output.feed(data)

    def _lose(self) -> None:
        self._lost.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(NotForked(self.trace))
        for child in self._children.values():
            child.orphan()
        self._children.clear()

    def _let_go(self) -> None:
        """It ends when its hosts have."""
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
            self._control = None

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

    def kill(self, why: str) -> None:
        """End it at once, without its hosts."""
        self._why = self._why or why
        self._kill()

    async def end(self) -> None:
        """It is not needed any more, and has no hosts; it is killed if it does not end."""
        self._is_retired = True
        self._let_go()
        if not self._ready.is_set():
            self.kill("it is not needed any more")
        with suppress(TimeoutError):
            async with limit_ms(END_MS_MAX):
                await self._lost.wait()
                return
        self.kill(f"it did not end within {END_MS_MAX:.0f} ms")
        await self._lost.wait()

    def retire(self) -> None:
        """It forks no more, and ends when its hosts have."""
        self._is_retired = True
        if not self._children and not self._waiting:
            self._let_go()

    # --- hosts --------------------------------------------------------------------------------------------------------

    @property
    def is_usable(self) -> bool:
        """Whether it may be asked for hosts."""
        return self._control is not None and not self._lost.is_set() and not self._is_retired and not self._why

    @property
    def pid(self) -> int | None:
        """Of the process; None: it is not started."""
        return None if self._process is None else self._process.pid

    @property
    def trace(self) -> str:
        """Why it ended, and its last lines."""
        lines = self._output.last_lines
        return f"{self._why}; its last lines:\n{lines}" if lines else self._why

    async def fork(self, ends: Ends) -> ForkedChild:
        """
        A host with these ends.

        Raises:
            NotForked: there is none, or nobody will hear of it.
        """
        await self._until_ready()
        number = self._number = self._number + 1
        answer: asyncio.Future[ForkedChild] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._send(Fork(number), ends.their_link.fileno(), ends.their_output)
            async with limit_ms(FORK_MS_MAX):
                return await answer
        except TimeoutError:
            self.kill(f"it did not fork a host within {FORK_MS_MAX:.0f} ms")
            raise NotForked(self.trace) from None
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                _give_up(answer.result())
            raise
        finally:
            del self._waiting[number]

    async def _until_ready(self) -> None:
        with suppress(TimeoutError):
            async with limit_ms(READY_MS_MAX):
                await first_of(self._ready.wait(), self._lost.wait())
        if not self._ready.is_set() and not self._lost.is_set():
            self.kill(f"it was not ready within {READY_MS_MAX:.0f} ms")
        if not self._ready.is_set() or not self.is_usable:
            raise NotForked(self.trace or "another one has taken its place")

    def _send(self, order: Fork, *passed: int) -> None:
        try:
            assert self._control is not None, "it is usable"
            socket.send_fds(self._control, [encode(order)], passed)
        except OSError as error:
            self.kill(f"it takes no orders: {error}")
            raise NotForked(self.trace) from None

    # --- what it says -------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        assert self._control is not None, "it is read"
        try:
            packet, passed, _, _ = socket.recv_fds(self._control, PACKET_BYTES_MAX, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            packet, passed = b"", []
        if not packet:  # it ends; whoever waits hears how
            self._let_go()
            return
        try:
            self._hear(packet, passed)
        except NotAMessage as error:
            self.kill(f"it says what the worker does not understand: {error}")

    def _hear(self, packet: bytes, passed: list[int]) -> None:
        match decode_fork_report(packet):
            case ForkServerReady():
                self.was_ready = True
                self._ready.set()
            case HostForked(number, pid):
                self._take(number, ForkedChild(pid, passed[0]))
            case HostNotForked(number, reason):
                answer = self._waiting.get(number)
                if answer is not None and not answer.done():
                    answer.set_exception(NotForked(reason))
            case HostEnded(number, code):
                child = self._children.pop(number, None)
                if child is not None:
                    child.report(code)
                if self._is_retired:
                    self.retire()

    def _take(self, number: int, child: ForkedChild) -> None:
        answer = self._waiting.get(number)
        if answer is None or answer.done():
            _give_up(child)
            return
        self._children[number] = child
        answer.set_result(child)


def _give_up(child: ForkedChild) -> None:
    """Nobody waits for it any more."""
    child.kill()
    child.close()
