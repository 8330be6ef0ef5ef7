"""The tail cache against a plain list per log."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace_broker.core.rows import LogId
from headrace_broker.engine.tail_cache import ENTRY_BYTES, TailCache
from headrace_common.core.ids import Offset

puts = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(1, 40)), max_size=150)


@given(puts, st.sampled_from([0, 150, 1_000, 100_000]), st.integers(0, 2), st.integers(0, 40), st.integers(0, 200))
def test_what_is_cached_is_the_end_of_each_log_and_the_oldest_went_first(
    steps: list[tuple[int, int, int]], bytes_max: int, asked: int, offset: int, limit: int
) -> None:
    cache = TailCache(bytes_max)
    logs: dict[int, list[tuple[int, int, bytes]]] = {0: [], 1: [], 2: []}
    order: list[tuple[int, int]] = []
    for log, records, size in steps:
        base = logs[log][-1][1] if logs[log] else 0
        batch = bytes([log]) * size
        logs[log].append((base, base + records, batch))
        order.append((log, base))
        cache.put(LogId(log), Offset(base), Offset(base + records), batch)
    kept: set[tuple[int, int]] = set()
    room = bytes_max
    by_key = {(log, base): batch for log, entries in logs.items() for base, _, batch in entries}
    for key in reversed(order):
        room -= len(by_key[key]) + ENTRY_BYTES
        if room < 0:
            break
        kept.add(key)
    assert cache.size == sum(len(by_key[key]) + ENTRY_BYTES for key in kept)
    cached = [entry for entry in logs[asked] if (asked, entry[0]) in kept]
    end = logs[asked][-1][1] if logs[asked] else 0
    found = cache.take(LogId(asked), Offset(offset), Offset(end), limit, first=True)
    if not cached or not cached[0][0] <= offset < end:
        assert found is None
        return
    expected: list[bytes] = []
    for base, following, batch in cached:
        if following <= offset:
            continue
        if expected and sum(map(len, expected)) + len(batch) > limit:
            break
        expected.append(batch)
        del base
    assert found == expected
    assert cache.bytes_between(LogId(asked), Offset(offset), Offset(end)) == sum(
        len(batch) for base, _, batch in cached if base >= offset
    )


def test_records_above_the_bound_are_not_shown() -> None:
    cache = TailCache(1_000)
    cache.put(LogId(1), Offset(0), Offset(3), b"a")
    cache.put(LogId(1), Offset(3), Offset(5), b"b")
    assert cache.take(LogId(1), Offset(0), Offset(3), 100, first=True) == [b"a"]
    assert cache.take(LogId(1), Offset(3), Offset(3), 100, first=True) == []


def test_a_dropped_log_is_forgotten_and_the_others_are_not() -> None:
    cache = TailCache(1_000)
    for log in (1, 2):
        cache.put(LogId(log), Offset(0), Offset(1), b"x")
    cache.drop({LogId(1), LogId(9)})
    assert cache.take(LogId(1), Offset(0), Offset(1), 100, first=True) is None
    assert cache.take(LogId(2), Offset(0), Offset(1), 100, first=True) == [b"x"]
    assert cache.size == 1 + ENTRY_BYTES
    cache.put(LogId(1), Offset(7), Offset(8), b"y")
    assert cache.take(LogId(1), Offset(7), Offset(8), 100, first=True) == [b"y"]


class Machine(RuleBasedStateMachine):
    """Beside a list of (log, base, end, batch) in the order of their coming."""

    bytes_max = 2_000

    def __init__(self) -> None:
        super().__init__()
        self.cache = TailCache(self.bytes_max)
        self.kept: list[tuple[int, int, int, bytes]] = []
        self.ends = {0: 0, 1: 0, 2: 0}

    log = st.integers(0, 2)

    @rule(log=log, sizes=st.lists(st.integers(1, 60), min_size=1, max_size=30), records=st.integers(1, 3))
    def put(self, log: int, sizes: list[int], records: int) -> None:
        for size in sizes:
            base = self.ends[log]
            self.ends[log] = base + records
            batch = bytes([log]) * size
            self.kept.append((log, base, base + records, batch))
            while sum(len(kept[3]) + ENTRY_BYTES for kept in self.kept) > self.bytes_max:
                del self.kept[0]
            self.cache.put(LogId(log), Offset(base), Offset(base + records), batch)

    @rule(log=log, bases=st.lists(st.integers(0, 120), max_size=3))
    def forget(self, log: int, bases: list[int]) -> None:
        self.cache.forget(LogId(log), [Offset(base) for base in bases])
        self.kept = [kept for kept in self.kept if kept[0] != log or kept[1] > max(bases, default=-1)]

    @rule(log=log)
    def forget_all(self, log: int) -> None:
        self.forget(log, [self.ends[log]])

    @rule(log=log)
    def drop(self, log: int) -> None:
        self.cache.drop({LogId(log)})
        self.kept = [kept for kept in self.kept if kept[0] != log]

    @invariant()
    def same(self) -> None:
        assert self.cache.size == sum(len(kept[3]) + ENTRY_BYTES for kept in self.kept)
        for log, end in self.ends.items():
            mine = [kept for kept in self.kept if kept[0] == log]
            for offset in range(max(0, end - 25), end + 1):
                found = self.cache.take(LogId(log), Offset(offset), Offset(end), 10_000, first=True)
                wanted = [kept[3] for kept in mine if kept[2] > offset] if mine and mine[0][1] <= offset < end else None
                assert found == wanted


class Roomy(Machine):
    """Nothing is ever put out for want of room: what was forgotten must leave nothing behind all the same."""

    bytes_max = 1_000_000


TestForgetting = Machine.TestCase
TestForgetting.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestForgettingWithRoom = Roomy.TestCase
TestForgettingWithRoom.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)


def test_what_was_forgotten_leaves_nothing_behind() -> None:
    cache = TailCache(1 << 20)
    cache.put(LogId(2), Offset(0), Offset(1), b"stays")
    for base in range(20_000):
        cache.put(LogId(1), Offset(base), Offset(base + 1), b"x")
        cache.forget(LogId(1), [Offset(base)])
    assert len(cache._order) < 3_000
    assert cache.size == 5 + ENTRY_BYTES
    assert cache.take(LogId(2), Offset(0), Offset(1), 100, first=True) == [b"stays"]
