"""A coordinator of transactions for tests, without one: what it was asked, and what it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from headrace_broker.ports import Enrolment
from headrace_common.core.errors import HeadraceError
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
        return [self._answer(one.transactional_id) for one in enrolments]

    def _answer(self, transactional_id: str) -> HeadraceError | None:
        planned = self.answers.get(transactional_id)
        return planned.pop(0) if planned else None

    async def keep(self, known: Collection[Endpoint]) -> None:
        """See ``TransactionCoordinators``."""
        self.kept.append(set(known))
