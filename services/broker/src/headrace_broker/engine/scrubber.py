"""
Reads every stored batch once in a while, slowly, so that rot in files that nobody reads is found while other replicas
are sound.

One task for the broker. Each batch is compared with its row and its checksum, as for a fetch; what cannot be read goes
the way of what a fetch finds (``lost_batches``): the log is copied anew from another replica, or, where there is none,
it is named and nothing is thrown away. ``core/scrubbing`` says when, and in which order.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from headrace_broker.core.measures import Measures
from headrace_broker.core.scrubbing import Scrubbing
from headrace_broker.engine.broker_settings import BrokerSettings
from headrace_broker.engine.cold_reader import ColdReader
from headrace_broker.engine.replicas import Replica, Replicas, Standing
from headrace_broker.engine.throttle import Throttle
from headrace_broker.ports import BytesLost
from headrace_common.core.errors import HeadraceError
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.entropy import new_seed

CHUNK_BYTES: Final = 1 << 20
SLEEP_MS: Final = 1_000.0
"""The longest sleep between looks at the settings."""
FIRST_MS: Final = 600_000.0
"""A broker that has just started has other things to do."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Scrub:
    """How far the scrub of this broker is."""

    running: bool
    logs: int
    """Of the pass under way, or of the last one; 0: there was none since the start."""
    logs_done: int
    bytes_read: int
    """In the pass under way, or in the last one."""
    lost: int
    """Logs with a batch that could not be read, since the start."""
    last_ended_ms: int | None
    """Wall clock; None: no pass has ended since the start."""


class Scrubber:
    """One for the broker; ``run`` is a background task."""

    def __init__(self, replicas: Replicas, cold: ColdReader, clock: Clock, measures: Measures) -> None:
        self._replicas = replicas
        self._cold = cold
        self._clock = clock
        self._measures = measures
        self._settings = BrokerSettings(replicas)
        self._throttle = Throttle(lambda: self._settings.whole("log.scrub.max.bytes.per.second"))
        self._plan = Scrubbing(clock.monotonic_ms(), FIRST_MS)
        self._running = False
        self._draining = False
        self._bytes = 0
        self._ended_ms: int | None = None

    def drain(self) -> None:
        """The broker is about to stop: read nothing more."""
        self._draining = True

    def describe(self) -> Scrub:
        plan = self._plan
        done = plan.logs - len(plan.left)
        ended, lost = self._ended_ms, self._measures.scrub_lost_logs
        return Scrub(self._running, plan.logs, done, self._bytes, lost, ended)

    async def run(self) -> None:
        while True:
            interval_ms = self._settings.number("log.scrub.interval.ms")
            if not self._may_go_on() or self._plan.wait_ms(self._clock.monotonic_ms(), interval_ms) > 0:
                await self._clock.sleep_ms(SLEEP_MS)
                continue
            await self._run_pass()

    async def _run_pass(self) -> None:
        """Go on with the pass that was left, or with a new one, until it ends or is not wanted any more."""
        if not self._plan.left:
            self._bytes = 0
            logs = [replica.id for replica in self._replicas.all() if _is_read(replica)]
            self._plan.begin(logs, self._clock.monotonic_ms(), new_seed())
        self._running = True
        while self._may_go_on() and (id := self._plan.take()) is not None:
            replica = self._replicas.get(id)
            if replica is not None:
                await self._read(replica)
        self._running = bool(self._plan.left)
        if self._running:
            return
        self._ended_ms = self._clock.now_ms()
        self._measures.scrub_passes += 1
        _log.info("a scrub has read all logs", extra={"logs": self._plan.logs, "bytes": self._bytes})

    async def _read(self, replica: Replica) -> None:
        """All that is on disk of one log when its turn comes; the rest of a log with a lost batch is left."""
        core, offset = replica.core, replica.core.first_batch
        end = core.written_end
        while offset < end and _is_read(replica) and replica.core is core and self._may_go_on():
            try:
                offset, size = await self._cold.check(replica, max(offset, core.first_batch), CHUNK_BYTES, end)
            except BytesLost as error:
                self._measures.scrub_lost_logs += 1
                _log.error("a scrub found a batch that cannot be read: %s", error, extra=replica.log_fields)
                return
            except HeadraceError as error:  # deleted meanwhile, trimmed, or it cannot be read now
                if offset < core.first_batch:
                    continue
                _log.info("a scrub leaves a log for the next pass: %s", error, extra={"partition": str(replica.id)})
                return
            if not size:
                return
            self._bytes += size
            self._measures.scrub_bytes += size
            await self._spend(size)

    async def _spend(self, size: int) -> None:
        wait_ms = self._throttle.spend(size, self._clock.monotonic_ms())
        while wait_ms >= 1 and self._may_go_on():
            await self._clock.sleep_ms(min(wait_ms, SLEEP_MS))
            wait_ms = self._throttle.spend(0, self._clock.monotonic_ms())
        await self._clock.sleep_ms(0)  # others have their turn, however fast it may go

    def _may_go_on(self) -> bool:
        return not self._draining and self._settings.flag("log.scrub.enable")


def _is_read(replica: Replica) -> bool:
    """A damaged log is known to be so and begins anew; what is stray is nobody's replica."""
    return replica.standing is Standing.ONLINE and replica.damage is None
