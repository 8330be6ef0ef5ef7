"""
Quotas: changed, and those that the active controller holds itself, for one term.

A change is one transaction, as one of rules is: it compares the row ``state`` and writes it with the next generation,
so whose right it was still has it, and nobody's change is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace_common.core.access.control import Rights
from headrace_common.core.access.rows import STATE, changed_quotas, write_state
from headrace_common.core.errors import ErrorCode, Rejected, ThrottlingQuotaExceeded
from headrace_common.core.image import ClusterImage
from headrace_common.core.quotas.kinds import Limit, Rate
from headrace_common.core.quotas.meters import Meter
from headrace_common.core.quotas.state import Change, alter
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.entropy import new_uuid
from headrace_common.runtime.logs import logger
from headrace_controller.core import records
from headrace_controller.engine.access import check_fits
from headrace_controller.engine.access_rows import AccessRows
from headrace_controller.engine.follower import Follower
from headrace_controller.engine.writer import Decision, Writer

_NAMED_IN_LOG = 20

log = logger(__name__)


class ClusterQuotas:
    """All quotas during one term. What was counted of mutations ends with it, as in Kafka."""

    def __init__(self, writer: Writer, follower: Follower, clock: Clock) -> None:
        self._writer = writer
        self._follower = follower
        self._rows = AccessRows(follower)
        self._clock = clock
        self._mutations = Meter(Rate.CONTROLLER_MUTATION_RATE)

    async def alter(self, changes: Sequence[Change], rights: Rights, *, validate_only: bool) -> None:
        """
        Make a batch of changes, all or nothing.

        Raises:
            Rejected: as ``quotas.state.alter``; or the rows do not fit into one transaction. Nothing was changed.
            UnsupportedVersion: below the level of access, or rows are there that this version cannot read.
            HeadraceError: as ``Writer.decide``.
        """

        def decision() -> Decision | None:
            view = self._rows.view()
            rows = changed_quotas(view.quotas, alter(view.quotas, changes))
            if not rows:
                return None
            check_fits(rows)
            state = write_state(view.mode, view.access.generation + 1, new_uuid())
            return Decision(records.access_operations({**rows, STATE: state}), (self._rows.unchanged(STATE),))

        if validate_only:
            decision()
        elif await self._writer.decide(decision):
            named = [str(entity) for entity, _ in changes[:_NAMED_IN_LOG]]
            log.info("audit: quotas were changed", extra={"by": str(rights.caller.principal), "entities": named})

    def check_mutation(self, partitions: int, rights: Rights) -> None:
        """
        Whether the caller may make, add or delete so many partitions now; then they are counted.

        Raises:
            ThrottlingQuotaExceeded: it has to wait for that, and is told how long (KIP-599).
        """
        user = rights.caller.principal
        holding = self._follower.access.quotas.find_rate(self._mutations.rate, user, "")
        if holding is None:
            return
        wait_ms = self._mutations.take(holding, partitions, self._clock.monotonic_ms())
        if wait_ms is not None:
            raise ThrottlingQuotaExceeded(
                f"{user} has {holding.value:g} partitions made or deleted a second ({holding.entity}: "
                f"{self._mutations.rate.value}), and did more; try again in {wait_ms} ms"
            )

    def check_room(self, name: str, partitions: int, *, new: bool, under_way: Iterable[tuple[str, int]] = ()) -> None:
        """
        Whether there may be a topic of this name, or so many partitions more of one.

        Args:
            under_way: names and partitions of topics that are being made.

        Raises:
            Rejected: prefixes of its name have as many as they may. POLICY_VIOLATION.
        """
        quotas = self._follower.access.quotas
        made = list(under_way)
        for limit, more in ((Limit.TOPICS, int(new)), (Limit.PARTITIONS, partitions)):
            for prefix, most in quotas.find_limits(limit, name):
                there = _count(self._follower.mirror.image, made, prefix.prefix, limit)
                if more and there + more > most:
                    raise Rejected(
                        f"{name} is not made: there are {there} of {limit.value.removesuffix('.max')} with names that "
                        f"begin with {prefix.prefix}, and {most:g} is the most ({prefix}: {limit.value})",
                        code=ErrorCode.POLICY_VIOLATION,
                    )


def _count(image: ClusterImage, under_way: Sequence[tuple[str, int]], prefix: str, limit: Limit) -> int:
    sizes: Mapping[str, int] = {
        **dict(under_way),
        **{topic.name: topic.partition_count for topic in image.topics.values()},
    }
    found = [partitions for name, partitions in sizes.items() if name.startswith(prefix)]
    return len(found) if limit is Limit.TOPICS else sum(found)
