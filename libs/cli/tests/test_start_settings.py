"""``up --set``: what is wrong is refused before anything starts; what it takes can be listed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace_cli.app import app
from headrace_cli.local import LocalCluster
from headrace_cli.local.start_settings import check_start_settings, start_settings
from headrace_common.core.errors import InvalidConfig

runner = CliRunner()


def test_a_setting_that_no_service_takes_starts_nothing(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "data", settings={"nope": "1", "tail.cache.bytes": "many", "group.nope.ms": "1"})
    with pytest.raises(InvalidConfig) as refused:
        cluster.start()
    for said in ("nope is not a setting", "tail.cache.bytes: takes a whole number", "group.nope.ms is not a setting"):
        assert said in str(refused.value)
    assert not (tmp_path / "data").exists()


def test_the_command_says_so_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, ["up", "--detach", "--set", "nope=1"])
    assert result.exit_code == 2
    assert "--set: nope is not a setting; `headrace cluster configs --at-start`" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_the_services_take_is_taken() -> None:
    check_start_settings({"tail.cache.bytes": "0", "group.rejoin.grace.ms": "500", "transaction.notice.ms": "5000"})
    check_start_settings({"broker.session.timeout.ms": "6000", "num.partitions": "3"})
    check_start_settings({"connect.files.allowed.paths": "/data", "connect.worker_hosts_max": "4"})


def test_settings_of_the_worker_are_refused_under_the_names_that_were_given() -> None:
    with pytest.raises(InvalidConfig, match=r"connect\.nope is not a setting.*connect\.worker\.hosts\.max: takes a"):
        check_start_settings({"connect.nope": "1", "connect.worker.hosts.max": "many"})


def test_what_set_takes_is_listed() -> None:
    listed = json.loads(runner.invoke(app, ["cluster", "configs", "--at-start", "-o", "json"]).stdout)["configs"]
    assert listed == start_settings()
    of = {(row["name"], row["service"]): row for row in listed}
    assert of["tail.cache.bytes", "broker"]["default"] == "67108864"
    assert of["group.rejoin.grace.ms", "coordinator"]["documentation"]
    assert ("broker.session.timeout.ms", "controller") in of
    assert of["connect.worker.hosts.max", "connect"]["default"] == "32"
    assert not {name for name, _ in of} & {"node.id", "data.dir", "listen", "connect.bootstrap.servers"}, (
        "up gives these itself"
    )
