"""``cluster features`` and ``cluster forget``: what is printed, what is asked of the cluster, and how it ends."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.admin_feature_types import FeaturesInfo
from headrace_cli import features_view
from headrace_cli.app import app
from headrace_cli.session import Session
from headrace_proto.v1 import admin_pb2, cluster_pb2

runner = CliRunner()
FEATURES = [admin_pb2.Feature(level=1, name="owner-times", brings="a sentence")]
NODES = [
    admin_pb2.NodeFeatures(role=cluster_pb2.BROKER, id=1, version="0.1.0"),
    admin_pb2.NodeFeatures(role=cluster_pb2.CONTROLLER, id=1, feature_level_max=1, version="0.2.0"),
]
BELOW = admin_pb2.DescribeFeaturesResponse(
    features=FEATURES, nodes=NODES, waits_for="level 1 waits for broker-1: start it"
)


class FakeAdmin:
    def __init__(self) -> None:
        self.found = BELOW
        self.asked: list[Any] = []

    def describe_features(self) -> FeaturesInfo:
        return FeaturesInfo.of(self.found)

    def unregister_node(self, role: str, node_id: int) -> None:
        self.asked.append((role, node_id))


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    fake = FakeAdmin()

    @contextmanager
    def opened(session: Session, **settings: Any) -> Any:
        yield fake

    monkeypatch.setattr(Session, "admin", opened)
    return fake


def run(*argv: str, code: int = 0) -> Any:
    result = runner.invoke(app, list(argv))
    assert result.exit_code == code, result.output
    return result


def test_features_as_a_table_and_as_data(admin: FakeAdmin) -> None:
    said = run("cluster", "features")
    assert all(word in said.stdout for word in ("owner-times", "broker-1", "controller-1"))
    assert "waits for broker-1" in said.stderr
    found = json.loads(run("cluster", "features", "-o", "json").stdout)
    assert (found["level"], found["waits_for"]) == (0, BELOW.waits_for)
    assert found["features"] == [{"level": 1, "name": "owner-times", "brings": "a sentence", "active": False}]
    assert [node["feature_level_max"] for node in found["nodes"]] == [0, 1]
    assert 'waits_for: "level 1' in run("cluster", "features", "-o", "yaml").stdout


def test_nothing_to_wait_for(admin: FakeAdmin) -> None:
    admin.found = admin_pb2.DescribeFeaturesResponse(level=1, features=FEATURES, nodes=NODES[1:])
    assert "never falls" in run("cluster", "features").stderr
    assert json.loads(run("cluster", "features", "-o", "json").stdout)["features"][0]["active"]


def test_forget(admin: FakeAdmin) -> None:
    run("cluster", "forget", "coordinator-2")
    assert admin.asked == [("coordinator", 2)]


@pytest.mark.parametrize("name", ["broker-1", "coordinator", "2", "coordinator-x", "coordinator-²"])
def test_forget_takes_only_nodes_without_records(admin: FakeAdmin, name: str) -> None:
    assert "broker unregister" in run("cluster", "forget", name, code=2).output.replace("\n", " ").replace("│ │", "")
    assert not admin.asked
    assert features_view.node_of(name) is None
