"""A leader and a follower, each a partition core: dialogues of events and effects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from services.broker.tests.kit.assignments import assigned
from services.broker.tests.kit.batches import NOW_MS, batch_of

from headrace_broker.core.local_log import Parted
from headrace_broker.core.partition import Partition
from headrace_broker.core.partition_events import (
    Answer,
    BatchArrived,
    BatchesCopied,
    Deposed,
    Effect,
    Elected,
    Emptied,
    Followed,
    FollowerFetched,
    FollowersChecked,
    GroupWritten,
    PeersChanged,
    ProposalRefused,
    ProposeIsr,
    Reassigned,
    Rebuilt,
    Refuse,
    ShowUpTo,
    TrimAsked,
    Truncated,
)
from headrace_broker.core.producers import Producers
from headrace_broker.core.rows import DropSuffix, EpochRow, LogId, PutBatch, PutEpoch, PutSegment, PutState
from headrace_broker.core.segments import Segments
from headrace_common.core.batch import read_header
from headrace_common.core.configs import TopicConfig
from headrace_common.core.errors import CorruptBatch, ErrorCode, NotLeader, OffsetOutOfRange
from headrace_common.core.ids import NodeId, Offset, PartitionId, TopicId

ID = PartitionId(TopicId(b"t" * 16), 0)
LOG = LogId(4)
CONFIG = TopicConfig.effective({}, {})
MOVED = NotLeader("moved")
ME, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


def log() -> Partition:
    return Partition.create(ID, LOG, CONFIG, NOW_MS)[0]


def leader(
    epoch: int = 1, isr: Sequence[int] = (1, 2, 3), min_isr: int = 2, partition: Partition | None = None
) -> Partition:
    core = partition or log()
    core.handle(Elected(assigned(epoch, (1, 2, 3), isr, min_isr=min_isr)))
    return core


def follower(epoch: int = 1, partition: Partition | None = None) -> Partition:
    core = partition or log()
    core.handle(Followed(ME, epoch, MOVED))
    return core


def append(core: Partition, records: int, ref: object = "a", *, acks: int = -1, written: bool = True) -> list[Effect]:
    batch = batch_of(records)
    effects = core.handle(BatchArrived(read_header(batch), batch, acks, NOW_MS, None, ref))
    return effects + core.handle(GroupWritten(core.log_end)) if written else effects


def fetched(
    core: Partition,
    broker: int,
    end: int,
    *,
    written: int | None = None,
    epoch: int = 7,
    join: bool = True,
    ms: float = 0,
) -> list[Effect]:
    down = end if written is None else written
    return core.handle(FollowerFetched(NodeId(broker), epoch, Offset(end), Offset(down), join, ms))


def only(effects: list[Effect], kind: type) -> list[Effect]:
    return [effect for effect in effects if isinstance(effect, kind)]


def proposals(effects: list[Effect]) -> list[dict[int, int | None]]:
    return [dict(effect.proposal.isr) for effect in effects if isinstance(effect, ProposeIsr)]


@dataclass
class Copier:
    """Carries batches from a leader's effects to followers."""

    batches: list[bytes]

    @staticmethod
    def of(effects: list[Effect]) -> Copier:
        return Copier([effect.batch for effect in effects if isinstance(effect, PutBatch)])

    def to(self, core: Partition, epoch: int = 1, high_watermark: int = 0) -> list[Effect]:
        batches = tuple((read_header(batch), batch) for batch in self.batches)
        return core.handle(BatchesCopied(epoch, batches, Offset(high_watermark), NOW_MS))


# --- what is committed ------------------------------------------------------------------------------------------


def test_committed_is_what_everybody_in_sync_has_down_and_not_what_they_have_appended() -> None:
    core = leader()
    append(core, 5)
    fetched(core, 2, 5)
    assert only(fetched(core, 3, 5, written=3), ShowUpTo) == [ShowUpTo(Offset(3), Offset(0))]
    assert fetched(core, 3, 5) == [ShowUpTo(Offset(5), Offset(3)), Answer("a", Offset(0), -1)]


def test_the_leaders_own_log_counts_when_it_is_down() -> None:
    core = leader()
    append(core, 2, written=False)
    fetched(core, 2, 2)
    assert fetched(core, 3, 2) == []
    assert core.handle(GroupWritten(Offset(2))) == [ShowUpTo(Offset(2), Offset(0)), Answer("a", Offset(0), -1)]


