"""Worlds of transactions: sound ones find nothing, broken ones are found. ``make sim`` runs the many seeds."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from tests.lab.kind import seeds_for
from tests.lab.run import play as play_kind
from tests.lab.transactions.mutants import FOUND, MUTANTS
from tests.lab.transactions.profile import FAULTS, OF_EMPHASIS, Profile
from tests.lab.transactions.truth import Shown, Truth, Txn
from tests.lab.transactions.world import play

from headrace_broker.core.rows import COMMITS_BIT, MARKER_BITS, TRANSACTIONAL_BIT, IndexRow
from headrace_common.core.ids import PartitionId, TopicId
from headrace_coordinator.core.records import pending_key, pending_value
from headrace_coordinator.core.transactions.records import transaction_row
from headrace_coordinator.core.transactions.transaction import Transaction
from headrace_coordinator.core.transactions.values import EndCause, Producer
from headrace_coordinator.core.values import CommittedOffset, Moment, PendingOffset

SOON_FOUND = ("early-answers", "kip-890", "kafka-17754")
SEEDS_PER_MUTANT = 8
HERE = PartitionId(TopicId(bytes(16)), 0)
WRITER = Producer(7, 1)


@pytest.mark.parametrize("seed", range(3))
def test_some_seeds_find_nothing(seed: int) -> None:
    outcome = asyncio.run(play(seed))
    assert outcome.problems == [], "\n".join(outcome.story)
    assert outcome.counts["transactions that ended True"] > 0


@pytest.mark.parametrize("mutant", SOON_FOUND)
def test_a_bug_is_found(mutant: str) -> None:
    """``make sim`` looks for all of them."""
    outcomes = (play_kind("transactions", mutant, seed) for seed in seeds_for(mutant, FOUND, SEEDS_PER_MUTANT))
    found = next((outcome.problems[0] for outcome in outcomes if outcome.problems), None)
    assert found is not None, f"{SEEDS_PER_MUTANT} seeds do not find {mutant}"
    assert "Error" not in found, f"{mutant} does not fit the product any more: {found}"


def test_every_mutant_fits_the_product() -> None:
    for make in MUTANTS.values():
        for one in make():
            with one:
                pass


def test_every_fault_is_drawn() -> None:
    drawn = {fault for seed in range(100) for fault in Profile.drawn(Random(seed), 1).faults}
    assert drawn == {*FAULTS, *(fault for faults in OF_EMPHASIS.values() for fault in faults)}


# --- the rules, by hand ---------------------------------------------------------------------------------------


def _row(base: int, producer: Producer, *, marker: bool | None = None) -> IndexRow:
    attributes = TRANSACTIONAL_BIT if marker is None else MARKER_BITS | (COMMITS_BIT if marker else 0)
    sequence = 0 if marker is None else -1
    return IndexRow(base, 0, 80, 1, attributes, 0, *producer, sequence, 0, 80, 0, 0)  # type: ignore[arg-type]  # offsets are numbers


def _told(*, enrolled: bool = True, verdict: bool | None = True, marker: Producer | None = None) -> tuple[str, Shown]:
    """What is told of one record, and of its marker."""
    told: list[str] = []
    truth = Truth(told.append)
    if enrolled:
        truth.enrolled[WRITER] = {HERE: None}
    truth.batch_committed(HERE, _row(0, WRITER), [11])
    if verdict is not None:
        truth.verdicts[WRITER] = verdict
    if marker is not None:
        truth.batch_committed(HERE, _row(1, marker, marker=True), [])
    truth.was_read("a reader", HERE, 0, 2, [(0, 11)])
    return " ".join(text.partition(":")[0] for text in told), truth.shown[HERE]


def test_what_was_committed_is_stable_and_read() -> None:
    told, shown = _told(marker=Producer(7, 2))
    assert (told, shown.stable) == ("", 2)


def test_what_can_be_wrong_with_a_record_and_its_marker_is_told() -> None:
    told, shown = _told(marker=None)
    assert (told, shown.stable) == ("undecided-read misread", 0)
    assert _told(enrolled=False, marker=Producer(7, 2))[0] == "not-enrolled"
    assert _told(verdict=None, marker=Producer(7, 2))[0] == "undecided-marker"
    assert _told(verdict=False, marker=Producer(7, 2))[0] == "wrong-marker"
    assert _told(marker=WRITER)[0] == "marker-epoch wrong-marker"
    assert _told(marker=Producer(7, 3))[0] == "wrong-marker"


def test_an_early_answer_is_told() -> None:
    told: list[str] = []
    truth = Truth(told.append)
    truth.must_be(WRITER, True, "an end")
    truth.verdicts[WRITER] = True
    truth.must_be(WRITER, True, "an end")
    truth.must_be(WRITER, False, "an end")
    assert [text.partition(":")[0] for text in told] == ["early-answer", "early-answer"]


@pytest.mark.parametrize("taken_over", [False, True])
def test_a_position_that_is_pending_after_the_end_of_its_transaction_is_told(taken_over: bool) -> None:
    told: list[str] = []
    truth = Truth(told.append)
    truth.transactions.append(Txn(0, "writer"))
    txn = Transaction("writer", WRITER, 1_000)
    txn.begin(Moment(0, 0))
    txn.decide(commit=False, cause=EndCause.FENCED, at=Moment(0, 0), continues=True)
    if taken_over:
        txn.take_over(Producer(7, 3), 1_000, -1)
    position = PendingOffset(WRITER.epoch, 0, "writer", CommittedOffset("t", 5, -1, "0", 0))
    truth.transaction_record(*transaction_row(txn))
    truth.position_record(pending_key("group", WRITER.producer_id, HERE), pending_value(position))
    assert [text.partition(":")[0] for text in told] == ["late-position"]
