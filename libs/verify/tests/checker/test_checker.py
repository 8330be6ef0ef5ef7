"""One hand-made history for each anomaly, and one without any."""

from __future__ import annotations

import pytest

from headrace_verify.checker import Assign, Operation, Outcome, Poll, Send, check

OK, FAIL, INFO = Outcome.OK, Outcome.FAIL, Outcome.INFO

SOUND: list[Operation] = [
    Send(1, OK, "t-0", 1, 0),
    Send(1, INFO, "t-0", 2),
    Send(1, OK, "t-0", 3, 2),
    Poll(2, (("t-0", 0, 1), ("t-0", 1, 2))),
    Poll(2, (("t-0", 2, 3),)),
    Assign(2),
    Poll(2, (("t-0", 0, 1), ("t-0", 1, 2), ("t-0", 2, 3))),
]


def test_a_sound_history_has_no_anomaly() -> None:
    verdict = check(SOUND)
    assert verdict.counts == {}
    assert (verdict.sends_ok, verdict.sends_unknown, verdict.read) == (2, 1, 3)


def test_an_unknown_send_may_be_missing() -> None:
    assert check([Send(1, INFO, "t-0", 1), Assign(2)]).counts == {}


@pytest.mark.parametrize(
    ("anomaly", "history"),
    [
        ("inconsistent-offsets", [Send(1, OK, "k", 1, 0), Poll(2, (("k", 0, 1),)), Poll(3, (("k", 0, 9),))]),
        ("duplicate", [Send(1, OK, "k", 1, 0), Poll(2, (("k", 0, 1), ("k", 1, 1)))]),
        ("lost-write", [Send(1, OK, "k", 1, 0), Send(1, OK, "k", 2, 1), Poll(2, (("k", 1, 2),))]),
        ("unseen", [Send(1, OK, "k", 1, 0), Send(1, OK, "k", 2, 1), Poll(2, (("k", 0, 1),))]),
        ("g1a", [Send(1, FAIL, "k", 1), Poll(2, (("k", 0, 1),))]),
        (
            "poll-skip",
            [
                *(Send(1, OK, "k", n, n) for n in range(3)),
                Poll(2, (("k", 0, 0),)),
                Poll(2, (("k", 2, 2),)),
                Poll(3, (("k", 0, 0), ("k", 1, 1))),
            ],
        ),
        (
            "nonmonotonic-poll",
            [*(Send(1, OK, "k", n, n) for n in range(2)), Poll(2, (("k", 0, 0), ("k", 1, 1))), Poll(2, (("k", 0, 0),))],
        ),
        (
            "g0-realtime",  # 2 began when 1 was acknowledged, and is before it
            [
                Send(1, OK, "k", 1, 7, time_ns=20, began_ns=10),
                Send(2, OK, "k", 2, 6, time_ns=40, began_ns=30),
                Poll(3, (("k", 6, 2), ("k", 7, 1)), time_ns=50),
            ],
        ),
        (
            "g1c",  # 1 was read; then 2 began, and is before it
            [
                Send(1, INFO, "k", 1, time_ns=90, began_ns=10),
                Poll(3, (("k", 7, 1),), time_ns=20),
                Send(2, OK, "k", 2, 6, time_ns=40, began_ns=30),
                Poll(4, (("k", 6, 2), ("k", 7, 1)), time_ns=50),
            ],
        ),
        ("g1c", [Poll(3, (("k", 0, 1),), time_ns=20), Send(1, OK, "k", 1, 0, time_ns=40, began_ns=30)]),
        (
            "nonmonotonic-send",
            [Send(1, OK, "k", 1, 5), Send(1, OK, "k", 2, 3), Poll(2, (("k", 3, 2), ("k", 5, 1)))],
        ),
    ],
)
def test_each_anomaly_is_found_and_only_it(anomaly: str, history: list[Operation]) -> None:
    assert set(check(history).counts) == {anomaly}


def test_sends_that_overlap_may_have_any_order() -> None:
    history = [
        Send(1, OK, "k", 1, 7, time_ns=35, began_ns=10),
        Send(2, OK, "k", 2, 6, time_ns=40, began_ns=30),
        Poll(3, (("k", 6, 2), ("k", 7, 1)), time_ns=45),
        Send(2, OK, "k", 3, 8, time_ns=60, began_ns=50),
        Poll(3, (("k", 8, 3),), time_ns=70),
    ]
    assert check(history).counts == {}


def test_positions_chosen_anew_have_no_tie_to_those_before() -> None:
    history = [*SOUND[:5], Assign(2), Poll(2, (("t-0", 0, 1),)), Assign(2), Poll(2, (("t-0", 2, 3),))]
    assert check(history).counts == {}
