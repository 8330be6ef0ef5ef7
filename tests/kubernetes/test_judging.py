"""What the harness makes of notes, pods and figures, without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_verify.availability import SECOND

from .connect_shop import Window as ShopWindow
from .connect_shop import judge as judge_shop
from .history import History, read_line
from .kube import Failed, NotInTime, call, is_ready, restarts, wait_until, waiting_reasons
from .life import quantity, ready_seconds, requested
from .notes import commands
from .pod.shop import gaps
from .pod.written import FINAL, PRODUCER, STEP
from .release import rolled_out
from .results import Result, Window, summary
from .streams_apps import judge as judge_counts

NOTES = """Headrace is installed.

Make a topic, write to it, read it:

  kubectl -n data rollout status sts/headrace-broker
  echo hello | kubectl -n data exec -i headrace-admin-0 -- \\
    headrace produce first
    $ kubectl -n data exec headrace-admin-0 -- headrace consume first -n 1

kubectl is not at the start of an indented line here.
  Warning: nothing is encrypted.
"""


def test_commands_of_the_notes_are_taken_whole_and_in_order() -> None:
    assert commands(NOTES) == [
        "kubectl -n data rollout status sts/headrace-broker",
        "echo hello | kubectl -n data exec -i headrace-admin-0 -- headrace produce first",
        "kubectl -n data exec headrace-admin-0 -- headrace consume first -n 1",
    ]


# --- pods -------------------------------------------------------------------------------------------------------


def pod(**changes: Any) -> dict[str, Any]:
    status = {
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-22T06:00:07Z"}],
        "containerStatuses": [
            {"restartCount": 1, "state": {"running": {"startedAt": "2026-11-22T06:00:03Z"}}},
            {"restartCount": 2, "state": {"running": {"startedAt": "2026-11-22T06:00:01Z"}}},
        ],
    }
    return {"metadata": {"name": "b-0"}, "spec": {"containers": []}, "status": {**status, **changes}}


def test_a_pod_that_goes_is_not_ready() -> None:
    assert is_ready(pod())
    going = pod()
    going["metadata"]["deletionTimestamp"] = "2026-11-22T06:00:00Z"
    assert not is_ready(going)
    assert not is_ready(pod(conditions=[{"type": "Ready", "status": "False"}]))
    assert not is_ready({"metadata": {}, "status": {}})


def test_pods_say_how_often_they_restarted_and_how_fast_they_were_ready() -> None:
    assert restarts(pod()) == 3
    assert ready_seconds(pod()) == 4


def test_only_what_keeps_a_container_from_running_is_a_reason() -> None:
    pulls = {"state": {"waiting": {"reason": "ImagePullBackOff"}}}
    starts = {"state": {"waiting": {"reason": "PodInitializing"}}}
    assert list(waiting_reasons(pod(containerStatuses=[starts, pulls]))) == ["ImagePullBackOff"]
    assert list(waiting_reasons(pod(initContainerStatuses=[pulls]))) == ["ImagePullBackOff"]


def stateful(**status: Any) -> dict[str, Any]:
    full = {"observedGeneration": 2, "replicas": 3, "readyReplicas": 3, "updatedReplicas": 3}
    revisions = {"currentRevision": "r2", "updateRevision": "r2"}
    return {"metadata": {"generation": 2}, "spec": {"replicas": 3}, "status": {**full, **revisions, **status}}


@pytest.mark.parametrize(
    "lack",
    [
        {"observedGeneration": 1},
        {"replicas": 4},
        {"readyReplicas": 2},
        {"updatedReplicas": 1},
        {"currentRevision": "r1"},
    ],
)
def test_a_workload_is_rolled_out_when_nothing_is_lacking(lack: dict[str, Any]) -> None:
    assert rolled_out(stateful())
    assert not rolled_out(stateful(**lack))


def test_quantities() -> None:
    assert [quantity(text) for text in ("150m", "1", "2Gi", "1500M", "0")] == [0.15, 1, 2**31, 1.5e9, 0]
    asks = {"spec": {"containers": [{"resources": {"requests": {"cpu": "150m"}}}, {"resources": {}}]}}
    assert requested([asks, asks], "cpu") == pytest.approx(0.3)


# --- commands ---------------------------------------------------------------------------------------------------


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(Failed, match="ended with 3: no such thing"):
        call(["sh", "-c", "echo no such thing >&2; exit 3"], None, 10)
    with pytest.raises(Failed, match="not done in 0 s"):
        call(["sleep", "10"], None, 0.01)
    assert call(["cat"], "given", 10) == "given"


def test_waiting_ends_with_what_was_said_last() -> None:
    answers = iter([False, True])
    assert wait_until("it", lambda: next(answers), 10, 0.001) >= 0

    def refuse() -> bool:
        raise Failed(["ask"], 1, "not yet")

    with pytest.raises(NotInTime, match="it; ask ended with 1: not yet"):
        wait_until("it", refuse, 0.01, 0.001)


# --- results ----------------------------------------------------------------------------------------------------


def history(*, silent: tuple[float, float] = (0, 0), in_sync: int = 3, lost: bool = False) -> History:
    """Ten seconds of one record each 0.1 s on one partition; the clock of the pod is 100 s behind."""
    lines = [f"C {5 * SECOND} {105 * SECOND}", f"I 0 t 0 1 {in_sync} 3"]
    offset = 0
    for n in range(1, 101):
        at = n * SECOND // 10
        if not silent[0] < n / 10 < silent[1]:
            lines.append(f"S {PRODUCER} t-0 {n * STEP + PRODUCER} 1 ok {offset} {at - 50} {at}")
            if not (lost and n == 50):
                lines.append(f"P {FINAL} {20 * SECOND} t-0:{offset}:{n * STEP + PRODUCER}:1")
            offset += 1
    found = History()
    for line in lines:
        read_line(found, line.split())
    return found


def judged(
    found: History, *, planned: bool = True, gap_target: float | None = 1.0, back_target: float | None = None
) -> Result:
    result = Result("one")
    result.windows.append(Window("roll", planned, gap_target, back_target, 102 * SECOND, 108 * SECOND))
    result.judge(found)
    return result


def test_a_sound_window_has_figures_and_no_problems() -> None:
    result = judged(history(silent=(4, 4.5)))
    assert result.sound
    [figure] = result.figures
    assert figure.value == pytest.approx(0.5)
    assert not figure.missed
    assert (result.acknowledged, result.read, result.windows) == (96, 96, [])


def test_gaps_above_the_target_are_missed_and_far_above_are_unsound() -> None:
    result = judged(history(silent=(3, 5)))
    assert result.figures[0].missed
    assert result.sound
    assert "MISSED" in result.text()
    assert not judged(history(silent=(3, 7))).sound


def test_what_the_checker_finds_is_unsound() -> None:
    result = judged(history(lost=True))
    assert not result.sound
    assert result.anomalies["lost-write"] == 1
    assert "lost-write" in result.text()


def test_errors_of_clients_are_problems() -> None:
    found = history()
    for number in range(30):
        read_line(found, f"E 11 5 it broke {number}".split())
    result = judged(found)
    assert len(result.problems) == 21
    assert "it broke 0" in result.problems[0]
    assert not result.sound


def test_too_few_in_sync_is_a_problem_of_planned_windows_alone() -> None:
    assert "t-0 had 1 replicas in sync for 6.00 s" in judged(history(in_sync=1)).problems[0]
    assert judged(history(in_sync=1), planned=False).sound
    assert judged(history(in_sync=2)).sound


def test_when_service_is_back_counts_from_the_beginning_of_the_window() -> None:
    result = judged(history(silent=(3, 6)), planned=False, gap_target=None, back_target=60)
    assert [round(figure.value, 3) for figure in result.figures] == [3.0, 4.0]
    silent = judged(history(silent=(3, 11)), planned=False, gap_target=None, back_target=60)
    assert silent.problems == ["roll: a partition was silent to the end"]


def test_a_load_that_is_late_itself_is_told_for_the_window() -> None:
    found = history()
    for line in (f"L {4 * SECOND} 0.7", f"L {5 * SECOND} 1.5", f"L {9 * SECOND} 4"):
        read_line(found, line.split())
    assert any("late by up to 1.5 s" in note for note in judged(found).notes)
    assert not any("late" in note for note in judged(history()).notes)


def test_the_line_at_the_end_tells_what_was_missed() -> None:
    line = summary([judged(history(silent=(3, 5))), judged(history(lost=True))], seed=7)
    assert line["seed"] == 7
    assert not line["sound"]
    assert line["anomalies"] == {"lost-write": 1, "poll-skip": 1}
    assert len(line["missed"]) == 1
    assert line["gaps_s"]["one: roll: longest gap of a partition"] == pytest.approx(0.1)
    assert not summary([])["sound"]


@pytest.mark.parametrize(
    ("numbers", "lost", "twice"),
    [
        ([1, 2, 3], 0, 0),
        ([1, 3], 1, 0),
        ([], 3, 0),
        ([1, 2, 2, 3], 0, 1),
        ([1, 2, 3, 4], 0, 1),
        ([1, 2, 2], 1, 1),
        ([0, 1, 2, 3], 0, 1),
    ],
)
def test_counts_are_every_number_once(numbers: list[int], lost: int, twice: int) -> None:
    result = Result("streams")
    judge_counts(result, {"a": 3}, {"a": numbers} if numbers else {})
    assert (result.anomalies["lost-write"], result.anomalies["duplicate"]) == (lost, twice)
    assert result.sound == (not lost and not twice)


def test_words_that_nobody_sent_are_a_problem() -> None:
    result = Result("streams")
    judge_counts(result, {"a": 1}, {"a": [1], "b": [1]})
    assert result.problems == ["words that nobody sent: ['b']"]


# --- the shop of Connect ----------------------------------------------------------------------------------------


def shop(told: dict[str, Any], read: dict[str, Any]) -> Result:
    """Of three orders and two tickets in each queue, with one window."""
    result = Result("connect")
    made = {"orders": 3, "tickets": {"sales": 2, "support": 2}}
    told = {"copies": 3, "orders": 3, "gaps": [0.5]} | told
    read = {"read": 4, "missing": 0, "twice": 0, "gaps": [0.25]} | read
    judge_shop(result, made, told, read, [ShopWindow("killed", 10.0, 20.0)])
    return result


def test_a_shop_whose_orders_and_tickets_arrived_once_is_sound() -> None:
    result = shop({}, {})
    assert result.sound
    assert (result.acknowledged, result.read) == (7, 7)
    assert [(one.name, one.value) for one in result.figures] == [
        ("killed: longest gap of copies", 0.5),
        ("killed: longest gap of tickets", 0.25),
    ]


@pytest.mark.parametrize(
    ("told", "read", "anomalies"),
    [
        ({"copies": 2, "orders": 2}, {}, {"lost-write": 1}),
        ({"copies": 5}, {}, {"duplicate": 2}),
        ({"copies": 3, "orders": 2}, {}, {"lost-write": 1, "duplicate": 1}),
        ({}, {"read": 2, "missing": 2}, {"lost-write": 2}),
        ({}, {"read": 5, "twice": 1}, {"duplicate": 1}),
    ],
)
def test_what_is_lost_or_twice_in_a_shop_is_found(
    told: dict[str, Any], read: dict[str, Any], anomalies: dict[str, int]
) -> None:
    result = shop(told, read)
    assert not result.sound
    assert dict(result.anomalies) == anomalies


def test_a_gap_is_the_longest_time_of_a_window_without_anything() -> None:
    times = [0.0, 1.0, 1.5, 4.0, 9.0]
    assert gaps(times, ["0,9", "1,2", "1,4", "4.5,5.5", "8,30"]) == [5.0, 0.5, 2.5, 1.0, 21.0]
