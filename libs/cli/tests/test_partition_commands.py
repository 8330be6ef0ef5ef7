"""Moving, electing, balancing and emptying by command: what is asked, what is printed, and how it ends."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from headrace_cli import moving
from headrace_cli.app import app
from headrace_cli.commands import broker
from headrace_cli.commands.local import judge_processes
from headrace_cli.commands.partition import parse_moves, read_moves
from headrace_cli.exits import CommandFailed
from headrace_common.core.errors import ErrorCode
from headrace_proto.v1 import admin_pb2, cluster_pb2
from headrace_proto.v1.errors_pb2 import INVALID_REPLICA_ASSIGNMENT

runner = CliRunner()
ID = bytes(range(16))


def run(*argv: str, code: int = 0) -> Any:
    result = runner.invoke(app, list(argv))
    assert result.exit_code == code, result.output
    return result


def under_way(*numbers: int) -> list[cluster_pb2.Partition]:
    return [
        cluster_pb2.Partition(topic_id=ID, partition=n, replicas=[3, 1], adding=[3], removing=[1], leader=1)
        for n in numbers
    ]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "POLL_SECONDS", 0)
    monkeypatch.setattr(broker, "DRAIN_SECONDS", 0)


def test_moves_are_read_as_they_are_written() -> None:
    assert parse_moves(["a-b-0=1,2", "c:7= 3"]) == {("a-b", 0): [1, 2], ("c", 7): [3]}
    for wrong in ("a=1", "a-0=", "a-0=x", "-0=1", "a-0"):
        with pytest.raises(typer.BadParameter):
            parse_moves([wrong])
    with pytest.raises(typer.BadParameter, match="twice"):
        parse_moves(["a-0=1", "a:0=2"])


def test_files_of_ours_and_of_kafka_are_read_and_others_are_refused(tmp_path: Any) -> None:
    moves = [{"topic": "a", "partition": 0, "replicas": [1, 2], "replicas_before": [1]}]
    for data in (moves, {"moves": moves, "bytes_to_copy": 1}, {"version": 1, "partitions": moves}):
        (tmp_path / "plan").write_text(json.dumps(data))
        assert read_moves(tmp_path / "plan") == {("a", 0): [1, 2]}
    for text in ("{", "{}", "[1]", '[{"topic": "a", "partition": 0, "replicas": []}]', json.dumps(moves * 2)):
        (tmp_path / "plan").write_text(text)
        with pytest.raises(CommandFailed):
            read_moves(tmp_path / "plan")


def test_a_move_is_started_with_its_throttle_waited_for_and_the_throttle_taken_away(stub: Any) -> None:
    stub.moving = under_way(0, 0)
    said = run("partition", "move", "flights-0=3,2", "--throttle", "1000", "--wait").stderr
    rate = "follower.replication.throttled.rate"
    assert stub.asked == [("SET", rate, "1000"), ("reassign", {0: [3, 2]}, False), ("DELETE", rate, "")]
    assert "2 partitions on the move: 2.0 KiB of 4.0 KiB copied, 50 %" in said
    assert "done: 1 partition" in said
    assert stub.moving == []


def test_a_dry_run_sets_no_throttle_and_waits_for_nothing(stub: Any) -> None:
    stub.moving = under_way(0)
    run("partition", "move", "flights-0=3,2", "--throttle", "1000", "--wait", "--dry-run")
    assert stub.asked == [("reassign", {0: [3, 2]}, True)]


def test_a_wait_has_an_end_and_says_that_it_goes_on(stub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "POLL_SECONDS", 0.2)
    stub.moving = under_way(*[0] * 100)  # more than there are looks in a second
    result = run("partition", "move", "flights-0=3,2", "--wait", "--timeout", "1", code=5)
    assert "it goes on by itself" in result.stderr
    assert "partition cancel" in result.stderr


def test_a_refused_partition_ends_the_command_with_its_code_and_a_next_step(stub: Any) -> None:
    stub.refused[1] = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    result = run("partition", "move", "flights-0=1,3", "flights-1=9", code=2)
    assert "1 partition of 2 refused; flights-1: it is not so" in result.stderr
    assert "headrace broker list" in result.stderr
    assert "on the move" in result.stdout
    run("partition", "move", "nope-0=1", code=3)
    run("partition", "move", "flights-9=1", code=3)
    run("partition", "move", code=2)


def test_reassignments_are_shown_with_their_progress(stub: Any) -> None:
    stub.moving = under_way(0)
    shown = json.loads(run("partition", "reassignments", "-o", "json").stdout)
    assert shown["throttle_bytes_per_s"] == 1000
    assert shown["reassignments"][0]["new_replicas"][0]["percent"] == 50
    stub.moving = under_way(0)
    assert "50 %" in run("partition", "move", "--status").stdout
    assert "nothing is under way" in run("partition", "reassignments").stderr


def test_a_move_to_where_it_is_is_not_on_the_move(stub: Any) -> None:
    here = ",".join(map(str, stub.partitions[0].replicas))
    said = run("partition", "move", f"flights-0={here}").stdout
    assert "in place" in said
    assert "on the move" not in said


def test_a_move_that_waits_for_a_broker_that_is_away_says_so(stub: Any) -> None:
    stub.away = {3}
    stub.moving = under_way(0)
    assert json.loads(run("partition", "reassignments", "-o", "json").stdout)["reassignments"][0]["waits_for"] == [3]
    stub.moving = under_way(0)
    assert "3 (away)" in run("partition", "reassignments").stdout
    stub.moving = under_way(0, 0)
    said = run("partition", "move", "flights-0=3,2", "--wait").stderr
    assert "50 %; 2 wait for broker 3, which is away" in said


def test_cancelling_names_partitions_or_takes_all(stub: Any) -> None:
    run("partition", "cancel", code=2)
    run("partition", "cancel", "flights-0")
    stub.moving = under_way(1)
    run("partition", "cancel", "--all")
    assert stub.asked == [("reassign", {0: []}, False), ("reassign", {1: []}, False)]
    assert "nothing is under way" in run("partition", "cancel", "--all").stderr


def test_elections_are_preferred_unless_said_and_the_others_need_a_yes(stub: Any) -> None:
    assert "flights" in run("partition", "elect").stdout
    run("partition", "elect", "flights")
    run("partition", "elect", "flights-1", "--unclean", code=2)
    run("partition", "elect", "--unclean", "--yes", code=2)
    run("partition", "elect", "flights-1", "--without-missing", "--yes")
    run("partition", "elect", "flights:1", "--unclean", "--yes")
    assert stub.asked == [
        ("PREFERRED", []),
        ("PREFERRED", [0, 1]),
        ("WITHOUT_MISSING", [1]),
        ("UNCLEAN", [1]),
    ]


def test_an_election_that_is_not_needed_is_no_failure(stub: Any) -> None:
    stub.refused[0] = ErrorCode.ELECTION_NOT_NEEDED
    assert "nothing to do" in run("partition", "elect", "flights-0").stderr
    stub.refused[0] = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert "topic describe" in run("partition", "elect", "flights-0", code=4).stderr


MOVE = admin_pb2.PlannedMove(
    topic="flights", topic_id=ID, partition=0, replicas_before=[1, 2], replicas=[3, 2], size_bytes=2048
)


def test_a_rebalance_is_planned_unless_told_to_start_and_its_json_can_be_moved(stub: Any, tmp_path: Any) -> None:
    assert "nothing is to be moved" in run("cluster", "rebalance").stderr
    stub.moves = [MOVE]
    (tmp_path / "plan.json").write_text(run("cluster", "rebalance", "--plan", "-o", "json").stdout)
    run("partition", "move", "--from-file", str(tmp_path / "plan.json"))
    stub.moving = under_way(0)
    said = run("cluster", "rebalance", "--execute", "--topic", "flights", "--throttle", "5", "--wait")
    assert "flights-0" in said.stdout
    rate = "follower.replication.throttled.rate"
    assert stub.asked == [
        ("rebalance", [], True, None),
        ("rebalance", [], True, None),
        ("reassign", {0: [3, 2]}, False),
        ("rebalance", ["flights"], False, 5),
        ("DELETE", rate, ""),
        ("PREFERRED", [0]),
    ]
    run("cluster", "rebalance", "--plan", "--execute", code=2)


@pytest.mark.parametrize(("answer", "asked"), [(True, [True, False]), (False, [True])])
def test_at_a_terminal_a_rebalance_shows_its_plan_and_asks(
    stub: Any, monkeypatch: pytest.MonkeyPatch, answer: bool, asked: list[bool]
) -> None:
    stub.moves = [MOVE]
    monkeypatch.setattr("headrace_cli.commands.cluster.agreed", lambda question: answer)
    assert "flights-0" in run("cluster", "rebalance").stdout
    assert [only_validated for _, _, only_validated, _ in stub.asked] == asked
    stub.asked.clear()
    run("cluster", "rebalance", "--dry-run")
    assert len(stub.asked) == 1, "who asks for the plan is not asked"


def test_a_decommission_is_waited_for_until_nothing_is_left(stub: Any) -> None:
    stub.replicas_left = [2, 2, 1, 0]
    assert "stop it" in run("broker", "decommission", "1", "--wait").stderr
    assert stub.asked == [("decommission", 1, False)] + [("decommission", 1, True)] * 3
    stub.moves = [admin_pb2.PlannedMove(topic="flights", error=INVALID_REPLICA_ASSIGNMENT, message="no")]
    assert "could not be moved" in run("broker", "decommission", "1", "--wait", code=1).stderr
    assert json.loads(run("broker", "decommission", "1", "--dry-run", "-o", "json", code=1).stdout)["moves"]


def test_draining_says_whether_the_broker_may_be_stopped(stub: Any) -> None:
    assert "may be stopped" in run("broker", "drain", "1").stderr
    said = run("broker", "drain", "2").stderr
    assert "leads 1 partition that nobody else can lead now: no other replica is in sync, or there is none" in said
    assert "cluster health" not in said, "that a lone replica leads is not unhealthy"
    assert "partition elect" in run("broker", "undrain", "1").stderr
    run("broker", "unregister", "1", code=2)
    run("broker", "unregister", "1", "--yes")
    assert stub.asked == [("drain", 1, True), ("drain", 2, True), ("drain", 1, False), ("unregister", 1)]


def test_the_throttle_is_shown_and_changed(stub: Any) -> None:
    assert json.loads(run("partition", "throttle", "-o", "json").stdout) == {"bytes_per_s": 1000}
    run("partition", "throttle", "2000")
    assert "off" in run("partition", "throttle", "off").stderr
    run("partition", "throttle", "-5", code=2)
    run("partition", "throttle", "fast", code=2)
    rate = "follower.replication.throttled.rate"
    assert stub.asked == [("SET", rate, "2000"), ("DELETE", rate, "")]


def test_a_cluster_that_cannot_be_asked_is_judged_by_its_processes() -> None:
    roles = ["broker", "broker", "admin"]
    assert judge_processes(roles, ["admin"], "admin-1 is dead")[0] == "degraded"
    called, verdict = judge_processes(roles, roles, "all are dead")
    assert called == "unavailable"
    assert "0 brokers run; all are dead" in verdict
    assert judge_processes(roles, [], "")[1] == (
        "degraded: the cluster cannot be asked, 2 brokers run; no admin service answers; look into their logs"
    )


def test_who_may_not_ask_how_a_cluster_is_hears_nothing_bad_of_it() -> None:
    roles = ["broker", "broker", "admin"]
    called, verdict = judge_processes(roles, [], "", "User:alice may not DESCRIBE CLUSTER")
    assert called == "unknown"
    assert verdict.startswith("unknown: all 3 processes run; ")
    assert verdict.endswith("User:alice may not DESCRIBE CLUSTER")
    assert "logs" not in verdict
    called, verdict = judge_processes(roles, ["broker"], "broker-1 is dead", "User:alice may not DESCRIBE CLUSTER")
    assert called == "degraded"
    assert "1 brokers run; broker-1 is dead; User:alice may not" in verdict
