"""The full checker: one hand-made history for each anomaly and for each thing that is allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ErrorCode
from headrace_verify.checker import Outcome
from headrace_verify.checker_history import (
    F,
    Operation,
    Polled,
    Sent,
    Type,
    from_lines,
    merge_histories,
    outcome_of_send,
    outcome_of_transaction,
    pair_calls,
    to_line,
)
from headrace_verify.checker_order import components
from headrace_verify.checker_txn import Judgement, check_exactly_once, check_history

Made = tuple[int, Type, F, tuple[Sent | Polled | str, ...]]
OK, FAIL, INFO = Type.OK, Type.FAIL, Type.INFO


def send(process: int, key: str, value: int, offset: int | None, end: Type = OK) -> list[Made]:
    """A whole send."""
    call, done = (Sent(key, value),), (Sent(key, value, offset),)
    return [(process, Type.INVOKE, F.SEND, call), (process, end, F.SEND, done)]


def txn(process: int, *micros: Sent | Polled, end: Type = OK) -> list[Made]:
    """A whole transaction."""
    return [(process, Type.INVOKE, F.TXN, ()), (process, end, F.TXN, micros)]


def poll(process: int, key: str, *points: tuple[int, int]) -> list[Made]:
    """A whole poll."""
    return [(process, Type.INVOKE, F.POLL, ()), (process, OK, F.POLL, (Polled({key: points}),))]


def assign(process: int, *keys: str, f: F = F.ASSIGN) -> list[Made]:
    """Positions from the beginning."""
    return [(process, Type.INVOKE, f, keys), (process, OK, f, keys)]


def sent(process: int, key: str, values: int) -> list[Made]:
    """Values 0, 1, ... at offsets of the same number."""
    return [entry for n in range(values) for entry in send(process, key, n, n)]


def history(*parts: list[Made]) -> list[Operation]:
    """Numbered."""
    flat = [entry for part in parts for entry in part]
    return [Operation(n, process, type_, f, value) for n, (process, type_, f, value) in enumerate(flat)]


def points(*found: tuple[int, int], key: str = "k") -> Polled:
    return Polled({key: found})


def judged(*parts: list[Made], read_committed: bool = True) -> Judgement:
    return check_history(history(*parts), read_committed=read_committed)


def test_a_part_of_a_batch_may_be_there_while_the_rest_is_not_or_not_yet() -> None:
    verdict = judged(
        [(1, Type.INVOKE, F.SEND, (Sent("k", 1), Sent("j", 2)))],
        poll(2, "k", (0, 1)),
        send(2, "j", 9, 0),
        [(1, INFO, F.SEND, (Sent("k", 1, 0), Sent("j", 2)))],
        assign(2, "k", "j"),
        poll(2, "k", (0, 1)),
        poll(2, "j", (0, 9), (1, 2)),
    )
    assert verdict.counts == {}, "records of a batch are no transaction: 2 came after 9, and 1 was read before it"
    assert (verdict.sends_ok, verdict.sends_unknown) == (2, 1)


def test_a_sound_history_has_no_anomaly() -> None:
    verdict = judged(
        assign(2, "k", "j"),
        send(1, "k", 1, 0),
        txn(1, Sent("k", 2, 1), Sent("j", 7, 0)),
        txn(1, Sent("k", 3, 3), Sent("j", 8, 2), end=FAIL),
        txn(1, Sent("k", 4), end=INFO),
        txn(2, points((0, 1), (1, 2)), Sent("j", 9, 4)),
        assign(2, "k", "j"),
        poll(2, "k", (0, 1), (1, 2)),
        poll(2, "j", (0, 7), (4, 9)),
    )
    assert verdict.counts == {}
    assert verdict.allowed == {}
    assert verdict.transactions == {Outcome.OK: 2, Outcome.FAIL: 1, Outcome.INFO: 1}
    assert (verdict.sends_ok, verdict.sends_unknown, verdict.read) == (4, 1, 4)


def send_batch(process: int, *micros: Sent, end: Type = OK) -> list[Made]:
    """Several sends in one call."""
    return [(process, Type.INVOKE, F.SEND, micros), (process, end, F.SEND, micros)]


ANOMALIES: list[tuple[str, list[list[Made]]]] = [
    (
        "inconsistent-offsets",
        [send(1, "k", 1, 0), send(1, "k", 9, 0, INFO), poll(2, "k", (0, 1)), poll(3, "k", (0, 9))],
    ),
    ("duplicate", [send(1, "k", 1, 0), assign(2, "k"), poll(2, "k", (0, 1), (1, 1))]),
    ("lost-write", [sent(1, "k", 2), poll(2, "k", (1, 1))]),
    ("unseen", [sent(1, "k", 2), poll(2, "k", (0, 0))]),
    ("unseen", [send(1, "k", 0, None)]),
    (  # one of a batch had no answer, the other was acknowledged
        "lost-write",
        [send_batch(1, Sent("k", 1, 0), Sent("k", 2), end=INFO), send(2, "k", 3, 2), poll(2, "k", (2, 3))],
    ),
    ("unseen", [send_batch(1, Sent("k", 1, 0), Sent("j", 2, 0)), poll(2, "k", (0, 1))]),
    ("nonmonotonic-send", [send_batch(1, Sent("k", 1, 1), Sent("k", 2, 0)), poll(2, "k", (0, 2), (1, 1))]),
    (
        "poll-skip",
        [
            send_batch(1, Sent("k", 1, 0), Sent("k", 2, 1), Sent("j", 3), end=INFO),
            send(2, "k", 4, 2),
            poll(2, "k", (0, 1)),
            poll(2, "k", (2, 4)),
            poll(3, "k", (1, 2)),
        ],
    ),
    ("G1a", [send(1, "k", 1, None, FAIL), poll(2, "k", (0, 1))]),
    ("G1a", [txn(1, Sent("k", 1, 0), end=FAIL), poll(2, "k", (0, 1))]),
    ("G1a", [txn(1, Sent("k", 1, 0), end=FAIL), txn(2, points((0, 1)), end=FAIL)]),
    ("never-sent", [poll(2, "k", (0, 1))]),
    ("precommitted-read", [txn(1, Sent("k", 1, 0), points((0, 1)))]),
    ("poll-skip", [sent(1, "k", 3), poll(2, "k", (0, 0)), poll(2, "k", (2, 2)), poll(3, "k", (0, 0), (1, 1))]),
    ("poll-skip", [sent(1, "k", 3), txn(2, points((0, 0)), points((2, 2))), poll(3, "k", (0, 0), (1, 1), (2, 2))]),
    (  # aborted, it must go on at 1
        "poll-skip",
        [sent(1, "k", 3), poll(2, "k", (0, 0)), txn(2, points((1, 1)), end=FAIL), poll(2, "k", (2, 2))],
    ),
    ("nonmonotonic-poll", [sent(1, "k", 2), poll(2, "k", (0, 0), (1, 1)), poll(2, "k", (0, 0))]),
    ("nonmonotonic-poll", [sent(1, "k", 1), txn(2, points((0, 0))), txn(2, points((0, 0)))]),
    (  # called together, so that time says nothing
        "nonmonotonic-send",
        [txn(1, Sent("k", 1, 5), Sent("k", 2, 3)), poll(2, "k", (3, 2), (5, 1))],
    ),
    ("torn-transaction", [txn(1, Sent("k", 1), Sent("j", 2), end=INFO), poll(2, "k", (0, 1))]),
    (  # 2 was sent when 1 was known to be there, and is before it
        "G0-realtime",
        [send(1, "k", 1, 7), send(2, "k", 2, 6), poll(3, "k", (6, 2), (7, 1))],
    ),
    (  # 1 was read; then 2 was sent, and is before it
        "G1c",
        [
            [(1, Type.INVOKE, F.SEND, (Sent("k", 1),))],
            poll(3, "k", (7, 1)),
            send(2, "k", 2, 6),
            [(1, OK, F.SEND, (Sent("k", 1, 7),))],
            poll(4, "k", (6, 2), (7, 1)),
        ],
    ),
    ("G1c", [poll(3, "k", (0, 1)), send(1, "k", 1, 0)]),
    (  # two transactions read each other
        "G1c",
        [
            [(1, Type.INVOKE, F.TXN, ()), (2, Type.INVOKE, F.TXN, ())],
            [(1, OK, F.TXN, (Sent("k", 1, 0), points((0, 2), key="j")))],
            [(2, OK, F.TXN, (Sent("j", 2, 0), points((0, 1))))],
        ],
    ),
    (  # read by somebody who had finished when another was called, whom the writer read
        "G1c",
        [
            [(1, Type.INVOKE, F.TXN, ())],
            txn(2, points((0, 1))),
            send(3, "j", 3, 0),
            [(1, OK, F.TXN, (points((0, 3), key="j"), Sent("k", 1, 0)))],
        ],
    ),
]


@pytest.mark.parametrize(("anomaly", "parts"), ANOMALIES)
def test_each_anomaly_is_found_and_only_it(anomaly: str, parts: list[list[Made]]) -> None:
    verdict = judged(*parts)
    assert set(verdict.counts) == {anomaly}, verdict.describe()
    assert verdict.allowed == {}


def interleaved_writes() -> list[list[Made]]:
    """Two transactions at once; in one key the first is before the second, in another behind it."""
    return [
        [(1, Type.INVOKE, F.TXN, ()), (2, Type.INVOKE, F.TXN, ())],
        [(1, OK, F.TXN, (Sent("k", 1, 0), Sent("j", 1, 1)))],
        [(2, OK, F.TXN, (Sent("j", 2, 0), Sent("k", 2, 1)))],
        poll(3, "k", (0, 1), (1, 2)),
        poll(3, "j", (0, 2), (1, 1)),
    ]


def test_transactions_do_not_isolate_their_writes() -> None:
    verdict = judged(*interleaved_writes())
    assert verdict.counts == {}
    assert list(verdict.allowed) == ["G0"]


def test_what_interleaves_may_read_the_one_that_was_committed_first() -> None:
    """The second reads the first, and has an offset below one of the first's: nothing is wrong with that."""
    verdict = judged(
        [(1, Type.INVOKE, F.TXN, ()), (2, Type.INVOKE, F.TXN, ())],
        [(1, OK, F.TXN, (Sent("k", 1, 1), Sent("j", 1, 0)))],
        [(2, OK, F.TXN, (Sent("k", 2, 0), points((0, 1), key="j")))],
        poll(3, "k", (0, 2), (1, 1)),
    )
    assert verdict.counts == {}


