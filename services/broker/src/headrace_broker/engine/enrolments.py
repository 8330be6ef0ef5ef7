"""
Asks the coordinators of transactions to list the partitions that are about to be written to (KIP-890).

The storage loop hands over each question of a partition's core; the answer goes back through its queue as ``Enrolled``.
What waits for one coordinator goes in one call. A question is asked again, with back-off, while the answer may change
and somebody still waits for it; nothing is appended before the answer is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace_broker.core.coordination import FoundCoordinator, coordinator_of
from headrace_broker.core.measures import Measures
from headrace_broker.core.partition_events import AskEnrolment, Enrolled
from headrace_broker.engine.replicas import Replica, Replicas
from headrace_broker.engine.storage_loop import StorageLoop
from headrace_broker.engine.storage_queue import Arrival
from headrace_broker.ports import Enrolment, TransactionCoordinators
from headrace_common.core.errors import (
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    HeadraceError,
    Overloaded,
)
from headrace_common.core.ids import Endpoint, PartitionId
from headrace_common.core.image import Role, ShardKind
from headrace_common.runtime.clock import Clock, call_later_ms
from headrace_common.runtime.entropy import backoff_ms
from headrace_common.runtime.failpoints import failpoint
from headrace_common.runtime.tasks import TaskRunner

UNANSWERED_MAX: Final = 10_000
"""Questions of all partitions that may wait."""
CALLS_MAX: Final = 32
"""Calls under way to one coordinator; an answer waits for the slowest of its call, so there are several."""
TRANSACTIONS_PER_CALL_MAX: Final = 1_000
CALL_MS_MAX: Final = 5_000.0
RETRY_MS_MIN: Final = 5.0
RETRY_MS_MAX: Final = 250.0
SPARE_MS: Final = 50.0
"""So much before its caller's time is over a question is given up, so that the caller hears why."""


@dataclass(slots=True, eq=False)
class _Question:
    replica: Replica
    ask: AskEnrolment
    began_ms: float
    deadline_ms: float
    failures: int = 0

    @property
    def stands(self) -> bool:
        """Whether anything is still parked for it."""
        parked = self.replica.core.appends.parking.of(self.ask.producer_id, self.ask.transactional_id)
        return parked is not None and parked.number == self.ask.number