def test_nothing_is_committed_below_min_isr_and_all_writes_are_refused_before_appending() -> None:
    core = leader(isr=(1,))
    [refusal] = only(append(core, 1, "all"), Refuse)
    assert isinstance(refusal, Refuse)
    assert refusal.error.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert core.log_end == 0
    assert only(append(core, 1, "one", acks=1), Answer) == [Answer("one", Offset(0), -1)]
    assert core.high_watermark == 0, "written and not committed"


def test_those_who_wait_hear_when_the_isr_falls_below_min_isr() -> None:
    core = leader()
    append(core, 1, "a")
    effects = core.handle(Reassigned(assigned(1, (1, 2, 3), (1,), partition_epoch=1, min_isr=2), 0))
    [refusal] = only(effects, Refuse)
    assert isinstance(refusal, Refuse)
    assert refusal.error.code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def test_a_fetch_of_an_older_process_does_not_count() -> None:
    core = leader(isr=(1, 2))
    append(core, 3)
    fetched(core, 2, 1, epoch=8)
    assert fetched(core, 2, 3, epoch=7) == []
    assert core.high_watermark == 1


# --- ISR changes ------------------------------------------------------------------------------------------------


def test_who_is_proposed_counts_at_once_and_who_is_dropped_until_it_is_confirmed() -> None:
    core = leader(isr=(1, 2))
    append(core, 4)
    fetched(core, 2, 4)
    assert proposals(fetched(core, 3, 4)) == [{1: None, 2: None, 3: 7}]
    append(core, 2)
    fetched(core, 2, 6, ms=600)
    assert core.high_watermark == 4, "the one that joins has 4"
    core.handle(Reassigned(assigned(1, (1, 2, 3), partition_epoch=1, min_isr=2), 700))
    asked = core.handle(FollowersChecked(40_000, 30_000))
    assert proposals(asked) == [{1: None, 2: None}]
    append(core, 1)
    fetched(core, 2, 7, ms=40_001)
    assert core.high_watermark == 4, "broker 3 counts until the controller has agreed"
    effects = core.handle(Reassigned(assigned(1, (1, 2, 3), (1, 2), partition_epoch=2, min_isr=2), 40_002))
    assert only(effects, ShowUpTo) == [ShowUpTo(Offset(7), Offset(4))]


def test_nobody_joins_who_lacks_the_start_of_the_epoch_or_may_not() -> None:
    core = leader()
    append(core, 5)
    core = leader(epoch=2, isr=(1,), partition=core)
    assert proposals(fetched(core, 2, 4)) == []
    assert proposals(fetched(core, 2, 5, join=False)) == []
    assert proposals(core.handle(PeersChanged({TWO: 7}, 0.0))) == [{1: None, 2: 7}], "the image says that it may"


def test_one_isr_change_is_in_flight_until_the_image_moves() -> None:
    core = leader(isr=(1,), min_isr=1)
    [proposal] = [e.proposal for e in fetched(core, 2, 0) if isinstance(e, ProposeIsr)]
    assert proposals(fetched(core, 3, 0)) == []
    assert core.leading is not None
    core.handle(Reassigned(assigned(1, (1, 2, 3), (1,), min_isr=1), 0))
    assert core.leading.pending == proposal, "the same partition epoch decides nothing"
    effects = core.handle(Reassigned(assigned(1, (1, 2, 3), (1, 2), partition_epoch=1, min_isr=1), 0))
    assert proposals(effects) == [{1: None, 2: None, 3: 7}]


def test_only_a_refusal_for_good_takes_a_proposal_back() -> None:
    core = leader(isr=(1, 2))
    append(core, 4)
    fetched(core, 2, 4)
    [asked] = [e for e in fetched(core, 3, 4) if isinstance(e, ProposeIsr)]
    append(core, 1)
    fetched(core, 2, 5, ms=600)
    core.handle(FollowersChecked(600, 30_000))
    assert core.high_watermark == 4
    assert only(core.handle(ProposalRefused(asked.proposal, 601)), ShowUpTo) == [ShowUpTo(Offset(5), Offset(4))]
    assert core.handle(ProposalRefused(asked.proposal, 602)) == [], "an old answer changes nothing"
    assert proposals(fetched(core, 3, 5, ms=700)) == [], "not at once again"
    assert proposals(fetched(core, 3, 5, ms=1_700)) == [{1: None, 2: None, 3: 7}]