def test_sends_of_others_may_be_between_those_of_a_transaction() -> None:
    verdict = judged(
        [(1, Type.INVOKE, F.TXN, ())],
        send(2, "k", 9, 1),
        [(1, OK, F.TXN, (Sent("k", 1, 0), Sent("k", 2, 2)))],
        poll(3, "k", (0, 1), (1, 9), (2, 2)),
    )
    assert verdict.counts == {}
    assert set(verdict.allowed) == {"send-skip", "G0"}


@pytest.mark.parametrize("name", ["poll-skip", "nonmonotonic-poll"])
def test_positions_that_a_group_chooses_may_move(name: str) -> None:
    parts = next(parts for anomaly, parts in ANOMALIES if anomaly == name)
    verdict = judged(assign(2, "k", f=F.SUBSCRIBE), *parts)
    assert verdict.counts == {}
    assert list(verdict.allowed) == [name]


def test_who_assigns_after_subscribing_is_followed_again() -> None:
    _, parts = next(one for one in ANOMALIES if one[0] == "poll-skip")
    assert set(judged(assign(2, "k", f=F.SUBSCRIBE), assign(2, "k"), *parts).counts) == {"poll-skip"}


@pytest.mark.parametrize(
    "between",
    [assign(2, "k"), assign(2, "k", f=F.SUBSCRIBE), assign(2, "k", f=F.CRASH), txn(2, points(), end=INFO)],
)
def test_nothing_is_known_of_positions_after_a_change(between: list[Made]) -> None:
    verdict = judged(sent(1, "k", 3), poll(2, "k", (0, 0), (1, 1), (2, 2)), between, poll(2, "k", (0, 0)))
    assert verdict.counts == {}


