"""
The audit of one process: takes what has happened, and has it written in the order and form of ``core.audit``.

``note`` never waits; ``record`` returns when the event is on disk, and what it is about is refused if that cannot be.
One task writes, one counts seconds, and one delivers what the spool holds to the topic ``__audit``. Opened by each
service's ``main``; the gates before its handlers call it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, TypeVar, TypeVarTuple

from headrace_common.core.audit.chain import Start
from headrace_common.core.audit.events import Event
from headrace_common.core.audit.journal import (
    Bounds,
    Drop,
    Effect,
    Happened,
    Input,
    Journal,
    Refuse,
    Stopped,
    Ticked,
    Write,
    Wrote,
)
from headrace_common.core.audit.kinds import Kind
from headrace_common.core.errors import AuditUnavailable, HeadraceError
from headrace_common.core.image import NodeKey
from headrace_common.runtime.audit_files import SPOOL, BoundedFiles, Sink, Spool, Stdout, read_lines
from headrace_common.runtime.audit_settings import FILE, STDOUT, TOPIC, AuditConfig
from headrace_common.runtime.clock import Clock, limit_ms
from headrace_common.runtime.entropy import backoff_ms, new_uuid
from headrace_common.runtime.tasks import TaskRunner
from headrace_common.runtime.threads import run_in_thread

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

RECORD_MS_MAX: Final = 5_000.0
"""How long a change waits for its event to be on disk."""
CHUNK_LINES: Final = 500
CHUNK_BYTES: Final = 512 << 10
"""Delivered at one time."""
_TICK_MS: Final = 1_000.0
_DELIVER_MS: Final = 1_000.0
"""So long lines are collected before they are delivered."""
_RETRY_MS_MAX: Final = 5_000.0
_LAST_DELIVERY_MS: Final = 2_000.0

_log = logging.getLogger(__name__)


class Delivery(Protocol):
    """The way to the topic ``__audit``."""

    async def deliver(self, lines: Sequence[bytes]) -> None:
        """
        Have the topic hold the lines, in order, as acks=all does.

        Raises:
            HeadraceError: they may be there or not; the same lines are given again.
        """
        ...


@dataclass(slots=True)
class _Line:
    """A line on its way to the disk."""

    bytes: bytes
    written: asyncio.Future[None] | None = None
    """Somebody waits for it."""


@dataclass(frozen=True, slots=True)
class StartKey:
    """One start of a process, and the key of its seals, as others are told of it."""

    id: str
    public_key: bytes


@dataclass(slots=True)
class Counts:
    """For the metrics."""

    dropped: dict[Kind, int] = field(default_factory=dict)
    written: int = 0
    failures: int = 0
    """Writes that failed."""


class Audit:
    """Made by ``open_audit``. One event loop."""

    def __init__(
        self,
        journal: Journal,
        start: StartKey,
        sinks: Sequence[Sink],
        clock: Clock,
        *,
        drops: bool = False,
        pool: ThreadPoolExecutor | None = None,
    ) -> None:
        self.start = start
        self.node = journal.node
        self.counts = Counts()
        self._journal = journal
        self._sinks = sinks
        self._clock = clock
        self._drops = drops
        self._pool = pool
        self._pending: list[_Line] = []
        self._wake = asyncio.Event()
        self._failing: str | None = None
        """Why the last write failed; None: it did not."""
        self.changed = asyncio.Event()
        """Set when lines were written."""

    @property
    def events(self) -> int:
        """How many there are of this start."""
        return self._journal.length

    @property
    def queued(self) -> int:
        """Lines that are not on disk yet."""
        return len(self._pending)

    def begin(self) -> None:
        """The first event of this start."""
        self._take(self._journal.begin(self.start.public_key, self._clock.now_ms(), self._clock.monotonic_ms()))

    def note(self, event: Event) -> None:
        """Have it written when there is room; else it is dropped and counted. Takes microseconds."""
        self._handle(Happened(event, self._clock.monotonic_ms()))

    async def record(self, *events: Event) -> None:
        """
        Return when all of them are on disk.

        Raises:
            AuditUnavailable: they are not, and what they are about must not be done. (They may be written later; an
                event of the same call then says how it ended.)
        """
        waits: list[asyncio.Future[None]] = []
        tolerant = self._drops and all(event.kind is Kind.ADMINISTERED for event in events)
        if self._failing is not None and not tolerant:
            raise self._unavailable(self._failing)
        for event in events:
            waits += self._handle(Happened(event, self._clock.monotonic_ms()))
        if self._failing is None and not await self._written(waits) and not tolerant:
            error = self._unavailable(self._failing or f"the disk did not answer in {RECORD_MS_MAX:.0f} ms")
            error.chained = True
            raise error

    async def tell(self, *events: Event) -> None:
        """Have them written too, and wait until they are on disk, unless they cannot be: what they tell is done."""
        try:
            waits = [wait for event in events for wait in self._handle(Happened(event, self._clock.monotonic_ms()))]
        except AuditUnavailable:
            return  # there is no room, which the begin of it has found out before
        if self._failing is None:
            await self._written(waits)

    async def _written(self, waits: Sequence[asyncio.Future[None]]) -> bool:
        """Whether all are on disk, after a while."""
        if waits:
            try:
                async with limit_ms(RECORD_MS_MAX):
                    await asyncio.gather(*waits)
            except (TimeoutError, AuditUnavailable):
                return False
        return True

    async def run(self) -> None:
        """Write what was taken, until cancelled."""
        failures = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending:
                try:
                    await self._write_pending()
                    failures = 0
                except OSError:
                    failures += 1
                    await self._clock.sleep_ms(backoff_ms(failures, ms_max=_RETRY_MS_MAX))

    async def tick(self) -> None:
        """Have counts, and seals, written in time, until cancelled."""
        while True:
            await self._clock.sleep_ms(_TICK_MS)
            self._handle(Ticked(self._clock.now_ms(), self._clock.monotonic_ms()))

    async def close(self) -> None:
        """Write the last seal, and what waits; called when ``run`` and ``tick`` have ended."""
        self._handle(Stopped(self._clock.now_ms()))
        try:
            while self._pending:
                await self._write_pending()
        except OSError:
            _log.error("the last lines of the audit are lost", extra={"lines": len(self._pending)})

    async def in_thread(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """What ``call`` returns, where files are written."""
        return await run_in_thread(call, *args, pool=self._pool)

    def _handle(self, input: Input) -> list[asyncio.Future[None]]:
        return self._take(self._journal.handle(input))

    def _take(self, effects: Sequence[Effect]) -> list[asyncio.Future[None]]:
        """
        What has to be waited for.

        Raises:
            AuditUnavailable: it is refused.
        """
        waits: list[asyncio.Future[None]] = []
        refused: Event | None = None
        for effect in effects:
            match effect:
                case Write(line, before_answer):
                    wait = asyncio.get_running_loop().create_future() if before_answer else None
                    self._pending.append(_Line(line, wait))
                    if wait is not None:
                        waits.append(wait)
                case Drop(kind, count):
                    self.counts.dropped[kind] = self.counts.dropped.get(kind, 0) + count
                case Refuse(event):
                    refused = event
        if self._pending:
            self._wake.set()
        if refused is not None:
            raise self._unavailable(f"{len(self._pending)} of its lines wait for the disk")
        return waits

    async def _write_pending(self) -> None:
        """Raises: OSError: the lines are as they were."""
        taken, self._pending = self._pending, []
        try:
            await self.in_thread(self._append, [line.bytes for line in taken])
        except OSError as error:
            if self._failing is None:
                _log.error("the audit cannot be written: %s", error)
            self.counts.failures += 1
            self._failing = str(error)
            for line in taken:
                if line.written is not None and not line.written.done():
                    line.written.set_exception(self._unavailable(self._failing))
            self._pending = [*(_Line(line.bytes) for line in taken), *self._pending]
            raise
        except asyncio.CancelledError:
            self._pending = [*taken, *self._pending]  # they may be written; twice is a repeat
            raise
        if self._failing is not None:
            _log.info("the audit is written again")
            self._failing = None
        self._journal.handle(Wrote(len(taken)))
        self.counts.written += len(taken)
        for line in taken:
            if line.written is not None and not line.written.done():
                line.written.set_result(None)
        self.changed.set()

    def _append(self, lines: Sequence[bytes]) -> None:
        for sink in self._sinks:
            sink.append(lines)

    def _unavailable(self, why: str) -> AuditUnavailable:
        return AuditUnavailable(f"nothing was done: it has to be in the audit, which cannot be written now: {why}")


async def deliver(audit: Audit, spool: Spool, delivery: Delivery, clock: Clock) -> None:
    """Have the topic hold what the spool holds, until cancelled; a file is deleted once the topic has all of it."""
    failures = 0
    while True:
        audit.changed.clear()
        path = await audit.in_thread(spool.oldest)
        if path is None:
            await audit.changed.wait()
            await clock.sleep_ms(_DELIVER_MS)
            continue
        try:
            await _deliver_file(audit, path, delivery)
            failures = 0
        except HeadraceError as error:
            failures += 1
            if failures == 1:
                _log.warning("the topic of the audit cannot be written yet: %s", error)
            await clock.sleep_ms(backoff_ms(failures, ms_max=_RETRY_MS_MAX))


async def _deliver_file(audit: Audit, path: Path, delivery: Delivery) -> None:
    for lines in _chunks(await audit.in_thread(lambda: list(read_lines(path)))):
        await delivery.deliver(lines)
    await audit.in_thread(path.unlink)


def _chunks(lines: Sequence[bytes]) -> list[list[bytes]]:
    chunks: list[list[bytes]] = []
    size = 0
    for line in lines:
        if not chunks or len(chunks[-1]) >= CHUNK_LINES or size + len(line) > CHUNK_BYTES:
            chunks.append([])
            size = 0
        chunks[-1].append(line)
        size += len(line)
    return chunks


@asynccontextmanager
async def open_audit(
    config: AuditConfig, key: NodeKey, clock: Clock, tasks: TaskRunner, delivery: Delivery | None = None
) -> AsyncIterator[Audit | None]:
    """
    The audit of the process ``key``; None: it has none. It ends with its last seal.

    Args:
        delivery: the way to the topic, where it goes there.

    Raises:
        AuditUnavailable: nothing can be written at the start.
    """
    if not config.on:
        yield None
        return
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    own = Ed25519PrivateKey.generate()
    start = StartKey(new_uuid(), own.public_key().public_bytes_raw())
    drops = config.on_full == "drop"
    journal = Journal(Start(key, start.id), own.sign, Bounds(drops_administration=drops))
    sinks, spool = _sinks(config, key)
    with ThreadPoolExecutor(1, thread_name_prefix="audit") as pool:
        audit = Audit(journal, start, sinks, clock, drops=drops, pool=pool)
        audit.begin()
        loops = [tasks.start(audit.run(), name="audit"), tasks.start(audit.tick(), name="audit-tick")]
        delivering = None
        if spool is not None:
            assert delivery is not None, "who writes to the topic knows the way"
            delivering = tasks.start(deliver(audit, spool, delivery, clock), name="audit-deliver")
        try:
            yield audit
        finally:
            for loop in (*loops, *filter(None, [delivering])):
                loop.cancel()
                await asyncio.wait([loop])
            await audit.close()
            if spool is not None and delivery is not None:
                await _deliver_rest(audit, spool, delivery)
            for sink in sinks:
                await audit.in_thread(sink.close)


async def _deliver_rest(audit: Audit, spool: Spool, delivery: Delivery) -> None:
    """As far as it goes quickly; the next start goes on with the rest."""
    try:
        async with limit_ms(_LAST_DELIVERY_MS):
            while (path := await audit.in_thread(spool.oldest)) is not None:
                await _deliver_file(audit, path, delivery)
    except (TimeoutError, HeadraceError) as error:
        _log.info("the rest of the audit is delivered by the next start: %s", error or "the time is over")


def _sinks(config: AuditConfig, key: NodeKey) -> tuple[list[Sink], Spool | None]:
    sinks: list[Sink] = []
    spool = None
    if config.dir is not None:
        own = config.dir / str(key)
        if TOPIC in config.to:
            spool = Spool(own / SPOOL)
            sinks.append(spool)
        if FILE in config.to:
            sinks.append(BoundedFiles(own, bytes_max=config.file_bytes_max))
    if STDOUT in config.to:
        sinks.append(Stdout())
    return sinks, spool