def test_rf_3_min_isr_2_high_watermark_known_late_two_die_one_returns_and_it_is_writable_again() -> None:
    """The liveness scenario of the design: joining does not wait for the high watermark of a new leader."""
    core = leader()
    append(core, 5)
    assert core.high_watermark == 0, "nobody has fetched: it is known late"
    core = leader(epoch=2, isr=(1,), partition=core)
    assert not core.end_known
    assert proposals(fetched(core, 2, 5)) == [{1: None, 2: 7}]
    effects = core.handle(Reassigned(assigned(2, (1, 2, 3), (1, 2), partition_epoch=1, min_isr=2), 0))
    assert only(effects, ShowUpTo) == [ShowUpTo(Offset(5), Offset(0))]
    append(core, 1, "again")
    assert only(fetched(core, 2, 6), Answer) == [Answer("again", Offset(5), -1)]


# --- logs that part ---------------------------------------------------------------------------------------------


def test_a_leader_tells_where_logs_part() -> None:
    core = leader(epoch=1)
    append(core, 5)
    core = leader(epoch=3, partition=core)
    append(core, 2)
    assert core.compare(3, Offset(7)) is None
    assert core.compare(3, Offset(6)) is None
    assert core.compare(1, Offset(5)) is None
    assert core.compare(1, Offset(6)) == Parted(1, Offset(5)), "it has more of epoch 1 than there is"
    assert core.compare(2, Offset(6)) == Parted(1, Offset(5)), "epoch 2 is not known here (KIP-279)"
    assert core.compare(3, Offset(8)) == Parted(3, Offset(7))
    assert core.compare(-1, Offset(0)) is None
    assert core.compare(-1, Offset(2)) == Parted(-1, Offset(-1))


def test_a_log_that_ends_below_the_leaders_start_begins_anew() -> None:
    core = leader()
    append(core, 5)
    fetched(core, 2, 5)
    fetched(core, 3, 5)
    core.handle(TrimAsked(Offset(5), Offset(5)))
    with pytest.raises(OffsetOutOfRange):
        core.compare(1, Offset(3))
    with pytest.raises(OffsetOutOfRange):
        core.compare(-1, Offset(-1))


def test_a_follower_truncates_by_epoch_and_never_to_its_high_watermark() -> None:
    """KIP-101: what is above the high watermark may be committed all the same."""
    source = leader()
    copier = Copier.of(append(source, 5))
    core = follower()
    copier.to(core)
    core.handle(GroupWritten(Offset(5)))
    assert core.high_watermark == 0
    core.handle(Followed(TWO, 2, MOVED))
    assert core.log_end == 5
    assert source.compare(core.epochs.latest, core.log_end) is None


def test_a_cut_takes_log_epochs_producers_and_high_watermark_together() -> None:
    core = leader(epoch=1, min_isr=1, isr=(1,))
    append(core, 3)
    core = leader(epoch=2, min_isr=1, isr=(1,), partition=core)
    append(core, 3)
    assert core.high_watermark == 6
    core.handle(Followed(TWO, 3, MOVED))
    point = core.truncation_point(1, Offset(2))
    assert point == 2
    rebuilt = Rebuilt(Producers(), Segments.fresh(Offset(0), NOW_MS), 10)
    effects = core.handle(Truncated(3, Offset(2), rebuilt))
    assert effects[0] == DropSuffix(LOG, Offset(2))
    assert (core.log_end, core.written_end, core.high_watermark, core.epochs.latest) == (2, 2, 2, 1)
    assert core.producers is rebuilt.producers
    assert core.handle(Truncated(2, Offset(1), rebuilt)) == [], "said in another epoch"


def test_a_cut_at_the_log_start_keeps_the_place() -> None:
    """The log was trimmed up to where it parts: it is empty from there on, and not to begin anew below."""
    core = leader(epoch=1, min_isr=1, isr=(1,))
    append(core, 3)
    append(core, 3)
    core.handle(TrimAsked(Offset(3), Offset(3)))
    core.handle(Followed(TWO, 2, MOVED))
    assert core.truncation_point(1, Offset(3)) == 3
    core.handle(Truncated(2, Offset(3), Rebuilt(Producers(), Segments.fresh(Offset(3), NOW_MS), 0)))
    assert (core.log_start, core.log_end, core.epochs.latest) == (3, 3, 1)
    assert core.truncation_point(1, Offset(2)) is None


def test_what_was_written_before_a_cut_says_nothing_of_the_end_after_it() -> None:
    core = follower()
    Copier.of(append(leader(), 5)).to(core)
    before = core.truncations
    core.handle(Truncated(1, Offset(0), Rebuilt(Producers(), Segments.fresh(Offset(0), NOW_MS), 0)))
    assert core.truncations == before + 1


