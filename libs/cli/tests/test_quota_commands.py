"""``headrace quota``: what is asked of the cluster, what is printed, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from libs.cli.tests.test_access_commands import open_with
from typer.testing import CliRunner

from headrace.errors import Rejected
from headrace_cli.app import app

runner = CliRunner()


class FakeAdmin:
    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.failure: Exception | None = None

    def alter_quotas(self, changes: Mapping[str, Mapping[str, float | None]], *, validate_only: bool = False) -> None:
        if self.failure is not None:
            raise self.failure
        self.asked.append((changes, validate_only))

    def describe_quotas(self, entity: str | None = None) -> dict[str, dict[str, float]]:
        self.asked.append(entity)
        return {"users/*": {"consumer_byte_rate": 5.0, "producer_byte_rate": 0.5}} if entity != "none" else {}


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    fake = FakeAdmin()
    open_with(fake, monkeypatch.setattr)
    return fake


def run(*argv: str, code: int = 0) -> Any:
    result = runner.invoke(app, list(argv))
    assert result.exit_code == code, result.output
    return result


def test_what_is_set_and_taken_away(admin: FakeAdmin) -> None:
    run("quota", "set", "users/User:a", "producer_byte_rate=1048576", "controller_mutation_rate=0.5")
    run("quota", "set", "prefixes/orders.", "topics.max=0", "--dry-run")
    run("quota", "remove", "users/User:a", "producer_byte_rate", "consumer_byte_rate")
    assert admin.asked == [
        ({"users/User:a": {"producer_byte_rate": 1_048_576, "controller_mutation_rate": 0.5}}, False),
        ({"prefixes/orders.": {"topics.max": 0}}, True),
        ({"users/User:a": {"producer_byte_rate": None, "consumer_byte_rate": None}}, False),
    ]


def test_what_is_listed(admin: FakeAdmin) -> None:
    rows = json.loads(run("quota", "list", "-o", "json").stdout)
    assert rows == [
        {"entity": "users/*", "quota": "consumer_byte_rate", "value": 5.0},
        {"entity": "users/*", "quota": "producer_byte_rate", "value": 0.5},
    ]
    assert "no quotas" in run("quota", "list", "none").output
    assert admin.asked == [None, "none"]


@pytest.mark.parametrize("wrong", ["producer_byte_rate", "producer_byte_rate=", "producer_byte_rate=fast", "=5x"])
def test_what_is_no_quota(admin: FakeAdmin, wrong: str) -> None:
    assert "is no quota" in run("quota", "set", "users/*", wrong, code=2).output
    assert admin.asked == []


def test_what_the_cluster_refuses(admin: FakeAdmin) -> None:
    admin.failure = Rejected("there is no quota 'x'")
    assert "there is no quota 'x'" in run("quota", "set", "users/*", "x=5", code=2).output
