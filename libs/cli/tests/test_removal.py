"""``headrace cluster can-remove``: who holds what by the metadata, and how the command ends."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from headrace.admin_types import BrokerInfo, PartitionInfo, TopicDescription, TopicInfo
from headrace_cli.app import app
from headrace_cli.exits import ExitCode
from headrace_cli.session import Session
from headrace_common.core.errors import UnknownTopicOrPartition

ID = bytes(range(16))
runner = CliRunner()


class FakeCluster:
    """Brokers 0 to 4, of which 4 is away and 9 was forgotten; a topic is deleted while it is looked at."""

    def __init__(self) -> None:
        self.drained = {3}
        self.replicas = {"flights": [(0, 1), (1, 2)], "__consumer_offsets": [(2, 4), (1, 9)]}

    def __enter__(self) -> FakeCluster:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def list_topics(self, *, include_internal: bool) -> list[TopicInfo]:
        assert include_internal, "internal topics have replicas too"
        return [TopicInfo(name, ID, 2, False, {}) for name in [*self.replicas, "gone"]]

    def describe_topic(self, name: str) -> TopicDescription:
        if name not in self.replicas:
            raise UnknownTopicOrPartition(f"there is no {name}")
        parts = (PartitionInfo(n, held[0], 0, held, held) for n, held in enumerate(self.replicas[name]))
        return TopicDescription(name, ID, False, {}, tuple(parts))

    def list_brokers(self) -> list[BrokerInfo]:
        return [BrokerInfo(n, f"b{n}:1", None, n == 4, False, "0.1.0", n in self.drained) for n in range(5)]


@pytest.fixture(autouse=True)
def _cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "admin", lambda self, **_: FakeCluster())


def ask(brokers: str, *more: str) -> tuple[int, str, str]:
    result = runner.invoke(app, ["cluster", "can-remove", "--brokers", brokers, *more])
    return result.exit_code, result.stdout, result.stderr


def test_a_drained_broker_without_replicas_may_go() -> None:
    code, _, said = ask("3")
    assert code == ExitCode.OK
    assert "may go" in said
    assert "note" not in said


def test_a_broker_that_holds_something_may_not_and_the_way_out_is_named() -> None:
    code, _, said = ask("3,2")
    assert code == ExitCode.FAILED
    assert "broker 2 (online) holds 2 replicas" in said
    assert "`headrace broker decommission 2 --wait`" in said


@pytest.mark.parametrize(("broker", "state"), [(4, "away"), (9, "unknown")])
def test_one_that_is_not_there_holds_what_the_metadata_says(broker: int, state: str) -> None:
    code, printed, said = ask(str(broker), "-o", "json")
    assert code == ExitCode.FAILED
    (row,) = json.loads(printed)["brokers"]
    assert (row["state"], row["replicas"]) == (state, 1)
    assert f"First bring back {broker}" in said


def test_one_that_was_never_there_may_go() -> None:
    code, printed, _ = ask("7", "-o", "json")
    assert code == ExitCode.OK
    assert json.loads(printed)["brokers"] == [{"id": 7, "state": "unknown", "replicas": 0, "partitions": []}]


@pytest.mark.parametrize("text", ["", "a", "1,,2", "-1", "1,1", "99999999999"])
def test_ids_that_are_none_are_refused(text: str) -> None:
    code, _, said = ask(text)
    assert code == ExitCode.USAGE
    assert "write ids of brokers" in said


def test_people_see_the_first_partitions_and_programs_all(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster()
    cluster.replicas = {"many": [(1,)] * 128}
    monkeypatch.setattr(Session, "admin", lambda self, **_: cluster)
    line = next(line for line in ask("1")[1].splitlines() if "many-0" in line)
    assert line.endswith("many-9,and 118 more")
    assert len(json.loads(ask("1", "-o", "json")[1])["brokers"][0]["partitions"]) == 128
