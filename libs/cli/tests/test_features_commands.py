"""``cluster features`` and ``cluster forget``: what is printed, what is asked of the cluster, and how it ends."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.admin_feature_types import FeatureInfo, FeaturesInfo, NodeFeatures
from headrace_cli import features_view
from headrace_cli.app import app
from headrace_cli.session import Session
from headrace_proto.v1 import cluster_pb2

runner = CliRunner()
NODES = (NodeFeatures("broker-1", 0, False, "0.1.0"), NodeFeatures("controller-1", 1, False, "0.2.0"))
BELOW = FeaturesInfo(0, (FeatureInfo(1, "owner-times", "a sentence"),), NODES, "level 1 waits for broker-1: start it")


class FakeAdmin:
    def __init__(self) -> None:
        self.found = BELOW

    def describe_features(self) -> FeaturesInfo:
        return self.found


class FakeCalls:
    def __init__(self) -> None:
        self.asked: list[Any] = []

    def change(self, ask: Any) -> None:
        ask(self, 1.0)

    def UnregisterNode(self, request: Any, timeout: float) -> None:
        self.asked.append(request)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeAdmin, FakeCalls]:
    admin, calls = FakeAdmin(), FakeCalls()

    def opener(fake: Any) -> Any:
        @contextmanager
        def opened(session: Session, **settings: Any) -> Any:
            yield fake

        return opened

    monkeypatch.setattr(Session, "admin", opener(admin))
    monkeypatch.setattr(Session, "calls", opener(calls))
    return admin, calls


def run(*argv: str, code: int = 0) -> Any:
    result = runner.invoke(app, list(argv))
    assert result.exit_code == code, result.output
    return result


def test_features_as_a_table_and_as_data(fakes: tuple[FakeAdmin, FakeCalls]) -> None:
    said = run("cluster", "features")
    assert all(word in said.stdout for word in ("owner-times", "broker-1", "controller-1"))
    assert "waits for broker-1" in said.stderr
    found = json.loads(run("cluster", "features", "-o", "json").stdout)
    assert (found["level"], found["waits_for"]) == (0, BELOW.waits_for)
    assert found["features"] == [{"level": 1, "name": "owner-times", "brings": "a sentence", "active": False}]
    assert [node["feature_level_max"] for node in found["nodes"]] == [0, 1]
    assert 'waits_for: "level 1' in run("cluster", "features", "-o", "yaml").stdout


def test_nothing_to_wait_for(fakes: tuple[FakeAdmin, FakeCalls]) -> None:
    fakes[0].found = FeaturesInfo(1, BELOW.features, NODES[1:], None)
    assert "never falls" in run("cluster", "features").stderr
    assert json.loads(run("cluster", "features", "-o", "json").stdout)["features"][0]["active"]


def test_forget(fakes: tuple[FakeAdmin, FakeCalls]) -> None:
    run("cluster", "forget", "coordinator-2")
    (request,) = fakes[1].asked
    assert (request.role, request.id) == (cluster_pb2.COORDINATOR, 2)


@pytest.mark.parametrize("name", ["broker-1", "coordinator", "2", "coordinator-x", "coordinator-²"])
def test_forget_takes_only_nodes_without_records(fakes: tuple[FakeAdmin, FakeCalls], name: str) -> None:
    assert "broker unregister" in run("cluster", "forget", name, code=2).output.replace("\n", " ").replace("│ │", "")
    assert not fakes[1].asked
    assert features_view.node_of(name) is None
