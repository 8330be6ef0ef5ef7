"""A coordinator of transactions for tests, without one: what it was asked, and what it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from headrace_broker.ports import Enrolment
from headrace_common.core.errors import HeadraceError, InvalidProducerIdMapping
from headrace_common.core.ids import Endpoint


@dataclass
class FakeTransactions:
    """``TransactionCoordinators`` that enrols everything, unless a test says otherwise."""

    asked: list[Enrolment] = field(default_factory=list)
    calls: list[tuple[Endpoint, int]] = field(default_factory=list)
    """Where to, and with how many transactions."""
    answers: dict[str, list[HeadraceError | None]] = field(default_factory=dict)
    """By transactional id: what to say next; then everything is enrolled again."""
    broken: HeadraceError | None = None
    """Calls fail with this."""
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    """Calls wait until it is set; it is, until a test clears it."""
    owners: dict[int, str] | None = None
    """By producer id: the transactional id that it is of; others are refused. None: nobody looks."""
    kept: list[Collection[Endpoint]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate.set()

    async def enrol(
        self, at: Endpoint, enrolments: Sequence[Enrolment], timeout_ms: float
    ) -> list[HeadraceError | None]:
        """See ``TransactionCoordinators``."""
        del timeout_ms
        self.calls.append((at, len(enrolments)))
        await asyncio.sleep(0)
        await self.gate.wait()
        if self.broken is not None:
            raise self.broken
        self.asked += enrolments
        return [self._answer(one) for one in enrolments]

    def _answer(self, one: Enrolment) -> HeadraceError | None:
        if self.owners is not None and self.owners.get(one.producer_id) != one.transactional_id:
            return InvalidProducerIdMapping("another transactional id has this producer id")
        planned = self.answers.get(one.transactional_id)
        return planned.pop(0) if planned else None

    async def keep(self, known: Collection[Endpoint]) -> None:
        """See ``TransactionCoordinators``."""
        self.kept.append(set(known))
