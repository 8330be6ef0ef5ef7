"""``headrace access since-backup``: what is printed, what is blocked again, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace import TopicPartition
from headrace import access as made
from headrace.admin_access_types import AccessDescription, ApiKeyInfo, UserInfo
from headrace.admin_restore_types import RestoreInfo
from headrace_cli.app import app
from headrace_cli.commands.audit import TOPIC, Source
from headrace_cli.commands.starts import Since
from headrace_cli.session import Session
from headrace_common.core.access.changes import apply
from headrace_common.core.access.state import Access
from headrace_proto.v1 import access_pb2, controller_pb2

runner = CliRunner()


class FakeAdmin:
    def __init__(self) -> None:
        self.restored = True
        self.access = Access()

    def describe_restore(self) -> RestoreInfo | None:
        restore = controller_pb2.Restore(backup_time_ms=1_000_000, restore_time_ms=2_000_000)
        return RestoreInfo.of(controller_pb2.DescribeRestoreResponse(restore=restore)) if self.restored else None

    def describe_access(self) -> AccessDescription:
        blocked = map(str, self.access.blocked)
        return AccessDescription.of(access_pb2.DescribeAccessResponse(mode="closed", blocked=blocked))

    def list_keys(self) -> list[ApiKeyInfo]:
        return [ApiKeyInfo.of(access_pb2.ApiKeyDescription(id="k1", owner="User:a", created_ms=1))]

    def list_users(self) -> list[UserInfo]:
        return [UserInfo.of(access_pb2.UserDescription(name="u", created_ms=1, password_set_ms=1))]

    def alter_access(self, changes: Sequence[made.Change]) -> None:
        self.access = apply(self.access, list(changes))


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    fake = FakeAdmin()

    @contextmanager
    def opened(session: Session, **settings: Any) -> Any:
        yield fake

    monkeypatch.setattr(Session, "admin", opened)
    return fake


def event(seq: int, rpc: str, name: str, after: dict[str, str], time: int = 1_500_000) -> str:
    empty: dict[str, Any] = {"values": {}, "more": 0}
    fields = {
        "node": "controller-1",
        "start": "s",
        "seq": seq,
        "time": time,
        "kind": "access_changed",
        "actor": {"principal": "User:boss"},
        "rpc": rpc,
        "resource": {"type": "PRINCIPAL", "name": name},
        "status": "NONE",
        "change": {"before": empty, "after": {"values": after, "more": 0}},
    }
    return json.dumps(fields)


def audit(path: Path, *lines: str) -> str:
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


BLOCK = event(1, "Controller/AlterAccess", "blocked User:eve", {"blocked": "True"})
DELETE = event(2, "Controller/DeleteKeys", "key k1", {})
PASSWORD = event(3, "Controller/ChangePassword", "User:u", {})
SEAL = json.dumps({"signature": "x", "time": 1})


def run(*argv: str, code: int = 0) -> str:
    result = runner.invoke(app, ["access", "since-backup", *argv])
    assert result.exit_code == code, result.output
    return result.output


def test_what_is_back_is_said_with_the_command_for_it(admin: FakeAdmin, tmp_path: Path) -> None:
    shown = run(audit(tmp_path / "1-000000000001.jsonl", BLOCK, SEAL, DELETE, PASSWORD), "-o", "json", code=1)
    found = json.loads(shown[: shown.rindex("}") + 1])
    assert [(one["name"], one["command"]) for one in found["findings"]] == [
        ("User:eve", "headrace access block User:eve"),
        ("k1", "headrace key delete k1"),
        ("u", "headrace user passwd u"),
    ]
    assert (found["changed"], found["blocked_again"], found["audit_lacks_events"]) == (3, [], False)
    assert (found["backup"], found["audit_until"]) == ("1970-01-01T00:16:40+00:00", "1970-01-01T00:25:00+00:00")
    assert admin.access.blocked == frozenset()


def test_blocks_are_made_again_and_then_nothing_is_left_to_do(admin: FakeAdmin, tmp_path: Path) -> None:
    path = audit(tmp_path / "1-000000000001.jsonl", BLOCK)
    assert "--keep-blocked" in run(path, code=1)
    shown = run(path, "--keep-blocked")
    assert "User:eve is blocked again" in shown
    assert [str(one) for one in admin.access.blocked] == ["User:eve"]
    assert "0 to look at now" in run(path, "--keep-blocked")


def test_what_the_audit_does_not_know_is_said(admin: FakeAdmin, tmp_path: Path) -> None:
    assert "THE AUDIT KNOWS NOTHING" in run(audit(tmp_path / "1-000000000001.jsonl", SEAL))
    late = event(1, "Controller/CreateKey", "key k1", {"owner": "User:a"})
    shown = run(audit(tmp_path / "1-000000000009.jsonl", late))
    assert "until 1970-01-01T00:25:00+00:00" in shown
    assert "there may have been more" in shown
    early = event(0, "Controller/CreateKey", "key k0", {}, time=1)
    assert "there may have been more" not in run(audit(tmp_path / "1-000000000009.jsonl", early, late))


def test_it_was_never_restored(admin: FakeAdmin) -> None:
    admin.restored = False
    assert "never restored" in run()
    assert '"restore": null' in run("-o", "json")


@pytest.mark.parametrize(("first", "at", "lacks"), [(0, 0, False), (5, 5, True), (5, 6, False)])
def test_of_the_topic_it_is_known_whether_events_were_deleted(first: int, at: int, lacks: bool) -> None:
    one = TopicPartition(TOPIC, 0)
    asked: list[Any] = []

    @contextmanager
    def consumer() -> Any:
        yield SimpleNamespace(
            partitions_for=lambda topic: [0],
            assign=asked.append,
            end_offsets=lambda some: {one: at},
            beginning_offsets=lambda some: {one: first},
            seek_to_timestamp=lambda time_ms, *some: asked.append(time_ms),
            position=lambda some: at,
        )

    session: Any = SimpleNamespace(consumer=consumer)
    source = Source(session, None)
    assert list(source.read(Since(7))) == []
    assert (asked, source.lacks(7)) == ([[one], 7], lacks)
