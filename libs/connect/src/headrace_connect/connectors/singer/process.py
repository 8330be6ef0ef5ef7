"""Runs a tap as a process: its files, its output, its silence and its end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.clock import Clock, SystemClock, give_way, limit_ms
from headrace_common.runtime.tasks import TaskRunner, first_of
from headrace_connect.connectors.singer import guard
from headrace_connect.connectors.singer.lines import Line, LineCutter
from headrace_connect.connectors.singer.output import Output
from headrace_connect.connectors.singer.redacting import Redactor
from headrace_connect.connectors.singer.tap import TapFailed
from headrace_connect.core.names import PLUGIN_PATH

_log: Final = logging.getLogger(__name__)
_READ_BYTES: Final = 256 << 10
_CATALOG_BYTES_MAX: Final = 64 << 20
_LINES_KEPT: Final = 20
_LINE_BYTES_KEPT: Final = 4 << 10
_LINE_CHARS_MAX: Final = 500
_LOG_MS: Final = 5_000.0
_END_MS: Final = 10_000.0
"""So long a tap may take to end when it has closed its output."""
_PASSED: Final = frozenset(
    {
        "HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER", "CURL_CA_BUNDLE",
        "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
        "http_proxy", "https_proxy", "all_proxy", "no_proxy",
    }
)  # fmt: skip
"""Variables of the environment that a tap gets: others may be secrets of other connectors, or packages of ours."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a process."""

    silence_ms: int = 600_000
    discover_ms: int = 60_000
    line_bytes: int = 16 << 20


def find_program(name: str, variables: Mapping[str, str] = os.environ) -> Path:
    """
    A tap: a path, or the name of one in an environment of ``plugin_path``, in the connector's own, or in ``PATH``.

    Raises:
        InvalidConfig: there is none.
    """
    if "/" in name:
        if name.startswith("/") and os.access(name, os.X_OK) and Path(name).is_file():
            return Path(name)
        raise InvalidConfig(f"tap.executable: there is no program {name}; it is an absolute path, or a name alone")
    folders = [Path(folder) for folder in variables.get(PLUGIN_PATH, "").split(",") if folder]
    homes = [home for folder in folders for home in (folder, *_inner(folder))]
    for home in (*(home / "bin" for home in homes), Path(sys.executable).parent):
        if os.access(home / name, os.X_OK) and (home / name).is_file():
            return (home / name).absolute()
    found = shutil.which(name, path=variables.get("PATH"))
    if found is None:
        raise InvalidConfig(
            f"tap.executable: there is no program {name} in an environment of plugin_path, in the connector's own, or "
            "in PATH; install the tap into an environment of its own, and name its program"
        )
    return Path(found).absolute()


