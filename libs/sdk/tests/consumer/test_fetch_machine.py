"""
The consumer's core against a naive oracle: whatever happens in between, each partition is handed out as its log is,
in order, without gaps or repetitions, from where it was last sought; and memory stays bounded.

Logs have transactions of several producers, which overlap; a reader of committed records gets those of committed ones,
up to the last stable offset, where its position ends. Positions are committed, and go back when a transaction fails.
"""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace._core.fetch_plans import FetchLimits, FetchPlan
from headrace._core.fetch_positions import FetchPositions
from headrace._core.starts import Beginning, LastCommitted
from headrace_common.core.errors import ErrorCode, NetworkFailed
from headrace_common.core.ids import NodeId, TopicPartition

from .fetching import TOPIC_ID, A, B, PlainLog, answer_for, look_up, refusal

PARTITIONS = 3
LIMITS = FetchLimits(fetch_max_bytes=1500, max_partition_fetch_bytes=500, api_timeout_ms=10**9)
BATCH_BYTES_MAX = 300
TPS = [TopicPartition("t", n) for n in range(PARTITIONS)]
BROKERS = st.sampled_from([A, B])
PRODUCERS = st.sampled_from([7, 8, 9])
PARTITION = st.integers(0, PARTITIONS - 1)


class Reading(RuleBasedStateMachine):
    """Two brokers, three partitions, one consumer."""

    @initialize(committed=st.booleans())
    def begin(self, committed: bool) -> None:
        self.now = 0.0
        self.committed_only = committed
        self.group: dict[TopicPartition, int] = {}
        self.back: dict[TopicPartition, int] = dict.fromkeys(TPS, 0)
        self.logs = {tp: PlainLog() for tp in TPS}
        self.leaders: dict[TopicPartition, tuple[NodeId, int]] = dict.fromkeys(TPS, (A, 0))
        self.core = FetchPositions(LIMITS, Beginning())
        self.on_wire: dict[NodeId, FetchPlan] = {}
        self.next: dict[TopicPartition, int] = {}
        for tp in TPS:
            self.core.add(tp, 0)
            self.next[tp] = 0
        self.learn()

    # --- the world ----------------------------------------------------------------------------------------------

    @rule(partition=PARTITION, count=st.integers(1, 5), hole=st.integers(0, 3))
    def append(self, partition: int, count: int, hole: int) -> None:
        self.logs[TPS[partition]].append(count, hole=hole)

    @rule(partition=PARTITION)
    def append_control(self, partition: int) -> None:
        self.logs[TPS[partition]].append_control()

    @rule(partition=PARTITION, producer=PRODUCERS, count=st.integers(1, 5))
    def append_in_transaction(self, partition: int, producer: int, count: int) -> None:
        self.logs[TPS[partition]].append(count, transaction_of=producer)

    @rule(partition=PARTITION, producer=PRODUCERS, commit=st.booleans())
    def decide(self, partition: int, producer: int, commit: bool) -> None:
        log = self.logs[TPS[partition]]
        if producer in log.open:
            log.decide(producer, commit=commit)

    def visible(self, tp: TopicPartition) -> list[int]:
        log = self.logs[tp]
        return log.committed() if self.committed_only else log.visible()

    def end(self, tp: TopicPartition) -> int:
        log = self.logs[tp]
        return log.last_stable if self.committed_only else log.end

    @rule(partition=PARTITION, share=st.floats(0, 1))
    def trim(self, partition: int, share: float) -> None:
        log = self.logs[TPS[partition]]
        log.trim(log.start + round((log.end - log.start) * share))

    @rule(partition=PARTITION, to=BROKERS)
    def move_leader(self, partition: int, to: NodeId) -> None:
        self.leaders[TPS[partition]] = (to, self.leaders[TPS[partition]][1] + 1)

    @rule()
    def learn(self) -> None:
        for tp, (leader, epoch) in self.leaders.items():
            self.core.placed(tp, TOPIC_ID, leader, epoch, self.now)

    @rule()
    def time_passes(self) -> None:
        self.now += 1000
        self.core.tick(self.now)

    # --- the shell ----------------------------------------------------------------------------------------------

    @rule()
    def look_up_starts(self) -> None:
        before = {tp: self.core.partitions[tp].position for tp in TPS}
        for lookup in self.core.recalls():
            tp, start = lookup.partition.tp, lookup.start
            assert isinstance(start, LastCommitted)
            offset = self.group.get(tp, start.fallback)
            assert offset == self.next[tp], "it goes back to what is committed, else to where reading began"
            self.core.looked_up(lookup, offset)
        look_up(self.core, self.logs, self.now)
        for tp, position in before.items():
            if position is None and self.core.partitions[tp].position is not None:
                self.next[tp] = self.core.partitions[tp].position

    @rule(broker=BROKERS)
    def send(self, broker: NodeId) -> None:
        plan = self.core.fetch(broker)
        if plan is not None:
            assert broker not in self.on_wire, "one on the wire"
            self.on_wire[broker] = plan

    @rule(broker=BROKERS, bytes_max=st.integers(1, 500))
    def answer(self, broker: NodeId, bytes_max: int) -> None:
        plan = self.on_wire.pop(broker, None)
        if plan is None:
            return
        answers = []
        for key, entry in plan.entries.items():
            tp = entry.partition.tp
            if self.leaders[tp][0] != broker:
                answers.append(refusal(plan, key, ErrorCode.NOT_LEADER_OR_FOLLOWER, leader=self.leaders[tp]))
                continue
            one = answer_for(plan, key, self.logs[tp], bytes_max=bytes_max, committed=self.committed_only)
            if one is not None:
                answers.append(one)
        self.core.answers.take(plan, answers, self.now)

    @rule(broker=BROKERS, abandoned=st.booleans())
    def break_stream(self, broker: NodeId, abandoned: bool) -> None:
        plan = self.on_wire.pop(broker, None)
        if plan is None:
            return
        if abandoned:
            self.core.answers.abandon(plan)
        else:
            self.core.answers.fail(plan, NetworkFailed("gone"), self.now)

    # --- the application ----------------------------------------------------------------------------------------

    @rule(part=st.floats(0, 1))
    def hand_out(self, part: float) -> None:
        partition = self.core.next_batch()
        if partition is None:
            return
        assert not partition.paused
        assert partition.open is not None
        assert partition.position is not None
        header = partition.open.header
        offsets = [o for o in range(header.base_offset, header.next_offset) if o >= partition.position]
        taken = offsets[: max(1, round(len(offsets) * part))]
        self.check_follows(partition.tp, taken)
        end = header.next_offset if taken == offsets else taken[-1] + 1
        self.core.handed_out(partition, partition.epoch, end)
        self.next[partition.tp] = end

    def check_follows(self, tp: TopicPartition, taken: list[int]) -> None:
        """Nothing that is still in the log lies between the last record handed out and the first of these."""
        assert taken[0] >= self.next[tp], "nothing comes twice"
        visible = self.visible(tp)
        skipped = [o for o in visible if self.next[tp] <= o < taken[0]]
        assert not skipped, f"{tp}: {skipped} were skipped"
        start = self.logs[tp].start
        assert set(taken) <= {*visible, *range(start)}, f"{tp}: {taken} are not all for this reader"

    @rule(partition=PARTITION, share=st.floats(0, 1.2))
    def seek(self, partition: int, share: float) -> None:
        tp = TPS[partition]
        target = round(self.end(tp) * share)
        self.core.seek(tp, target)
        self.next[tp] = self.back[tp] = target
        self.group.pop(tp, None)

    @rule(partition=PARTITION)
    def commit(self, partition: int) -> None:
        tp = TPS[partition]
        self.group[tp] = self.back[tp] = self.next[tp]
        self.core.committed(tp, self.next[tp])

    @rule(partition=PARTITION)
    def transaction_fails(self, partition: int) -> None:
        tp = TPS[partition]
        self.core.rewind(tp)
        self.next[tp] = self.back[tp]

    @rule(partition=PARTITION)
    def pause(self, partition: int) -> None:
        self.core.pause(TPS[partition])

    @rule(partition=PARTITION)
    def resume(self, partition: int) -> None:
        self.core.resume(TPS[partition])

    # --- what always holds --------------------------------------------------------------------------------------

    @invariant()
    def memory_is_bounded(self) -> None:
        core = self.core
        for tp, partition in core.partitions.items():
            assert partition.buffered_bytes == sum(len(f.batch) for f in partition.buffer), tp
        buffered = sum(p.buffered_bytes for p in core.partitions.values())
        # two brokers, and what is paused; an answer may pass its bound by one first batch per partition
        assert buffered <= 3 * (LIMITS.fetch_max_bytes + PARTITIONS * BATCH_BYTES_MAX)

    @invariant()
    def rooms_add_up(self) -> None:
        core = self.core
        rooms = sum(f.buffered_bytes for f in core.rooms.brokers.values()) + core.rooms.paused_bytes
        assert rooms == sum(p.buffered_bytes for p in core.partitions.values())

    @invariant()
    def buffers_follow_positions(self) -> None:
        for partition in self.core.partitions.values():
            expected = partition.position
            for fetched in partition.buffer:
                assert expected is not None
                assert fetched.header.next_offset > expected
                expected = fetched.header.next_offset
            if partition.position is not None and partition.open is None:
                assert partition.fetch_offset == expected

    @invariant()
    def nothing_hidden_is_waited_for(self) -> None:
        for partition in self.core.partitions.values():
            shown = [bool(fetched.batch) for fetched in partition.buffer]
            assert partition.open is not None or shown[:1] != [False], "positions step over what comes next"
            assert all(first or second for first, second in pairwise(shown)), "hidden batches in a row are one"
            assert partition.has_records == (any(shown) and not partition.paused)

    def sought(self, tp: TopicPartition) -> int:
        """Above the end only if it was sought there, into what is not decided yet."""
        return self.next[tp] if self.next[tp] > self.end(tp) else 0

    def teardown(self) -> None:
        """Once nothing fails any more, everything is read to the end."""
        if not hasattr(self, "core"):
            return
        for tp in TPS:
            self.core.resume(tp)
        for _ in range(400):
            self.learn()
            self.time_passes()
            self.look_up_starts()
            for broker in (A, B):
                self.send(broker)
                self.answer(broker, 400)
            for _ in range(4):
                self.hand_out(1.0)
            if all(self.core.partitions[tp].position == max(self.end(tp), self.sought(tp)) for tp in TPS):
                missed = {tp: [o for o in self.visible(tp) if o >= self.next[tp]] for tp in TPS}
                assert not any(missed.values()), f"passed over: {missed}"
                return
        behind = {tp: (self.core.partitions[tp].position, self.end(tp)) for tp in TPS}
        raise AssertionError(f"not everything was read: {behind}")


TestReading = Reading.TestCase
