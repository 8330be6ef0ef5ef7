"""
Keys of the issuers that are configured, for one term of the active controller: fetched again and again, and written
where they are others. So every other process verifies tokens by what it has, and calls nobody.

An issuer that is away changes nothing for a week but the log; nodes refuse keys that nobody saw for 30 days.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from headrace_common.core.access.issuers import REFUSE_AFTER_MS
from headrace_common.core.features import ACCESS
from headrace_common.core.moments import iso_of
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.logs import logger
from headrace_controller.core import records
from headrace_controller.core.issuing import Fetched, WantedIssuer, due_rows
from headrace_controller.core.store import Delete, Put
from headrace_controller.engine.access_rows import AccessRows
from headrace_controller.engine.follower import Follower
from headrace_controller.engine.writer import Decision, Writer
from headrace_controller.ports import IssuerSource, KeysUnavailable

FETCH_EVERY_MS: Final = 600_000
FETCH_AGAIN_MS: Final = 60_000
"""After one that failed."""
FETCH_WANTED_MS: Final = 30_000
"""After one, for whoever meets a token by a key that is not known."""
SAY_AGAIN_MS: Final = 3_600_000

log = logger(__name__)


class Issuers:
    """Their rows, and when each is asked."""

    def __init__(
        self, writer: Writer, follower: Follower, source: IssuerSource, clock: Clock, wanted: Sequence[WantedIssuer]
    ) -> None:
        self._writer = writer
        self._follower = follower
        self._rows = AccessRows(follower)
        self._source = source
        self._clock = clock
        self._wanted = wanted
        self._fetched: dict[str, Fetched] = {}
        self._asked_ms: dict[str, float] = {}
        self._due_ms: dict[str, float] = {}
        self._confirmed_ms: Mapping[str, int] = {}
        self._said: dict[str, tuple[str, float]] = {}

    def want(self, aliases: Iterable[str]) -> None:
        """Somebody shows tokens of these that are signed with keys which nobody knows: ask them sooner."""
        for alias in self._asked_ms.keys() & set(aliases):
            self._due_ms[alias] = min(self._due_ms[alias], self._asked_ms[alias] + FETCH_WANTED_MS)

    def keys_age_ms(self) -> float:
        """How long ago the keys were last confirmed of whose it is longest; any thread."""
        return max((self._clock.now_ms() - at_ms for at_ms in self._confirmed_ms.values()), default=0)

    async def look(self) -> None:
        """
        Fetch what is due, and write what is new of it. Below the level of access nothing happens.

        Raises:
            HeadraceError: as ``Writer.decide``.
        """
        if not self._can_write():
            return
        await self._write()
        now_ms = self._clock.monotonic_ms()
        due = [one for one in self._wanted if self._due_ms.get(one.issuer.alias, now_ms) <= now_ms]
        if due:
            await asyncio.gather(*map(self._fetch, due))
            await self._write()
        self._confirmed_ms = {alias: one.confirmed_ms for alias, one in self._follower.access.issuers.items()}

    def _can_write(self) -> bool:
        """Rows that cannot be read stop all changes of access; that is said where it is configured."""
        return self._follower.mirror.image.has(ACCESS) and not self._follower.access.faults

    async def _fetch(self, wanted: WantedIssuer) -> None:
        alias = wanted.issuer.alias
        self._asked_ms[alias], self._due_ms[alias] = self._clock.monotonic_ms(), math.inf
        try:
            found = await self._source.fetch(wanted)
        except KeysUnavailable as error:
            self._ask_in(alias, FETCH_AGAIN_MS)
            self._say(alias, str(error))
            return
        self._ask_in(alias, FETCH_EVERY_MS)
        self._fetched[alias] = found
        if self._said.pop(alias, None) is not None:
            log.info("keys of an issuer can be read again", extra={"issuer": alias})

    def _ask_in(self, alias: str, wait_ms: float) -> None:
        """Or sooner, where somebody has wanted it meanwhile."""
        self._due_ms[alias] = min(self._due_ms[alias], self._clock.monotonic_ms() + wait_ms)

    async def _write(self) -> None:
        rows = ""

        def decision() -> Decision | None:
            nonlocal rows
            due = due_rows(self._wanted, self._follower.access, self._fetched) if self._can_write() else None
            if not due:
                return None
            rows = ", ".join(sorted(due))
            keyed = {records.access_key(name): row for name, row in due.items()}
            compares = tuple(self._rows.unchanged(name) for name in due)
            return Decision(tuple(Put(key, row) if row else Delete(key) for key, row in keyed.items()), compares)

        if await self._writer.decide(decision):
            known = {
                alias: [key.id for key in one.keys] for alias, one in sorted(self._follower.access.issuers.items())
            }
            log.info("issuers or their keys were written", extra={"rows": rows, "keys": known})

    def _say(self, alias: str, reason: str) -> None:
        """At once, and again each hour; louder once it is time to do something."""
        now_ms = self._clock.monotonic_ms()
        said, at_ms = self._said.get(alias, ("", 0.0))
        if said == reason and now_ms - at_ms < SAY_AGAIN_MS:
            return
        self._said[alias] = reason, now_ms
        extra = {"issuer": alias, "reason": reason}
        known = self._follower.access.issuers.get(alias)
        if known is None:
            log.error("an issuer has no keys yet, so its tokens are refused", extra=extra)
            return
        extra["confirmed"] = iso_of(known.confirmed_ms)
        extra["refused_from"] = iso_of(known.confirmed_ms + REFUSE_AFTER_MS)
        if known.is_old(self._clock.now_ms()):
            log.error("keys of an issuer were not seen for a week; its tokens will be refused", extra=extra)
        else:
            log.warning("keys of an issuer cannot be read now; those that were read stay", extra=extra)