def test_an_aborted_transaction_puts_the_reader_back() -> None:
    verdict = judged(
        sent(1, "k", 3), poll(2, "k", (0, 0)), txn(2, points((1, 1), (2, 2)), end=FAIL), poll(2, "k", (1, 1), (2, 2))
    )
    assert verdict.counts == {}


def test_who_reads_what_is_not_committed_reads_what_is_aborted() -> None:
    parts = [txn(1, Sent("k", 1, 0), points((0, 1)), end=FAIL), txn(1, Sent("k", 2, 2), points((2, 2)), end=OK)]
    assert judged(*parts, read_committed=False).counts == {}
    assert set(judged(*parts).counts) == {"G1a", "precommitted-read"}


def test_an_unknown_send_may_be_missing() -> None:
    assert judged(send(1, "k", 1, 0, INFO), txn(1, Sent("k", 2), Sent("j", 3), end=INFO)).counts == {}


def test_a_call_that_never_returned_is_unknown() -> None:
    entries = history([(1, Type.INVOKE, F.SEND, (Sent("k", 1),))], poll(2, "k", (0, 1)))
    assert check_history(entries).counts == {}
    assert pair_calls(entries)[0].outcome is Outcome.INFO
    assert pair_calls(entries)[0].returned is None


@pytest.mark.parametrize(
    "entries",
    [
        [Operation(0, 1, Type.OK, F.SEND)],
        [Operation(0, 1, Type.INVOKE, F.SEND), Operation(1, 1, Type.INVOKE, F.SEND)],
        [Operation(0, 1, Type.INVOKE, F.SEND), Operation(1, 1, Type.OK, F.POLL)],
        [Operation(1, 1, Type.INVOKE, F.SEND), Operation(1, 1, Type.OK, F.SEND)],
    ],
)
def test_what_is_no_history_is_refused(entries: list[Operation]) -> None:
    with pytest.raises(ValueError, match="index"):
        check_history(entries)


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (ErrorCode.NONE, Outcome.OK),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, Outcome.FAIL),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, Outcome.FAIL),
        (ErrorCode.PRODUCER_FENCED, Outcome.FAIL),
        (ErrorCode.INVALID_PRODUCER_EPOCH, Outcome.FAIL),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, Outcome.FAIL),
        (ErrorCode.REQUEST_TIMED_OUT, Outcome.INFO),
        (ErrorCode.NETWORK_EXCEPTION, Outcome.INFO),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, Outcome.INFO),
        (ErrorCode.UNKNOWN_SERVER_ERROR, Outcome.INFO),
    ],
)
def test_what_the_error_of_a_send_says(code: ErrorCode, outcome: Outcome) -> None:
    assert outcome_of_send(code) is outcome


