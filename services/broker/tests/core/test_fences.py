"""Fencing tokens: who may append, and that the token is part of the log through cuts, copies and restarts."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from services.broker.tests.kit.assignments import elected
from services.broker.tests.kit.batches import NOW_MS, batch_of

from headrace_broker.core.fences import FENCES_MAX, Fences, fences_of, token_from_client
from headrace_broker.core.partition import Partition
from headrace_broker.core.partition_events import (
    Answer,
    BatchArrived,
    BatchesCopied,
    Effect,
    Emptied,
    Followed,
    GroupWritten,
    Rebuilt,
    Refuse,
    Truncated,
)
from headrace_broker.core.producers import Producers
from headrace_broker.core.rows import NO_TOKEN, EpochRow, FenceRow, LogId, PutBatch, PutState, StateRow
from headrace_broker.core.segments import Segments
from headrace_common.core.batch import (
    BatchHeader,
    Codec,
    ControlType,
    RecordColumns,
    build_batch,
    build_control_batch,
    build_fence_batch,
    read_header,
    stamp,
)
from headrace_common.core.configs import TopicConfig
from headrace_common.core.errors import ErrorCode, FencedWriter, InvalidRecord, NotLeader
from headrace_common.core.ids import NodeId, Offset, PartitionId, TopicId

ID = PartitionId(TopicId(b"o" * 16), 0)
LOG = LogId(3)
CONFIG = TopicConfig.effective({}, {})
ME, OTHER = NodeId(1), NodeId(2)


def led(epoch: int = 1) -> Partition:
    partition, _ = Partition.create(ID, LOG, CONFIG, NOW_MS)
    partition.handle(elected(epoch))
    return partition


def append(partition: Partition, *, token: int | None = None, records: int = 1) -> list[Effect]:
    batch = batch_of(records)
    return partition.handle(BatchArrived(read_header(batch), batch, 1, NOW_MS, None, "append", token))


def fence(partition: Partition, token: int, *, carried: int | None = None) -> list[Effect]:
    batch = build_fence_batch(token, timestamp_ms=NOW_MS)
    return partition.handle(BatchArrived(read_header(batch), batch, 1, NOW_MS, None, "fence", carried, token))


def refused(effects: list[Effect]) -> bool:
    """Whether it was refused for its token; then nothing else has happened."""
    fenced = [e for e in effects if isinstance(e, Refuse)]
    assert all(isinstance(e.error, FencedWriter) and e.error.code is ErrorCode.FENCED_WRITER for e in fenced)
    assert not fenced or len(effects) == 1
    return bool(fenced)


class TestAppending:
    def test_without_a_fence_appends_without_a_token_go_through_and_those_with_one_do_not(self) -> None:
        partition = led()
        assert not refused(append(partition))
        assert refused(append(partition, token=1))
        assert refused(append(partition, token=NO_TOKEN)), "that none is set is no token"
        assert partition.log_end == 1

    def test_after_a_fence_the_token_decides(self) -> None:
        partition = led()
        effects = fence(partition, 5)
        assert [type(e) for e in effects] == [PutBatch, PutState], "the token is stored with the batch that sets it"
        assert isinstance(effects[1], PutState)
        assert effects[1].row.fences == (FenceRow(Offset(0), 5),)
        assert not refused(append(partition, token=5))
        assert refused(append(partition, token=4))
        assert refused(append(partition, token=6))
        assert not refused(append(partition)), "who carries none is not checked here"
        assert Answer("fence", Offset(0), -1) in partition.handle(GroupWritten(partition.log_end))

    @pytest.mark.parametrize("token", [5, 4, 1])
    def test_a_token_must_be_above_the_present_one(self, token: int) -> None:
        partition = led()
        fence(partition, 5)
        assert refused(fence(partition, token, carried=5)), "what a fence carries is ignored"
        assert (partition.fences.token, partition.log_end) == (5, 1)
        assert not refused(fence(partition, 6, carried=1))
        assert refused(append(partition, token=5))

    def test_who_does_not_lead_says_that_first(self) -> None:
        partition, _ = Partition.create(ID, LOG, CONFIG, NOW_MS)
        [refusal] = append(partition, token=3)
        assert isinstance(refusal, Refuse)
        assert isinstance(refusal.error, NotLeader)


class TestWhatClientsMayWrite:
    @staticmethod
    def of(batch: bytes) -> int | None:
        return token_from_client(read_header(batch), batch)

    def test_records_set_no_token_and_fences_do(self) -> None:
        assert self.of(batch_of(3)) is None
        assert self.of(build_fence_batch(9, timestamp_ms=NOW_MS)) == 9

    @pytest.mark.parametrize("kind", [k for k in ControlType if k is not ControlType.FENCE])
    def test_other_control_batches_are_the_system_s(self, kind: ControlType) -> None:
        with pytest.raises(InvalidRecord, match="fences"):
            self.of(build_control_batch(kind, b"", timestamp_ms=NOW_MS, producer_id=-1, producer_epoch=-1))

    def test_fences_have_no_producer_and_are_small(self) -> None:
        value = bytes(2) + (5).to_bytes(8, "big")
        of_producer = build_control_batch(
            ControlType.FENCE, value, timestamp_ms=NOW_MS, producer_id=4, producer_epoch=0
        )
        large = build_control_batch(
            ControlType.FENCE, value + bytes(300), timestamp_ms=NOW_MS, producer_id=-1, producer_epoch=-1
        )
        for batch in (of_producer, large):
            with pytest.raises(InvalidRecord):
                self.of(batch)

    def test_compressed_control_batches_are_not_inflated(self) -> None:
        batch = build_batch(RecordColumns([bytes(1 << 20)], keys=[bytes([0, 0, 0, 3])]), codec=Codec.ZSTD)
        header = read_header(batch)
        control = header._replace(attributes=header.attributes | 0x20)
        assert header.size <= 256, "small outside"
        with pytest.raises(InvalidRecord):
            token_from_client(control, batch)


def from_leader(partition: Partition, batch: bytes, epoch: int = 1) -> tuple[BatchHeader, bytes]:
    stamped = stamp(batch, partition.log_end, epoch)
    return read_header(stamped), stamped


def following(epoch: int = 1) -> Partition:
    partition, _ = Partition.create(ID, LOG, CONFIG, NOW_MS)
    partition.handle(Followed(OTHER, epoch, NotLeader("")))
    return partition


class TestCopying:
    def test_a_follower_has_the_token_once_it_has_copied_the_fence(self) -> None:
        partition = following()
        batch = from_leader(partition, build_fence_batch(8, timestamp_ms=NOW_MS))
        effects = partition.handle(BatchesCopied(1, (batch,), Offset(0), NOW_MS))
        assert any(isinstance(e, PutState) and e.row.fencing_token == 8 for e in effects)
        partition.handle(elected(2))
        assert refused(append(partition, token=7))
        assert not refused(append(partition, token=8))

    def test_control_records_of_another_kind_are_copied_and_set_nothing(self) -> None:
        partition = following()
        marker = build_control_batch(
            ControlType.LEADER_EPOCH, b"", timestamp_ms=NOW_MS, producer_id=-1, producer_epoch=-1
        )
        partition.handle(BatchesCopied(1, (from_leader(partition, marker),), Offset(0), NOW_MS))
        assert (partition.log_end, partition.fences.token) == (1, -1)

    def test_who_begins_anew_takes_the_token_from_before_by_the_leader_s_word(self) -> None:
        partition = following()
        partition.handle(Emptied(1, Offset(50), NOW_MS, 6))
        assert partition.fences.token == 6
        batch = from_leader(partition, build_fence_batch(9, timestamp_ms=NOW_MS))
        partition.handle(BatchesCopied(1, (batch,), Offset(50), NOW_MS))
        assert partition.fences.token == 9
        partition.handle(Truncated(1, Offset(50), rebuilt(Offset(50))))
        assert partition.fences.token == 6
        assert partition.state().row.fences == (FenceRow(Offset(-1), 6),)

    def test_a_leader_says_what_was_before_its_start(self) -> None:
        fences = Fences([FenceRow(Offset(3), 1), FenceRow(Offset(9), 4)])
        assert [fences.token_below(Offset(n)) for n in (0, 3, 4, 9, 10)] == [-1, -1, 1, 1, 4]


def rebuilt(end: Offset) -> Rebuilt:
    return Rebuilt(Producers(), Segments.fresh(end, NOW_MS), 0)


@dataclass
class Log:
    """The oracle: each offset's token, if its record was a fence; what a store would have kept of the state."""

    core: Partition
    tokens: list[int | None] = field(default_factory=list)
    state: StateRow = field(default_factory=lambda: StateRow(ID, Offset(0), Offset(0)))

    def take(self, effects: list[Effect], token: int | None, records: int) -> None:
        if any(isinstance(e, PutBatch) for e in effects):
            self.tokens += [token] * records
        self.keep(effects)

    def keep(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, PutState):
                self.state = effect.row

    def truth(self) -> int:
        return max((t for t in self.tokens if t is not None), default=-1)


