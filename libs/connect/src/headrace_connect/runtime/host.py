"""
A host process: runs connectors for a worker, which has it started and speaks to it over a socket that is already open.

``fork_server`` forks it, or it is ``python -m headrace_connect.runtime.host FD``. Standard output and error are the
connectors' own. It ends when the worker closes its end, or has died; tasks commit what they have before. A host that
stands still ends by itself, with the trace of what it stands in as its last lines.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import platform
import signal
import socket
import sys
import traceback
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final, NoReturn

from headrace_common.runtime.clock import pause_ms
from headrace_common.runtime.tasks import TaskRunner, first_of
from headrace_connect.core.host_messages import HostOpened, Open
from headrace_connect.core.host_protocol import NotAMessage
from headrace_connect.runtime.config import RunConfig
from headrace_connect.runtime.host_link import open_host_end
from headrace_connect.runtime.hosting import Host
from headrace_connect.runtime.log_names import TaggedLines
from headrace_connect.runtime.seating import open_process
from headrace_connect.secrets import Secrets, hide_in_logs
from headrace_connect.version import package_version

_STDERR: Final = 2
_STILL_SHARE: Final = 0.7
"""Of the silence after which the worker kills a host: it ends by itself before, and says where it stood."""
_CLOSE_S: Final = 5.0
"""So long clients may close after their tasks."""
_FIRST_TO_DIE: Final = "800"
"""Where memory runs out, the system ends hosts before others of ours; from -1000 to 1000."""


def main() -> None:
    """A process of its own; never returns."""
    run(_socket(sys.argv[1]), os.getppid())


def run(own: socket.socket, parent: int) -> NoReturn:
    """
    The life of this process, which leads its own process group.

    Args:
        own: its end of the pipe to the worker.
        parent: whose child it is, and who ends what it leaves behind.
    """
    faulthandler.enable(_STDERR)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_DIE)
    handler = logging.StreamHandler()
    handler.setFormatter(TaggedLines("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("headrace_connect").setLevel(logging.INFO)
    code = 1
    try:
        code = asyncio.run(serve(own, parent))
    except SystemExit as end:  # of a connector
        code = end.code if isinstance(end.code, int) and end.code else 1
        with suppress(OSError):
            sys.stderr.write(f"a connector has ended the process: SystemExit({end.code!r})\n")
    except BaseException:  # noqa: BLE001 - said, and then the process ends
        with suppress(OSError):
            traceback.print_exc()
    _end(code, parent)


def _end(code: int, parent: int) -> NoReturn:
    """The process, without waiting for threads: those of connectors may never end."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    if os.getppid() != parent and os.getpgrp() == os.getpid():  # nobody is left who ends what connectors have forked
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(code)


def _socket(fd: str) -> socket.socket:
    own = socket.socket(fileno=int(fd))
    own.set_inheritable(False)
    return own


async def serve(own: socket.socket, parent: int) -> int:
    """
    Do what the worker at the other end commands; the exit code.

    Args:
        parent: as for ``run``.

    Raises:
        NotAMessage: its first words are not ``Open``.
    """
    link = await open_host_end(own)
    first = await link.receive()
    if first is None:
        return 0
    if not isinstance(first, Open):
        raise NotAMessage(f"{type(first).__name__} before Open")
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    os.register_at_fork(after_in_child=lambda: loop.call_soon(os._exit, 1))  # what is forked is no host
    async with AsyncExitStack() as stack:
        runner = await stack.enter_async_context(TaskRunner())
        looks = runner.start(_end_when_still(first.silence_ms), name="a look at the event loop")
        process = await stack.enter_async_context(open_process(RunConfig(**first.cluster)))
        directories = None if first.directories is None else [Path(one) for one in first.directories]
        secrets = Secrets(directories, first.names)
        hide_in_logs(secrets)
        host = Host(link, process, secrets, runner)
        link.send(HostOpened(os.getpid(), platform.python_version(), package_version()))
        reads = runner.start(host.run(), name="do what the worker commands")
        await first_of(asyncio.wait([reads]), stop.wait(), runner.failed.wait())
        if not await host.close(first.end_ms):
            _end(1, parent)
        link.close()
        looks.cancel()
        faulthandler.dump_traceback_later(_CLOSE_S, exit=True, file=_STDERR)
        return 1 if runner.failed.is_set() else 0


async def _end_when_still(silence_ms: int) -> None:
    """A thread that needs no lock of Python's ends the process when this loop does not come by for long."""
    while True:
        faulthandler.dump_traceback_later(silence_ms * _STILL_SHARE / 1_000, exit=True, file=_STDERR)
        await pause_ms(silence_ms / 5)


if __name__ == "__main__":
    main()