def test_what_the_end_of_a_transaction_says() -> None:
    assert outcome_of_transaction(ErrorCode.NONE) is Outcome.OK
    assert outcome_of_transaction(None, ErrorCode.NONE) is Outcome.FAIL
    assert outcome_of_transaction(ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE) is Outcome.FAIL
    assert outcome_of_transaction(ErrorCode.PRODUCER_FENCED) is Outcome.INFO  # an earlier attempt may have committed
    assert outcome_of_transaction(None, ErrorCode.PRODUCER_FENCED) is Outcome.INFO
    assert outcome_of_transaction(None) is Outcome.INFO


def test_a_history_survives_the_disk_and_a_merge(tmp_path: Path) -> None:
    entries = history(
        assign(2, "k"), send(1, "k", 1, 0), txn(1, Sent("k", 2), Polled({"k": ((0, 1),), "j": ()}), end=INFO)
    )
    timed = [Operation(e.index, e.process, e.type, e.f, e.value, time_ns=100 - e.index) for e in entries]
    file = tmp_path / "history"
    file.write_bytes(b"".join(to_line(entry) + b"\n" for entry in timed))
    assert list(from_lines(file.read_bytes().splitlines())) == timed
    assert [e.index for e in merge_histories([timed[:2], timed[2:]])] == list(range(len(timed)))
    assert [e.time_ns for e in merge_histories([timed[:2], timed[2:]])] == sorted(e.time_ns for e in timed)


# --- exactly once ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("anomaly", "outputs", "committed"),
    [
        (None, [("i", 0), ("i", 2)], 3),
        (None, [("i", 0), ("i", 2)], 5),
        (None, [("i", 0)], 1),
        ("missing-output", [("i", 0)], 3),
        ("double-output", [("i", 0), ("i", 0)], 1),
        ("early-output", [("i", 0), ("i", 2)], 1),
        ("invented-output", [("i", 0), ("i", 1)], 1),
        ("invented-output", [("i", 0), ("j", 0)], 1),
    ],
)
def test_consumed_offsets_and_outputs_agree(
    anomaly: str | None, outputs: list[tuple[str, int]], committed: int
) -> None:
    verdict = check_exactly_once({"i": [0, 2, 5]}, outputs, {"i": committed})
    assert set(verdict.counts) == ({anomaly} if anomaly else set())


def test_what_was_never_committed_has_no_output() -> None:
    assert check_exactly_once({"i": [0]}, [], {}).counts == {}
    assert set(check_exactly_once({"i": [0]}, [("i", 0)], {}).counts) == {"early-output"}


