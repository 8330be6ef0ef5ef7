"""Partitions that are read up to a stop: all before it, nothing from it on, and never asked for beyond."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace._core.fetch_plans import FetchLimits
from headrace._core.fetch_positions import FetchPositions
from headrace._core.ranges import Range
from headrace_common.core.batch import read_header
from headrace_common.core.errors import ErrorCode, UnknownTopicOrPartition
from headrace_common.core.ids import NodeId, TopicPartition

from .fetching import T0, T1, TOPIC_ID, A, B, PlainLog, answer_for, batch, control, refusal

LIMITS = FetchLimits(fetch_max_bytes=1500, max_partition_fetch_bytes=500, api_timeout_ms=60_000, gone_after_ms=3_000)
ROUNDS_MAX = 500
TPS = (T0, T1)

steps = st.lists(
    st.tuples(
        st.sampled_from(["plain", "hole", "marker", "of 7", "of 8", "commit 7", "abort 7", "abort 8"]),
        st.integers(1, 6),
    ),
    max_size=25,
)


def log_of(made: list[tuple[str, int]]) -> PlainLog:
    log = PlainLog()
    for what, count in made:
        kind, _, producer = what.partition(" ")
        match kind:
            case "plain" | "hole":
                log.append(count, hole=count if kind == "hole" else 0)
            case "marker":
                log.append_control()
            case "of":
                log.append(count, transaction_of=int(producer))
            case _ if int(producer) in log.open:
                log.decide(int(producer), commit=kind == "commit")
    return log


@given(
    logs=st.tuples(steps, steps),
    cuts=st.tuples(*[st.lists(st.floats(0, 1), min_size=2, max_size=6)] * 2),
    committed=st.booleans(),
    bytes_max=st.lists(st.integers(1, 500), min_size=1),
    moves=st.sets(st.integers(0, 30)),
)
def test_ranges_are_read_whole_and_nothing_else_is(
    logs: tuple[list[tuple[str, int]], ...],
    cuts: tuple[list[float], ...],
    committed: bool,
    bytes_max: list[int],
    moves: set[int],
) -> None:
    world = {tp: log_of(made) for tp, made in zip(TPS, logs, strict=True)}
    queues = {tp: ranges_of(world[tp], those, committed) for tp, those in zip(TPS, cuts, strict=True)}
    wanted = {
        tp: [o for o in visible(world[tp], committed) if any(start <= o < end for start, end in queues[tp])]
        for tp in TPS
    }
    core = FetchPositions(LIMITS, None)
    for tp, ranges in queues.items():
        if ranges:
            core.add(tp, ranges[0].start, stop=ranges[0].end)
    seen: dict[TopicPartition, list[int]] = {tp: [] for tp in TPS}
    for turn in range(ROUNDS_MAX):
        if not core.partitions:
            break
        leader, epoch = (A, B)[len([m for m in moves if m <= turn]) % 2], len([m for m in moves if m <= turn])
        for tp in core.partitions:
            core.placed(tp, TOPIC_ID, leader, epoch, 1000.0 * turn)
        core.tick(1000.0 * turn)
        serve(core, leader, world, bytes_max[turn % len(bytes_max)], committed=committed)
        take(core, queues, seen)
    assert not core.partitions, "all ranges come to their end"
    assert seen == wanted


def ranges_of(log: PlainLog, cuts: list[float], committed: bool) -> list[Range]:
    """Pairs of the offsets that the shares name."""
    end = log.last_stable if committed else log.end
    offsets = sorted(round(share * end) for share in cuts)
    pairs = zip(offsets[::2], offsets[1::2], strict=False)
    return [Range(start, stop) for start, stop in pairs if start < stop]


def visible(log: PlainLog, committed: bool) -> list[int]:
    return log.committed() if committed else log.visible()


def serve(
    core: FetchPositions, broker: NodeId, world: dict[TopicPartition, PlainLog], bytes_max: int, *, committed: bool
) -> None:
    for other in (A, B):
        plan = core.fetch(other)
        if plan is None:
            continue
        answers = []
        for key, entry in plan.entries.items():
            partition = entry.partition
            assert partition.stop is not None
            assert entry.offset < partition.stop, "what lies beyond the stop is not asked for"
            if other != broker:
                answers.append(refusal(plan, key, ErrorCode.NOT_LEADER_OR_FOLLOWER))
                continue
            one = answer_for(plan, key, world[partition.tp], bytes_max=bytes_max, committed=committed)
            if one is not None:
                answers.append(one)
        core.answers.take(plan, answers, 0.0)


def take(
    core: FetchPositions, queues: dict[TopicPartition, list[Range]], seen: dict[TopicPartition, list[int]]
) -> None:
    """As the shell: hand all out that is here, cut at the stop; then go on with the next ranges."""
    while (partition := core.next_batch()) is not None:
        assert partition.open is not None
        assert partition.position is not None
        assert partition.stop is not None
        header = partition.open.header
        behind = min(header.next_offset, partition.stop)
        seen[partition.tp] += range(max(header.base_offset, partition.position), behind)
        core.handed_out(partition, partition.epoch, header.next_offset)
    for tp, stopped in [(p.tp, p.stopped) for p in core.partitions.values()]:
        if not stopped:
            continue
        queues[tp].pop(0)
        if queues[tp]:
            core.go_on(tp, *queues[tp][0])
        else:
            core.remove(tp)


def reading(stop: int, start: int = 0) -> FetchPositions:
    core = FetchPositions(LIMITS, None)
    core.add(T0, start, stop=stop)
    core.placed(T0, TOPIC_ID, A, 0, 0.0)
    return core


def test_batches_that_begin_behind_the_stop_are_dropped_and_end_the_range() -> None:
    core = reading(stop=8)
    log = PlainLog([batch(0, 5), batch(12, 5)], end=17)
    plan = core.fetch(A)
    assert plan is not None
    answer = answer_for(plan, (TOPIC_ID, 0), log)
    assert answer is not None
    assert core.answers.take(plan, [answer], 0.0)
    partition = core.next_batch()
    assert partition is not None
    core.handed_out(partition, partition.epoch, 5)
    assert partition.stopped
    assert core.fetch(A) is None
    assert core.next_batch() is None


def test_a_range_of_markers_alone_ends_and_says_so() -> None:
    core = reading(stop=1)
    plan = core.fetch(A)
    assert plan is not None
    answer = answer_for(plan, (TOPIC_ID, 0), PlainLog([control(0)], end=1))
    assert answer is not None
    assert core.answers.take(plan, [answer], 0.0), "whoever waits is woken although there is no record"
    assert core.partitions[T0].stopped


def test_a_topic_that_stays_unknown_is_told_before_other_troubles() -> None:
    core = reading(stop=10)
    core.unplaced(T0, UnknownTopicOrPartition("gone"), 1_000.0)
    assert core.take_failure(3_999.0) is None
    failure = core.take_failure(4_000.0)
    assert isinstance(failure, UnknownTopicOrPartition)


def test_the_time_of_another_trouble_does_not_count_as_time_without_the_topic() -> None:
    core = reading(stop=10)
    plan = core.fetch(A)
    assert plan is not None
    core.answers.take(plan, [refusal(plan, (TOPIC_ID, 0), ErrorCode.NOT_LEADER_OR_FOLLOWER)], 0.0)
    core.unplaced(T0, UnknownTopicOrPartition("gone"), 10_000.0)
    assert core.take_failure(12_999.0) is None
    assert core.take_failure(13_000.0) is not None


def test_log_of_makes_logs_with_all_there_is() -> None:
    """The property above would prove nothing over plain logs alone."""
    log = log_of([("plain", 2), ("of 7", 3), ("hole", 2), ("abort 7", 1), ("of 8", 1)])
    assert log.committed() == [0, 1, 7, 8]
    assert (log.last_stable, log.end) == (10, 11)
    assert [read_header(b).control for b in log.batches] == [False, False, False, True, False]
