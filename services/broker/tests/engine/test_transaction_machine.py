"""
Transactions of one log through random lives: led, followed, cut, trimmed, restarted, with markers above and below the
high watermark. After each step all that the log knows of them is what a naive look at its batches finds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from services.broker.tests.kit.assignments import elected
from services.broker.tests.kit.batches import NOW_MS, batch_of

from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_broker.core.fences import FENCES_MAX
from headrace_broker.core.partition import Partition
from headrace_broker.core.partition_events import (
    AskEnrolment,
    BatchArrived,
    BatchesCopied,
    CheckpointAsked,
    Effect,
    Enrolled,
    Event,
    Followed,
    FollowerFetched,
    GroupWritten,
    MarkerArrived,
    Refuse,
    RetentionChecked,
    ShowUpTo,
    Truncated,
)
from headrace_broker.engine.image_applier import restore
from headrace_broker.engine.rebuilding import prepare_trim, rebuild
from headrace_common.core.batch import build_fence_batch, build_marker_batch, read_header, stamp
from headrace_common.core.configs import TopicConfig
from headrace_common.core.errors import ErrorCode, NotLeader
from headrace_common.core.ids import NodeId, Offset, PartitionId, TopicId

ID = PartitionId(TopicId(b"t" * 16), 0)
CONFIG = TopicConfig.effective({"segment.bytes": "1024", "retention.ms": "-1", "segment.ms": "3000"}, {})
OTHER = NodeId(2)
PIDS = st.integers(1, 4)


@dataclass(frozen=True)
class Entry:
    """One batch of the log, as the oracle keeps it."""

    base: int
    end: int
    pid: int = -1
    epoch: int = -1
    sequence: int = -1
    commit: bool | None = None
    """Set: a marker."""
    transactional: bool = True
    token: int | None = None
    """Set: a fence."""


class Oracle:
    """Looks at all batches, from the first that there ever was."""

    def __init__(self, entries: list[Entry]) -> None:
        self.open: dict[int, int] = {}
        self.known: dict[int, tuple[int, int, bool | None]] = {}  # epoch, last sequence, verdict
        self.ended: list[tuple[int, int, int, bool]] = []  # producer, first, marker, verdict
        self.token = max((entry.token for entry in entries if entry.token is not None), default=-1)
        for entry in entries:
            if entry.pid < 0:
                continue
            if entry.commit is None:
                if entry.transactional:
                    self.open.setdefault(entry.pid, entry.base)
                self.known[entry.pid] = (entry.epoch, entry.sequence + entry.end - entry.base - 1, None)
            else:
                if entry.pid in self.open:
                    self.ended.append((entry.pid, self.open.pop(entry.pid), entry.base, entry.commit))
                self.known[entry.pid] = (entry.epoch, -1, entry.commit)

    def last_stable(self, start: int, watermark: int) -> int:
        undecided = [*self.open.values(), *(first for _, first, marker, _ in self.ended if marker >= watermark)]
        return max(start, min([watermark, *undecided]))

    def aborted(self, first_batch: int) -> list[tuple[int, int, int]]:
        return [
            (pid, first, marker) for pid, first, marker, commit in self.ended if not commit and marker >= first_batch
        ]


def refusals(effects: list[Effect]) -> list[ErrorCode]:
    return [one.error.code for one in effects if isinstance(one, Refuse)]


class TransactionMachine(RuleBasedStateMachine):
    """One broker's copy of a partition with two replicas."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryLogs()
        self.now = NOW_MS
        self.epoch = 1
        self.entries: list[Entry] = []
        self.epochs: dict[int, int] = {}  # the producers' own idea of their epoch
        self.refs = 0
        self.stable = (0, 0)

    @initialize()
    def create(self) -> None:
        self.core, writes = Partition.create(ID, self.store.new_log_id(), CONFIG, self.now)
        self.store.write(writes)
        self.handle(elected(1, (1, 2), (1, 2)))

    def handle(self, event: Event) -> list[Effect]:
        before = (self.core.high_watermark, self.core.last_stable)
        effects = self.core.handle(event)
        writes: list[Any] = [effect for effect in effects if hasattr(effect, "log")]
        if writes:
            self.store.write(writes)
        for shown in (effect for effect in effects if isinstance(effect, ShowUpTo)):
            assert shown.before == before[0]
            assert (shown.stable or (shown.high_watermark, shown.before)) == (self.core.last_stable, before[1])
        return effects

    def has_all_fences(self) -> bool:
        """One more, and a deep cut would not find the token again."""
        return sum(entry.token is not None for entry in self.entries) == FENCES_MAX

    def leads(self) -> bool:
        return self.core.leading is not None

    def follows(self) -> bool:
        return self.core.following is not None

    # --- what producers and coordinators do ---------------------------------------------------------------

    @precondition(leads)
    @rule(
        pid=PIDS,
        records=st.integers(1, 3),
        up=st.integers(0, 1),
        size=st.sampled_from([1, 300]),
        behind=st.sampled_from([0, 0, 0, 1, -1]),
        fence_comes=st.integers(0, 3).map(lambda number: number == 3),
    )
    def append(self, pid: int, records: int, up: int, size: int, behind: int, fence_comes: bool) -> None:
        """
        A transactional batch; with ``up`` of an epoch above what is known, as after an end without a marker here.

        Its token is so far ``behind``. ``fence_comes``: before the coordinator has answered, if it is asked.
        """
        oracle = Oracle(self.entries)
        epoch, last, _ = oracle.known.get(pid, (0, -1, None))
        going_on = pid in oracle.open and not up
        epoch, sequence = (epoch, last + 1) if going_on else (epoch + up, 0)
        if not going_on and not up and last >= 0:
            return  # a plain producer's epoch: not a transaction's
        batch = batch_of([b"x" * size] * records, producer_id=pid, epoch=epoch, sequence=sequence, transactional=True)
        token = None if oracle.token < 0 else oracle.token - behind
        effects = self.handle(BatchArrived(read_header(batch), batch, -1, self.now, None, 1, token, None, "id"))
        asks = [effect for effect in effects if isinstance(effect, AskEnrolment)]
        if token not in (None, oracle.token):
            assert refusals(effects) == [ErrorCode.FENCED_WRITER]
            return
        assert bool(asks) != going_on
        for ask in asks:
            fence_comes = fence_comes and not self.has_all_fences()
            if fence_comes:
                self.fence(1)
            effects = self.handle(Enrolled(pid, ask.number, None, self.now))
            if fence_comes and token is not None:
                assert refusals(effects) == [ErrorCode.FENCED_WRITER]
                return
        base = self.core.log_end - records
        if pid in oracle.open and up:
            assert refusals(effects) == [ErrorCode.CONCURRENT_TRANSACTIONS]
            return
        self.entries.append(Entry(base, base + records, pid, epoch, sequence))

    @precondition(leads)
    @rule(pid=PIDS, up=st.integers(0, 2), commit=st.booleans())
    def marker(self, pid: int, up: int, commit: bool) -> None:
        oracle = Oracle(self.entries)
        epoch, _, verdict = oracle.known.get(pid, (0, -1, None))
        batch = build_marker_batch(pid, epoch + up, commit=commit, timestamp_ms=self.now)
        end = self.core.log_end
        effects = self.handle(MarkerArrived(read_header(batch), batch, commit, self.now, 2))
        refused = refusals(effects)
        if up or pid not in oracle.known:
            assert (refused, self.core.log_end) == ([], end + 1)
            self.entries.append(Entry(end, end + 1, pid, epoch + up, commit=commit))
        else:
            repeat = verdict is commit and pid not in oracle.open
            assert (refused, self.core.log_end) == ([] if repeat else [ErrorCode.INVALID_PRODUCER_EPOCH], end)

    @precondition(leads)
    @rule(records=st.integers(1, 3), pid=st.sampled_from([-1, 9]))
    def plain(self, records: int, pid: int) -> None:
        """A batch of nobody, or of an idempotent producer without transactions."""
        epoch, last, _ = Oracle(self.entries).known.get(pid, (0, -1, None))
        fields = {} if pid < 0 else {"producer_id": pid, "epoch": epoch, "sequence": last + 1}
        batch = batch_of(records, **fields)
        base = self.core.log_end
        self.handle(BatchArrived(read_header(batch), batch, -1, self.now, None, 3))
        sequence = -1 if pid < 0 else last + 1
        self.entries.append(Entry(base, base + records, pid, epoch, sequence, transactional=False))

    @precondition(leads)
    @rule(up=st.integers(0, 2))
    def fence(self, up: int) -> None:
        if self.has_all_fences():
            return
        token = max(1, Oracle(self.entries).token + up)
        up = token - Oracle(self.entries).token
        batch, base = build_fence_batch(token, timestamp_ms=self.now), self.core.log_end
        effects = self.handle(BatchArrived(read_header(batch), batch, -1, self.now, None, 4, None, token))
        assert refusals(effects) == ([] if up else [ErrorCode.FENCED_WRITER])
        if up:
            self.entries.append(Entry(base, base + 1, token=token))

    @precondition(leads)
    @rule(data=st.data(), behind=st.integers(0, 1))
    def repeat(self, data: st.DataObject, behind: int) -> None:
        """A batch that is in the log comes again, under whatever token: nobody says that it is not there."""
        oracle = Oracle(self.entries)
        sent = [
            one
            for one in self.entries[-5:]
            if one.pid >= 0 and one.commit is None and one.epoch == oracle.known[one.pid][0] and one.transactional
        ]
        if not sent:
            return
        one = data.draw(st.sampled_from(sent))
        fields = {"producer_id": one.pid, "epoch": one.epoch, "sequence": one.sequence, "transactional": True}
        batch, end = batch_of(one.end - one.base, **fields), self.core.log_end
        token = None if oracle.token < 0 else oracle.token - behind
        effects = self.handle(BatchArrived(read_header(batch), batch, -1, self.now, None, 5, token, None, "id"))
        assert (refusals(effects), self.core.log_end) == ([], end)

    # --- what is written and committed --------------------------------------------------------------------

    def ends(self, low: int, high: int) -> list[int]:
        return sorted({low, *(entry.end for entry in self.entries if low <= entry.end <= high)})

    @rule(data=st.data())
    def written(self, data: st.DataObject) -> None:
        end = data.draw(st.sampled_from(self.ends(self.core.written_end, self.core.log_end)))
        self.handle(GroupWritten(Offset(end)))

    @precondition(leads)
    @rule(data=st.data())
    def follower_fetched(self, data: st.DataObject) -> None:
        end = Offset(data.draw(st.sampled_from(self.ends(self.core.high_watermark, self.core.log_end))))
        self.handle(FollowerFetched(OTHER, 1, end, end, may_join=True, now_ms=0.0))

    # --- leaders come and go ------------------------------------------------------------------------------

    @precondition(leads)
    @rule()
    def followed(self) -> None:
        self.epoch += 1
        self.handle(Followed(OTHER, self.epoch, NotLeader("moved")))

    @precondition(lambda self: not self.leads())
    @rule()
    def elected(self) -> None:
        self.epoch += 1
        self.handle(elected(self.epoch, (1, 2), (1, 2)))

    @precondition(follows)
    @rule(data=st.data(), unclean=st.booleans())
    def cut(self, data: st.DataObject, unclean: bool) -> None:
        low = self.core.log_start if unclean else self.core.high_watermark
        bounds = [end for end in self.ends(low, self.core.log_end) if end == low or end >= low]
        end = data.draw(st.sampled_from(bounds))
        if any(entry.base < end < entry.end for entry in self.entries):
            return
        self.handle(Truncated(self.epoch, Offset(end), rebuild(self.store, self.core, Offset(end), self.now)))
        self.entries = [entry for entry in self.entries if entry.end <= end]

    @precondition(follows)
    @rule(pid=PIDS, what=st.sampled_from(["records", "commit", "abort", "fence"]), shown=st.booleans())
    def copied(self, pid: int, what: str, shown: bool) -> None:
        oracle = Oracle(self.entries)
        epoch, last, _ = oracle.known.get(pid, (0, -1, None))
        base, commit = self.core.log_end, None if what == "records" else what == "commit"
        if what == "fence":
            if self.has_all_fences():
                return
            batch = build_fence_batch(oracle.token + 2, timestamp_ms=self.now)
            entry = Entry(base, base + 1, token=oracle.token + 2)
        elif commit is None:
            if pid not in oracle.open and last >= 0:
                return
            sequence = last + 1 if pid in oracle.open else 0
            batch = batch_of(2, producer_id=pid, epoch=epoch, sequence=sequence, transactional=True)
            entry = Entry(base, base + 2, pid, epoch, sequence)
        else:
            batch = build_marker_batch(pid, epoch + 1, commit=commit, timestamp_ms=self.now)
            entry = Entry(base, base + 1, pid, epoch + 1, commit=commit)
        batch = stamp(batch, base, self.epoch)
        watermark = Offset(entry.end if shown else 0)
        self.handle(BatchesCopied(self.epoch, ((read_header(batch), batch),), watermark, self.now))
        self.entries.append(entry)

    # --- what goes, and what stays ------------------------------------------------------------------------

    @precondition(lambda self: self.core.high_watermark > self.core.log_start)
    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        offset = Offset(data.draw(st.integers(self.core.log_start, self.core.high_watermark)))
        self.handle(prepare_trim(self.store, self.core, offset, self.now))

    @rule(passed=st.sampled_from([0, 1_000, 4_000]))
    def time_passes(self, passed: int) -> None:
        self.now += passed
        self.handle(RetentionChecked(self.now, 0))

    @rule(whole=st.booleans())
    def checkpoint(self, whole: bool) -> None:
        self.handle(CheckpointAsked(whole))

    @rule()
    def restart(self) -> None:
        self.store = self.store.reopen()
        [log] = self.store.list_recovered()
        self.core = restore(self.store, log, CONFIG, self.now)
        self.epoch += 1

    # --- what must be true --------------------------------------------------------------------------------

    @invariant()
    def all_is_as_a_look_at_the_batches_says(self) -> None:
        core = getattr(self, "core", None)
        if core is None:
            return
        oracle = Oracle(self.entries)
        assert core.fences.token == oracle.token
        assert core.last_stable == oracle.last_stable(core.log_start, core.high_watermark)
        opened = core.producers.first(1_000, open_only=True)
        assert {row.producer_id: row.transaction_start for row in opened} == oracle.open
        assert opened == tuple(sorted(opened, key=lambda row: row.transaction_start or 0))
        assert core.producers.first_open == min(oracle.open.values(), default=None)
        known = {
            row.producer_id: (row.epoch, row.batches[-1].last_sequence if row.batches else -1, row.committed)
            for row in core.producers.snapshot()
        }
        assert known == oracle.known
        index = [(row.producer_id, row.first, row.last) for row in core.aborted.rows()]
        assert index == oracle.aborted(core.first_batch)

    @invariant()
    def readers_are_told_of_all_that_overlaps(self) -> None:
        core = getattr(self, "core", None)
        if core is None:
            return
        rows = core.aborted.rows()
        step = max(1, (core.log_end - core.first_batch) // 5)
        for start in range(core.first_batch, core.log_end + 1, step):
            for end in range(start + 1, core.log_end + 2, step):
                naive = [row for row in rows if row.first < end and row.last >= start]
                assert core.aborted.find_overlapping(Offset(start), Offset(end)) == naive


TransactionMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestTransactionMachine = TransactionMachine.TestCase
