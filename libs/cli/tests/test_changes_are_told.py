"""Every command that changes something says what was done: a sentence for people, and with ``-o`` data."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from libs.cli.tests.conftest import Beside, FakeStub, admin_over
from typer.testing import CliRunner

from headrace.admin_types import TopicDescription
from headrace_cli.app import app
from headrace_cli.local import LocalCluster
from headrace_cli.session import Session
from headrace_common.core.errors import TopicAlreadyExists, unknown_topic
from headrace_proto.v1 import cluster_pb2
from headrace_proto.v1 import controller_pb2 as pb

runner = CliRunner()
TOPIC = pb.TopicDescription(
    topic=cluster_pb2.Topic(name="there", topic_id=bytes(16)), partitions=[cluster_pb2.Partition(leader=1)]
)


class FakeAdmin(Beside):
    """Topics ``there`` and ``also``."""

    def __init__(self, stub: FakeStub) -> None:
        super().__init__(admin_over(stub))
        self.topics = {"there", "also"}

    def create_topic(self, name: str, *_: Any, validate_only: bool) -> TopicDescription:
        raise TopicAlreadyExists(f"{name} exists")

    def describe_topic(self, name: str) -> TopicDescription:
        return TopicDescription.of(TOPIC)

    def delete_topic(self, name: str) -> None:
        if name not in self.topics:
            raise unknown_topic(name)
        self.topics.remove(name)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stub: Any) -> None:
    fake = FakeAdmin(stub)
    monkeypatch.setattr(Session, "admin", lambda self, **_: fake)
    for name in ("HEADRACE_BOOTSTRAP", "HEADRACE_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HEADRACE_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "moves.json").write_text('{"moves": []}')


DELETED = [{"name": name, "error": None} for name in ("there", "also")]
CHANGES = [
    (
        ["topic", "delete", "there", "also", "there", "--yes"],
        {"topics": [{"name": n, "error": None} for n in ("there", "also")]},
    ),
    (["topic", "create", "there", "--if-not-exists"], {"name": "there", "id": bytes(16).hex(), "internal": False}),
    (["partition", "move", "--from-file", "moves.json"], {"partitions": []}),
    (["partition", "cancel", "--all"], {"partitions": []}),
    (["broker", "unregister", "1", "--yes"], {"broker": 1, "forgotten": True}),
    (["cluster", "forget", "coordinator-2"], {"node": "coordinator-2", "forgotten": True}),
    (["profile", "set", "p", "--bootstrap", "b1:1"], {"name": "p", "bootstrap": "b1:1"}),
    (["profile", "use", "--none"], {"name": None}),
    (["down", "--data-dir", "nowhere"], {"data_dir": "nowhere", "stopped": False}),
]


@pytest.mark.parametrize(("argv", "wanted"), CHANGES, ids=[" ".join(argv) for argv, _ in CHANGES])
def test_what_was_done_is_data_with_o(argv: list[str], wanted: Any) -> None:
    result = runner.invoke(app, [*argv, "-o", "json"])
    assert result.exit_code == 0, result.output
    done = json.loads(result.stdout)
    assert {name: done[name] for name in wanted} == wanted


@pytest.mark.parametrize("argv", [argv for argv, _ in CHANGES], ids=" ".join)
def test_people_get_a_sentence(argv: list[str]) -> None:
    said = runner.invoke(app, argv)
    assert (said.exit_code, said.stdout) == (0, "")
    assert said.stderr.strip()


@pytest.mark.parametrize("argv", [argv for argv, _ in CHANGES], ids=" ".join)
def test_yaml_is_data_too(argv: list[str]) -> None:
    assert runner.invoke(app, [*argv, "-o", "yaml"]).stdout.strip()


def test_what_was_deleted_before_one_that_is_missing_is_told() -> None:
    result = runner.invoke(app, ["topic", "delete", "there", "gone", "also", "--yes", "-o", "json"])
    assert result.exit_code == 3
    there, gone = json.loads(result.stdout)["topics"]
    assert (there["name"], there["error"]) == ("there", None)
    assert (gone["name"], gone["error"]["code"]) == ("gone", "UNKNOWN_TOPIC_OR_PARTITION")
    assert "topic 'gone' does not exist" in result.stderr


def test_a_cluster_that_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[str] = []
    cluster = SimpleNamespace(directory=SimpleNamespace(path=Path("d")), stop=lambda: stopped.append("d"))
    monkeypatch.setattr(LocalCluster, "attach", lambda *_: cluster)
    result = runner.invoke(app, ["down", "-o", "json"])
    assert json.loads(result.stdout) == {"data_dir": "d", "stopped": True}
    assert stopped == ["d"]
