"""
Asks the coordinator of a transaction to tell a shard of groups its end, again and again as long as a caller may wait.

``shard_host`` calls this for each ``EnrolShard``.
"""

from __future__ import annotations

from typing import Final

from headrace_common.core.errors import (
    Busy,
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    HeadraceError,
    Moved,
    RequestTimedOut,
    UnknownOutcome,
)
from headrace_common.runtime.clock import limit_ms
from headrace_common.runtime.entropy import backoff_ms
from headrace_common.runtime.failpoints import failpoint
from headrace_common.runtime.logs import logger
from headrace_coordinator.core.effects import EnrolShard
from headrace_coordinator.engine.host_ports import HostPorts

PAUSE_MS_FIRST: Final = 5.0
PAUSE_MS_MAX: Final = 250.0
SHARE: Final = 0.9
"""Of the time that a caller waits; the rest is for the log."""

log = logger(__name__)


async def ask_to_enrol(asked: EnrolShard, shard: int, ports: HostPorts) -> HeadraceError | None:
    """
    What the coordinator says; None: the shard is part of the transaction.

    What waiting could have overcome is ``ConcurrentTransactions`` or ``CoordinatorNotAvailable``: never an error that
    tells the caller to look for another coordinator of its group.
    """
    clock = ports.clock
    until_ms = clock.monotonic_ms() + SHARE * ports.append_timeout_ms
    tries = 0
    while True:
        error = await _attempt(asked, shard, ports, until_ms - clock.monotonic_ms())
        if error is None or not isinstance(error, Busy | Moved | UnknownOutcome):
            return error
        tries += 1
        if tries == 1:
            about = {"shard": shard, "transactional_id": asked.transactional_id}
            log.info("asking the coordinator of a transaction again: %s", error, extra=about)
        pause_ms = backoff_ms(tries, first_ms=PAUSE_MS_FIRST, ms_max=PAUSE_MS_MAX)
        if clock.monotonic_ms() + pause_ms >= until_ms:
            if isinstance(error, ConcurrentTransactions):
                return error
            return CoordinatorNotAvailable(
                f"the coordinator of {asked.transactional_id!r} does not take this group into the transaction: {error}"
            )
        await clock.sleep_ms(pause_ms)


async def _attempt(asked: EnrolShard, shard: int, ports: HostPorts, ms_max: float) -> HeadraceError | None:
    failpoint("txn.offsets.enrol.before")
    try:
        async with limit_ms(max(0.0, ms_max)):
            await ports.enrolments.enrol(asked.transactional_id, asked.producer_id, asked.producer_epoch, shard)
    except TimeoutError:
        return RequestTimedOut(f"no answer within {ms_max:.0f} ms")
    except HeadraceError as error:
        return error
    failpoint("txn.offsets.enrol.after")
    return None