# --- against an oracle -----------------------------------------------------------------------------------------


def reachable(edges: Iterable[tuple[int, int]], size: int) -> list[list[bool]]:
    """By the definition."""
    table = [[False] * size for _ in range(size)]
    for a, b in edges:
        table[a][b] = True
    for middle in range(size):
        for a in range(size):
            for b in range(size):
                table[a][b] = table[a][b] or (table[a][middle] and table[middle][b])
    return table


@given(st.integers(1, 7).flatmap(lambda size: st.tuples(st.just(size), edges_below(size))))
def test_components_are_what_reaches_each_other(drawn: tuple[int, list[tuple[int, int]]]) -> None:
    size, edges = drawn
    table = reachable(edges, size)
    after = [sorted(b for a, b in edges if a == node) for node in range(size)]
    starts = [sum(map(len, after[:node])) for node in range(size + 1)]
    found = {frozenset(c) for c in components(range(size), starts, [b for row in after for b in row])}
    assert found == {
        frozenset(b for b in range(size) if table[a][b] and table[b][a]) for a in range(size) if table[a][a]
    }


def edges_below(size: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    return st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)), max_size=14)


Step = Callable[["Played"], None]


class Played:
    """A partition pair with transactions that do what they should; each step appends, reads or decides."""

    def __init__(self) -> None:
        self.entries: list[Operation] = []
        self.log: dict[str, list[tuple[int, int]]] = {"k": [], "j": []}
        self.ended: dict[int, bool] = {}
        self.open: dict[int, tuple[int, list[Sent | Polled]]] = {}
        self.numbers = 0
        self.at: dict[tuple[int, str], int] = {}
        self.before: dict[int, dict[tuple[int, str], int]] = {}

    def note(self, process: int, type_: Type, f: F, value: tuple[Sent | Polled, ...] = ()) -> None:
        self.entries.append(Operation(len(self.entries), process, type_, f, value))

    def begin(self, process: int) -> None:
        if process not in self.open:
            self.numbers += 1
            self.open[process] = (self.numbers, [])
            self.before[process] = dict(self.at)
            self.note(process, Type.INVOKE, F.TXN)

    def append(self, process: int, key: str) -> None:
        if process in self.open:
            number, micros = self.open[process]
            self.numbers += 1
            self.log[key].append((number, self.numbers))
            micros.append(Sent(key, self.numbers, len(self.log[key]) - 1))

    def visible(self, key: str) -> list[tuple[int, int]]:
        found = []
        for offset, (number, value) in enumerate(self.log[key]):
            if number not in self.ended:
                break
            if self.ended[number]:
                found.append((offset, value))
        return found

    def read(self, process: int, key: str) -> None:
        if process in self.open:
            at = self.at.get((process, key), 0)
            got = tuple(point for point in self.visible(key) if point[0] >= at)[:2]
            if got:
                self.at[process, key] = got[-1][0] + 1
            self.open[process][1].append(Polled({key: got}))

    def end(self, process: int, type_: Type, commit: bool) -> None:
        if process in self.open:
            number, micros = self.open.pop(process)
            self.ended[number] = commit if type_ is Type.INFO else type_ is Type.OK
            if not self.ended[number]:
                self.at = {p: a for p, a in self.at.items() if p[0] != process}
                self.at |= {p: a for p, a in self.before[process].items() if p[0] == process}
            self.note(process, type_, F.TXN, tuple(micros))

    def finish(self) -> None:
        for process in list(self.open):
            self.end(process, Type.INFO, commit=True)
        for key in self.log:
            self.note(9, Type.INVOKE, F.POLL)
            self.note(9, Type.OK, F.POLL, (Polled({key: tuple(self.visible(key))}),))


PROCESS, KEY = st.integers(0, 3), st.sampled_from("kj")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), PROCESS),
        st.tuples(st.just("append"), PROCESS, KEY),
        st.tuples(st.just("read"), PROCESS, KEY),
        st.tuples(st.just("end"), PROCESS, st.sampled_from((OK, FAIL, INFO)), st.booleans()),
    ),
    max_size=60,
)


@given(STEPS)
def test_what_a_sound_log_does_is_never_an_anomaly(steps: list[tuple[str, ...]]) -> None:
    played = Played()
    for name, *rest in steps:
        getattr(played, name)(*rest)
    played.finish()
    verdict = check_history(played.entries)
    assert verdict.counts == {}, verdict.describe()