def _inner(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


@dataclass(slots=True)
class _Life:
    """One process, and what it has said."""

    process: asyncio.subprocess.Process
    output: Output
    log: Output
    errors: deque[str] = field(default_factory=lambda: deque(maxlen=_LINES_KEPT))
    hears: asyncio.Task[None] | None = None
    heard_ms: float = 0.0
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """It has ended."""
    is_read: bool = False
    """It has ended, and what it had written then was read."""
    left_open: bool = False
    """Others had its output open when it had ended."""

    async def wait(self) -> None:
        """Until it has ended."""
        await self.process.wait()
        self.gone.set()

    async def next(self) -> bytes:
        """What it writes next; nothing: it has closed its output, or has ended. Others may write on: it is not read."""
        await give_way()  # who writes faster than it is read leaves nothing to wait for
        while not self.gone.is_set():
            data = self.output.read_now(_READ_BYTES)
            if data is not None:
                return data
            await first_of(self.output.wait(), self.gone.wait())
        if self.is_read:
            return b""
        self.is_read = True
        data, self.left_open = self.output.take()
        return data


class TapProcess:
    """Satisfies ``Tap``."""

    def __init__(self, program: str, limits: Limits, clock: Clock | None = None) -> None:
        self._program = program
        self._limits = limits
        self._clock = clock or SystemClock()

    async def discover(self, config: Mapping[str, Any]) -> bytes:
        """See ``Tap``."""
        parts: list[bytes] = []
        size = 0
        try:
            async with (
                limit_ms(self._limits.discover_ms),
                self._started({"--config": config}, ["--discover"]) as life,
                aclosing(self._read(life, config)) as output,
            ):
                async for data in output:
                    parts.append(data)
                    size += len(data)
                    if size > _CATALOG_BYTES_MAX:
                        raise TapFailed(f"the tap's catalog has more than {_CATALOG_BYTES_MAX} bytes")
        except TimeoutError:
            raise TapFailed(
                f"the tap did not end within discover.timeout.ms, {self._limits.discover_ms} ms, with --discover"
            ) from None
        return b"".join(parts)

    async def run(self, config: Mapping[str, Any], files: Mapping[str, Any]) -> AsyncGenerator[Sequence[Line], None]:
        """See ``Tap``."""
        cutter = LineCutter(self._limits.line_bytes)
        async with self._started({"--config": config, **files}) as life:
            async with aclosing(self._read(life, config)) as output:
                async for data in output:
                    lines = cutter.feed(data)
                    if lines:
                        yield lines
            rest = cutter.finish()
            if rest and not life.left_open:  # else it may be half a line of another process
                yield rest

    async def _read(self, life: _Life, config: Mapping[str, Any]) -> AsyncGenerator[bytes, None]:
        """
        Its output, until it has ended well.

        Raises:
            TapFailed: see ``Tap``.
        """
        why = ""
        try:
            while data := await self._next(life):
                yield data
        except TimeoutError:
            why = f"was silent for {self._limits.silence_ms} ms, and was killed"
        why = why or await _ending(life.process)
        if why:
            raise TapFailed(await self._trace(f"the tap {why}", life, Redactor(config)))
        if life.left_open:
            _log.warning("the tap has ended, and processes that it had started could still write: they are killed")

    async def _next(self, life: _Life) -> bytes:
        """
        What it writes next; nothing: it has closed its output. Lines of its log are signs of life too.

        Raises:
            TimeoutError: it was silent.
        """
        life.heard_ms = self._clock.monotonic_ms()
        while True:
            left_ms = life.heard_ms + self._limits.silence_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                raise TimeoutError
            with suppress(TimeoutError):
                async with limit_ms(left_ms):
                    return await life.next()

    @asynccontextmanager
    async def _started(self, files: Mapping[str, Any], options: Sequence[str] = ()) -> AsyncGenerator[_Life, None]:
        """The process; it is killed at the end, with all that it has started, and its files are deleted."""
        program = find_program(self._program)
        directory = Path(tempfile.mkdtemp(prefix="headrace-tap-"))
        process: asyncio.subprocess.Process | None = None
        try:
            with closing(Output()) as output, closing(Output()) as log:
                arguments = [part for name, said in files.items() for part in (name, _write(directory, name, said))]
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-I", "-S", guard.__file__, str(directory), str(program), *arguments, *options,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=output.given,
                    stderr=log.given,
                    start_new_session=True,
                    cwd=directory,
                    env={name: text for name, text in os.environ.items() if name in _PASSED or name.startswith("LC_")},
                )  # fmt: skip
                output.give_away()
                log.give_away()
                async with TaskRunner() as runner:
                    life = _Life(process, output, log)
                    runner.start(life.wait(), name="wait for a tap's end")
                    life.hears = runner.start(self._hear(life), name="read a tap's log")
                    yield life
        except OSError as error:
            raise TapFailed(f"the tap cannot be started: {error.strerror or error}") from error
        finally:
            try:
                if process is not None:
                    await _end(process)
            finally:
                shutil.rmtree(directory, ignore_errors=True)

    async def _trace(self, why: str, life: _Life, hidden: Redactor) -> str:
        """Why it ended, and its last lines without what is secret."""
        _kill(life.process)  # else what it has started would keep its log open
        assert life.hears is not None, "it was begun"
        with suppress(TimeoutError):
            async with limit_ms(_LOG_MS):
                await asyncio.wait([life.hears])
        lines = [hidden.hide(line)[:_LINE_CHARS_MAX] for line in life.errors if line.strip()]
        return "\n".join([f"{why}; its last lines:", *lines]) if lines else f"{why}, and said nothing"

    async def _hear(self, life: _Life) -> None:
        """Keep the last lines of its log."""
        rest = b""
        while data := await life.log.read(_READ_BYTES):
            life.heard_ms = self._clock.monotonic_ms()
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[:_LINE_BYTES_KEPT]
            life.errors.extend(line[:_LINE_BYTES_KEPT].decode(errors="replace") for line in lines[-_LINES_KEPT:])
        if rest:
            life.errors.append(rest.decode(errors="replace"))


def _write(directory: Path, option: str, said: Any) -> str:
    path = directory / f"{option.strip('-')}.json"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump(said, file, default=float)
    return str(path)


def _kill(process: asyncio.subprocess.Process) -> None:
    """The guard is our child, or has just ended: nobody else has the id of its group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill it, with all that it has started."""
    assert process.stdin is not None, "it is a pipe"
    _kill(process)
    await process.wait()
    process.stdin.close()
    with suppress(BrokenPipeError, ConnectionResetError):
        await process.stdin.wait_closed()


async def _ending(process: asyncio.subprocess.Process) -> str:
    """How it ends, now that it has closed its output; nothing: well."""
    try:
        async with limit_ms(_END_MS):
            code = await process.wait()
    except TimeoutError:
        return f"closed its output and did not end for {_END_MS:.0f} ms, and was killed"
    if code == guard.CANNOT_START:
        return "cannot be started"
    number = code - 128 if code > 128 else -code
    if number > 0:
        return f"was killed by {_signal(number)}"
    return f"ended with {code}" if code else ""


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
