"""
What the leader does: it takes the config topic over, writes commands one after the other, and new generations of tasks
where there is something else to do. One loop; whoever has the item ``leader`` runs it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from headrace_common.core.errors import HeadraceError, Kind
from headrace_common.runtime.clock import Clock, limit_ms
from headrace_common.runtime.entropy import new_seed
from headrace_common.runtime.logs import logger
from headrace_connect.core.backoff import Backoff
from headrace_connect.core.generations import next_generation
from headrace_connect_worker.core.changes import shortage, tasks_due
from headrace_connect_worker.core.events import LIMITED
from headrace_connect_worker.core.herd import ConnectorState
from headrace_connect_worker.core.records import ConfigRecord, LeaderSaid
from headrace_connect_worker.core.refusals import Conflict, NotLeader, NotWritten, Refusal
from headrace_connect_worker.engine.events import Events
from headrace_connect_worker.engine.following import Following
from headrace_connect_worker.engine.place import Place
from headrace_connect_worker.engine.reporting import Reporting
from headrace_connect_worker.ports import ConfigLog, ConfigWriter, WriteFailed

T = TypeVar("T")
_AGAIN: Final = Backoff(200, 10_000)
_REGENERATE: Final = Backoff(1_000, 300_000)
"""Between two generations of a connector whose tasks somebody else fences."""
_TICK_MS: Final = 1.0
_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class LeadingLimits:
    """See ``ConnectConfig``."""

    commands_max: int = 100
    command_ms_max: int = 30_000


@dataclass(slots=True, eq=False)
class _Command:
    make: Callable[[], tuple[Sequence[ConfigRecord], Any]]
    done: asyncio.Future[Any]
    begun: bool = False


@dataclass(slots=True)
class _Fenced:
    times: int = 0
    due_ms: float = field(default=0.0)


class Leading:
    """See the module's text."""

    def __init__(
        self,
        log: ConfigLog,
        following: Following,
        reporting: Reporting,
        events: Events,
        clock: Clock,
        place: Place,
        limits: LeadingLimits | None = None,
    ) -> None:
        self._log = log
        self._following = following
        self._reporting = reporting
        self._events = events
        self._clock = clock
        self._place = place
        self._limits = limits or LeadingLimits()
        self._commands: deque[_Command] = deque()
        self._news = asyncio.Event()
        self._fenced: dict[str, _Fenced] = {}
        self._short: dict[str, str] = {}
        """Connectors that have fewer tasks than they could use, and how that was told."""
        self._seen = -1, -1
        """How far both topics were read when it was last looked what is due."""
        self.leads = False
        """Whether it writes: the topic is this worker's, and was read to where it took it over."""

    # --- commands -----------------------------------------------------------------------------------------------------

    async def submit(self, make: Callable[[], tuple[Sequence[ConfigRecord], T]]) -> T:
        """
        Have the records written that ``make`` says when it is its turn; what it gives besides is returned.

        Raises:
            Refusal: as ``ports.Herd`` says.
        """
        self.check()
        if len(self._commands) >= self._limits.commands_max:
            raise Conflict(f"{len(self._commands)} changes wait to be written; ask again in a moment")
        command = _Command(make, asyncio.get_running_loop().create_future())
        self._commands.append(command)
        self._news.set()
        try:
            async with limit_ms(self._limits.command_ms_max):
                result: T = await asyncio.shield(command.done)
                return result
        except TimeoutError:
            if command in self._commands:
                self._commands.remove(command)
            raise NotWritten(
                f"the change was not in the config topic within {self._limits.command_ms_max} ms",
                unknown=command.begun,
            ) from None

    def check(self) -> None:
        """
        Raises:
            NotLeader: this worker writes nothing.
        """
        if not self.leads:
            raise NotLeader(self._other())

    def draw(self, before: int) -> int:
        """A generation above another one."""
        return next_generation(before, self._clock.now_ms(), new_seed())

    def _other(self) -> str | None:
        leader = self._following.state.leader
        return None if leader is None or leader.worker_id == self._place.worker_id else leader.url

    # --- the loop -----------------------------------------------------------------------------------------------------

    async def run(self, epoch: Callable[[], int], refused: Callable[[int], None]) -> None:
        """
        Lead until cancelled.

        Args:
            epoch: of the item ``leader``, which may grow.
            refused: told of an epoch that was refused as too low; a higher one follows.
        """
        attempt = 0
        try:
            while True:
                tried = epoch()
                try:
                    await self._lead(tried)
                except (HeadraceError, WriteFailed) as error:
                    attempt = 1 if self.leads else attempt + 1
                    _log.warning("this worker cannot lead for now: %s", error)
                    if isinstance(error, HeadraceError) and error.kind is Kind.FENCED and epoch() == tried:
                        refused(tried)
                self.leads = False
                await self._clock.sleep_ms(_AGAIN.wait_ms(attempt))
        finally:
            self._resign()

    def _resign(self) -> None:
        self.leads = False
        while self._commands:
            _fail(self._commands.popleft(), NotLeader(None))

    async def _lead(self, epoch: int) -> None:
        writer = await self._log.lead(epoch)
        try:
            said = LeaderSaid(self._place.worker_id, self._place.url, epoch)
            await self._following.reached(await writer.write([said]))
            self.leads = True
            _log.info("this worker leads", extra={"epoch": epoch})
            await self._serve(writer)
        finally:
            await writer.close()

    async def _serve(self, writer: ConfigWriter) -> None:
        self._seen = -1, -1
        with self._following.bell.heard() as self._news:
            while True:
                await self._until_news()
                while self._commands:
                    await self._carry_out(self._commands.popleft(), writer)
                if self._following.is_exact and self._following.has_statuses and self._is_due():
                    await self._plan(writer)

    def _is_due(self) -> bool:
        """Whether there is anything that was not looked at."""
        seen = self._following.state.offset, self._following.statuses.revision
        now_ms = self._clock.monotonic_ms()
        waited = any(0 < one.due_ms <= now_ms for one in self._fenced.values())
        return waited or seen != self._seen

    async def _until_news(self) -> None:
        now_ms = self._clock.monotonic_ms()
        left_ms = min(
            (one.due_ms - now_ms + _TICK_MS for one in self._fenced.values() if one.due_ms > now_ms), default=None
        )
        try:
            async with limit_ms(left_ms):
                await self._news.wait()
        except TimeoutError:
            return
        self._news.clear()

    async def _carry_out(self, command: _Command, writer: ConfigWriter) -> None:
        command.begun = True
        try:
            records, result = command.make()
            if records:
                await self._following.reached(await writer.write(records))
        except Refusal as refusal:
            _fail(command, refusal)
            return
        except WriteFailed as error:
            if error.unknown:
                _fail(command, NotWritten(f"nobody can tell whether the change was written: {error}", unknown=True))
            elif not command.done.done():
                command.begun = False
                self._commands.appendleft(command)
            raise
        except asyncio.CancelledError:
            _fail(command, NotWritten("this worker leads no more; the change may have been written", unknown=True))
            raise
        if not command.done.done():
            command.done.set_result(result)

    # --- tasks --------------------------------------------------------------------------------------------------------

    async def _plan(self, writer: ConfigWriter) -> None:
        """Write what is due, a connector at a time, and forget what is said of what is not there."""
        state, statuses = self._following.state, self._following.statuses
        self._seen = state.offset, statuses.revision
        self._fenced = {name: one for name, one in self._fenced.items() if name in state.connectors}
        for name in list(state.connectors):
            connector = state.connectors[name]
            records = tasks_due(state, connector, statuses.work(name), self.draw, fenced=self._is_fenced(connector))
            if records:
                await self._following.reached(await writer.write(records))
        self._tell_short()
        tasks = {name: self._count(connector) for name, connector in state.connectors.items()}
        for leftover in list(statuses.leftovers(tasks)):
            self._reporting.put(leftover)

    def _tell_short(self) -> None:
        state, statuses = self._following.state, self._following.statuses
        said = {name: shortage(state, one, statuses.work(name)) for name, one in state.connectors.items()}
        for name, text in said.items():
            if text and text != self._short.get(name):
                self._events.put(name, None, LIMITED, text)
                _log.warning("%s: %s", name, text)
        self._short = {name: text for name, text in said.items() if text}

    @staticmethod
    def _count(connector: ConnectorState) -> int:
        return 1 << 31 if connector.tasks is None else len(connector.tasks.shares)

    def _is_fenced(self, connector: ConnectorState) -> bool:
        """Whether the tasks are to be begun anew under a higher generation; not before some time has passed."""
        tasks, name = connector.tasks, connector.name
        if tasks is None or not self._following.statuses.fenced(name, tasks.generation):
            known = self._fenced.get(name)
            if known is not None:
                known.due_ms = 0.0
            return False
        known = self._fenced.setdefault(name, _Fenced())
        now_ms = self._clock.monotonic_ms()
        if not known.due_ms:
            known.times += 1
            known.due_ms = now_ms + _REGENERATE.wait_ms(known.times)
            _log.warning("tasks of %s were fenced by somebody else; a new generation follows", name)
            return False
        return now_ms >= known.due_ms


def _fail(command: _Command, error: Refusal) -> None:
    """Whoever waits for it is told; nobody may wait any more."""
    if not command.done.done():
        command.done.set_exception(error)
        command.done.exception()
