"""What a worker has of a host process that was started, however that was; and the start of one by itself."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class Child(Protocol):
    """A process that leads a process group of its own."""

    @property
    def pid(self) -> int:
        """Its process id; once it has ended, it may be another one's."""
        ...

    async def ended(self) -> str:
        """How it has ended, for people, when it has; nothing of its process group is left then."""
        ...

    def kill(self) -> None:
        """End it at once, with all that it has forked. Whoever has its id after it is not meant."""
        ...

    def close(self) -> None:
        """Let go of it; nothing can be asked after that."""
        ...


@dataclass(frozen=True, slots=True)
class Started:
    """A host process; whoever has it closes all three."""

    child: Child
    link: socket.socket
    """The worker's end of the pipe to it."""
    output: int
    """Where what it prints can be read: a descriptor."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Both ends of what connects a host with its worker."""

    link: socket.socket
    output: int
    their_link: socket.socket
    their_output: int


@contextmanager
def open_ends() -> Iterator[Ends]:
    """The host's ends are closed here when it has them; the worker's too if it does not come to that."""
    link, their_link = socket.socketpair()
    output, their_output = os.pipe()
    try:
        yield Ends(link, output, their_link, their_output)
    except BaseException:
        link.close()
        os.close(output)
        raise
    finally:
        their_link.close()
        os.close(their_output)


async def start_alone(python: Path, variables: Mapping[str, str]) -> Started:
    """
    A host that imports itself what it needs.

    Raises:
        OSError: it cannot be started.
    """
    with open_ends() as ends:
        process = await asyncio.create_subprocess_exec(
            str(python),
            "-m",
            "headrace_connect.runtime.host",
            str(ends.their_link.fileno()),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=ends.their_output,
            stderr=ends.their_output,
            pass_fds=(ends.their_link.fileno(),),
            start_new_session=True,  # Ctrl+C is the worker's, and its group can be killed
            env=variables,
        )
        return Started(_Alone(process), ends.link, ends.output)


class _Alone:
    """Satisfies ``Child``: a child of the worker itself."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """See ``Child``."""
        return self._process.pid

    async def ended(self) -> str:
        """See ``Child``."""
        code = await self._process.wait()
        self._kill_group()  # it has just ended: nobody else has its id
        return ending(code)

    def kill(self) -> None:
        """See ``Child``."""
        if self._process.returncode is None:
            self._kill_group()

    def close(self) -> None:
        """See ``Child``."""

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


def ending(code: int) -> str:
    """How a process has ended, for people."""
    if code >= 0:
        return f"its process ended with {code}"
    with suppress(ValueError):
        return f"its process was killed by {signal.Signals(-code).name}"
    return f"its process was killed by signal {-code}"