# --- copying ----------------------------------------------------------------------------------------------------


def test_a_follower_shows_what_the_leader_has_committed_as_far_as_it_has_it_down() -> None:
    core = follower()
    copier = Copier.of(append(leader(), 5))
    effects = copier.to(core, high_watermark=5)
    assert only(effects, PutEpoch) == [PutEpoch(LOG, EpochRow(1, Offset(0)))]
    assert only(effects, ShowUpTo) == [], "not down yet"
    assert core.handle(GroupWritten(Offset(5))) == [ShowUpTo(Offset(5), Offset(0))]
    assert core.handle(BatchesCopied(1, (), Offset(4), NOW_MS)) == [], "a high watermark never goes back"


def test_batches_of_another_epoch_or_another_place_are_not_taken() -> None:
    core = follower(epoch=2)
    copier = Copier.of(append(leader(), 5))
    assert copier.to(core, epoch=1) == [], "said before this broker followed somebody else"
    copier.to(core, epoch=2)
    with pytest.raises(CorruptBatch):
        copier.to(core, epoch=2)
    newer = Copier.of(append(leader(epoch=9), 1))
    with pytest.raises(CorruptBatch):
        newer.to(follower(epoch=2), epoch=2)
    assert core.log_end == 5


def test_a_log_that_begins_anew_inside_a_batch_takes_the_batch_whole() -> None:
    """Records were deleted up to the middle of a batch: the leader's log starts there, and its first batch before."""
    source = leader()
    first = append(source, 3)
    second = append(source, 3)
    fetched(source, 2, 6)
    fetched(source, 3, 6)
    source.handle(TrimAsked(Offset(4), Offset(3)))
    core = follower()
    core.handle(Emptied(1, Offset(4), NOW_MS))
    effects = Copier.of(second).to(core, high_watermark=6)
    assert [type(effect) for effect in effects[:3]] == [DropSuffix, PutSegment, PutState]
    assert only(effects, PutEpoch) == [PutEpoch(LOG, EpochRow(1, Offset(3)))]
    assert (core.log_start, core.first_batch, core.log_end) == (3, 3, 6)
    core.handle(GroupWritten(Offset(6)))
    assert core.high_watermark == 6
    core.handle(TrimAsked(Offset(4), Offset(3)))
    assert (core.log_start, core.first_batch) == (4, 3)
    with pytest.raises(CorruptBatch):
        Copier.of(first).to(core)


def test_a_bad_batch_after_one_that_begins_inside_changes_nothing() -> None:
    core = follower()
    core.handle(Emptied(1, Offset(1), NOW_MS))
    copier = Copier.of(append(leader(), 3))
    copier.batches *= 2
    with pytest.raises(CorruptBatch):
        copier.to(core)
    assert (core.log_start, core.log_end, core.truncations) == (1, 1, 1)


def test_who_leads_no_longer_follows_and_answers_nobody_who_waits() -> None:
    core = leader()
    append(core, 1, "a")
    assert only(core.handle(Followed(TWO, 2, MOVED)), Refuse) == [Refuse("a", MOVED)]
    assert (core.leading, core.leader_epoch, core.known_epoch) == (None, None, 2)
    assert core.handle(Followed(THREE, 1, MOVED)) == []
    assert core.following == (TWO, 2), "an older word changes nothing"
    core.handle(Deposed(MOVED))
    assert core.known_epoch is None


def test_a_follower_that_says_nothing_while_it_is_behind_leaves_sooner_than_one_that_is_only_slow() -> None:
    def checked(ms: float) -> list[dict[int, int | None]]:
        return proposals(core.handle(FollowersChecked(ms, 30_000, 9_000)))

    core = leader()
    append(core, 4, written=False)
    fetched(core, 2, 0)
    fetched(core, 3, 0)
    core.handle(GroupWritten(Offset(4), 1_000))
    fetched(core, 3, 1, ms=8_000)
    assert checked(10_000) == []
    assert checked(10_001) == [{1: None, 3: None}], "2 was heard last before there was anything to fetch"
    core.handle(Reassigned(assigned(1, (1, 2, 3), (1, 3), partition_epoch=1, min_isr=2), 10_002))
    fetched(core, 3, 2, ms=16_000)
    fetched(core, 3, 3, ms=24_000)
    assert checked(30_500) == [], "it is slow, and still here"