class Enrolments:
    """One for the broker; ``run`` is a background task."""

    def __init__(
        self,
        replicas: Replicas,
        loop: StorageLoop,
        coordinators: TransactionCoordinators,
        clock: Clock,
        measures: Measures,
    ) -> None:
        self._replicas = replicas
        self._loop = loop
        self._coordinators = coordinators
        self._clock = clock
        self._measures = measures
        self._pending: list[_Question] = []
        self._unanswered = 0
        self._calls: dict[Endpoint, int] = {}
        self._wake = asyncio.Event()
        loop.effects.on_enrolment = self.ask

    @property
    def unanswered(self) -> int:
        """Questions without an answer."""
        return self._unanswered

    def ask(self, replica: Replica, ask: AskEnrolment) -> None:
        """The storage loop hands a question over."""
        arrival = ask.ref
        assert isinstance(arrival, Arrival)
        now = self._clock.monotonic_ms()
        question = _Question(replica, ask, now, arrival.caller.deadline_ms - SPARE_MS)
        self._unanswered += 1
        if self._unanswered > UNANSWERED_MAX:
            self._answer(question, Overloaded("too many transactions begin at once; wait 100 ms and send it again"))
            return
        self._pending.append(question)
        self._wake.set()

    async def run(self) -> None:
        """Send what waits, to all coordinators at once; ends only when cancelled."""
        known: set[Endpoint] = set()
        async with TaskRunner() as calls:
            while calls.failure is None:
                await self._wake.wait()
                self._wake.clear()
                by_place = self._group_by_coordinator()
                for at, questions in by_place.items():
                    self._send(at, questions, calls)
                if by_place.keys() - known:
                    known = self._addresses() | set(by_place)
                    await self._coordinators.keep(known)
            raise calls.failure

    def _addresses(self) -> set[Endpoint]:
        nodes = self._replicas.image.nodes.values()
        return {node.inside for node in nodes if node.key.role is Role.COORDINATOR}

    def _group_by_coordinator(self) -> dict[Endpoint, list[_Question]]:
        pending, self._pending = self._pending, []
        places: dict[Endpoint, list[_Question]] = {}
        owners: dict[str, FoundCoordinator] = {}
        image = self._replicas.image
        for question in pending:
            if not question.stands:
                self._unanswered -= 1
                continue
            name = question.ask.transactional_id
            found = owners.get(name)
            if found is None:
                found = owners[name] = coordinator_of(ShardKind.TRANSACTIONS, name, image)
            if found.node is None:
                self._ask_again(question, found.error or CoordinatorNotAvailable("nobody has the shard; send it again"))
            else:
                places.setdefault(found.node.inside, []).append(question)
        return places

    def _send(self, at: Endpoint, questions: list[_Question], calls: TaskRunner) -> None:
        while questions and self._calls.get(at, 0) < CALLS_MAX:
            now, questions = questions[:TRANSACTIONS_PER_CALL_MAX], questions[TRANSACTIONS_PER_CALL_MAX:]
            self._calls[at] = self._calls.get(at, 0) + 1
            calls.start(self._call(at, now), name="enrol")
        self._pending += questions  # they go when one of the calls has ended

    async def _call(self, at: Endpoint, questions: list[_Question]) -> None:
        """One call, and what follows from its answer."""
        try:
            await self._enrol(at, questions)
        finally:
            self._calls[at] -= 1
            self._wake.set()  # for those that did not go yet

    async def _enrol(self, at: Endpoint, questions: list[_Question]) -> None:
        """A transaction that begins in several partitions is one entry of the call."""
        grouped: dict[tuple[str, int, int], list[_Question]] = {}
        for question in questions:
            ask = question.ask
            grouped.setdefault((ask.transactional_id, ask.producer_id, ask.epoch), []).append(question)
        enrolments = [Enrolment(*key, _partitions(of_one)) for key, of_one in grouped.items()]
        failpoint("txn.enrol.before")
        errors = await self._ask_coordinator(at, enrolments, questions)
        failpoint("txn.enrol.after")
        for of_one, error in zip(grouped.values(), errors, strict=True):
            for question in of_one:
                self._take(question, error)

    async def _ask_coordinator(
        self, at: Endpoint, enrolments: Sequence[Enrolment], questions: Sequence[_Question]
    ) -> list[HeadraceError | None]:
        left = max(question.deadline_ms for question in questions) - self._clock.monotonic_ms()
        try:
            return await self._coordinators.enrol(at, enrolments, min(max(left, SPARE_MS), CALL_MS_MAX))
        except HeadraceError as error:
            return [CoordinatorNotAvailable(f"the coordinator did not answer: {error}")] * len(enrolments)

    def _take(self, question: _Question, error: HeadraceError | None) -> None:
        if error is not None and error.retriable:
            self._ask_again(question, error)
        else:
            self._answer(question, error)

    def _ask_again(self, question: _Question, error: HeadraceError) -> None:
        question.failures += 1
        wait_ms = backoff_ms(question.failures, first_ms=RETRY_MS_MIN, ms_max=RETRY_MS_MAX)
        if not error.retriable or self._clock.monotonic_ms() + wait_ms >= question.deadline_ms:
            self._answer(question, _describe_giving_up(error) if error.retriable else error)
            return
        self._measures.enrolment_retries += 1
        call_later_ms(wait_ms, self._retry, question)

    def _retry(self, question: _Question) -> None:
        self._pending.append(question)
        self._wake.set()

    def _answer(self, question: _Question, error: HeadraceError | None) -> None:
        self._unanswered -= 1
        self._measures.enrolments += 1
        self._measures.enrolments_refused += error is not None
        self._measures.enrolment_ms.record(self._clock.monotonic_ms() - question.began_ms)
        ask = question.ask
        done = self._loop.post(question.replica, Enrolled(ask.producer_id, ask.number, error, self._clock.now_ms()))
        done.add_done_callback(_retrieve)


def _partitions(questions: Sequence[_Question]) -> tuple[PartitionId, ...]:
    return tuple(dict.fromkeys(question.replica.id for question in questions))


def _describe_giving_up(error: HeadraceError) -> HeadraceError:
    text = f"the transaction's coordinator did not agree in time, nothing was appended, send it again: {error}"
    kind = ConcurrentTransactions if isinstance(error, ConcurrentTransactions) else CoordinatorNotAvailable
    return kind(text)


def _retrieve(done: asyncio.Future[None]) -> None:
    """Whoever waits for what was parked hears of a store that failed; nobody else has to."""
    if not done.cancelled():
        done.exception()