steps = st.one_of(
    st.tuples(st.just("fence"), st.integers(1, 12)),
    st.tuples(st.just("append"), st.integers(1, 3)),
    st.tuples(st.just("cut"), st.integers(0, 30)),
    st.tuples(st.just("restart"), st.integers(0, 2)),
)


@settings(max_examples=300)
@given(st.lists(steps, max_size=40))
def test_the_token_is_the_largest_in_the_log_after_any_cut_and_restart(script: list[tuple[str, int]]) -> None:
    log, epoch = Log(led()), 1
    for kind, number in script:
        epoch += 1
        match kind:
            case "fence":
                known = log.core.fences.token
                effects = fence(log.core, number)
                assert refused(effects) == (number <= known)
                log.take(effects, number, 1)
            case "append":
                log.take(append(log.core, token=log.core.fences.token if number > 1 else None), None, 1)
            case "cut":
                end = Offset(min(number, len(log.tokens)))
                log.core.handle(Followed(OTHER, epoch, NotLeader("")))
                log.keep(log.core.handle(Truncated(epoch, end, rebuilt(end))))
                del log.tokens[end:]
            case "restart":  # what was written last may be lost; the state is of any time before
                end = Offset(max(0, len(log.tokens) - number))
                del log.tokens[end:]
                rows = [EpochRow(epoch - 1, Offset(0))]
                segments = Segments.fresh(Offset(0), NOW_MS)
                log.core = Partition.recover(log.state, LOG, CONFIG, segments, end, rows, Producers())
                log.keep([log.core.state()])
        assert log.core.fences.token == log.truth()
        log.core.handle(elected(epoch))


@given(st.integers(FENCES_MAX + 1, 3 * FENCES_MAX), st.data())
def test_of_many_fences_the_newest_are_kept_and_a_deep_cut_never_lowers_the_token_too_far(
    count: int, data: st.DataObject
) -> None:
    fences = Fences()
    for number in range(count):
        assert fences.note_appended(Offset(10 * number), number + 1)
    assert len(fences.rows()) == FENCES_MAX
    assert fences.rows() == Fences(fences.rows()).rows()
    end = data.draw(st.integers(0, 10 * count))
    truth = (end + 9) // 10
    fences.truncate(Offset(end))
    exact = count - FENCES_MAX + 1  # fences before that are known by their largest token only
    assert fences.token == max(truth, exact)
    assert not fences.note_appended(Offset(end), fences.token)


def test_a_log_that_begins_after_no_fence_has_no_token() -> None:
    assert fences_of(-1).token == -1
    assert fences_of(-1).rows() == ()
