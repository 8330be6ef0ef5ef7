"""How a query whose options name no cluster finds one."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest

from headrace.finding import ClusterAddress
from headrace.settings import ClientSettings
from headrace_common.core.secret import Secret
from headrace_spark.adapters.sdk_address import add_address, cluster_of
from headrace_spark.core.option_table import Mode
from headrace_spark.core.options import ConnectorOptions


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HEADRACE_BOOTSTRAP", "HEADRACE_PROFILE", "HEADRACE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("here")
def test_an_address_that_is_given_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", "env:1")
    assert add_address({"Kafka.Bootstrap.Servers": "a:1"}) == {"Kafka.Bootstrap.Servers": "a:1"}
    assert add_address({"bootstrap.servers": "a:1"}) == {"bootstrap.servers": "a:1"}
    assert add_address({"topic": "t"}) == {"topic": "t", "kafka.bootstrap.servers": "env:1"}


def test_a_local_cluster_travels_to_the_tasks_with_its_id(here: Path) -> None:
    (here / ".headrace").mkdir()
    text = json.dumps(
        {"cluster_id": "mine", "data_dir": os.path.realpath(here / ".headrace"), "bootstrap_servers": ["a:1", "b:2"]}
    )
    (here / ".headrace" / "cluster.json").write_text(text)
    options = ConnectorOptions.parse(add_address({"topic": "t"}), Mode.WRITE_BATCH)
    cluster = pickle.loads(pickle.dumps(cluster_of(options)))
    assert list(cluster) == ["a:1", "b:2"]
    assert cluster.cluster_id == "mine"


def test_each_process_trusts_the_cas_that_its_own_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """And shows the key that it names: what travels has neither."""
    options = ConnectorOptions.parse({"topic": "t", "kafka.bootstrap.servers": "a:1"}, Mode.WRITE_BATCH)
    for name in ("HEADRACE_CA", "HEADRACE_API_KEY", "HEADRACE_API_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert cluster_of(options).ca is None
    monkeypatch.setenv("HEADRACE_CA", "/etc/ca.crt")
    monkeypatch.setenv("HEADRACE_API_KEY_FILE", "/etc/key")
    found = ClientSettings().find(cluster_of(options))
    assert (found.ca, found.api_key_file) == ("/etc/ca.crt", "/etc/key")
    assert "/etc/" not in repr(options)


@pytest.fixture
def profile(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "headrace").mkdir()
    (here / "headrace" / "config.toml").write_text(
        'profile = "p"\n[p]\nbootstrap = "p:1"\nca = "/p.pem"\napi_key_file = "/p.key"\n'
    )
    for name in ("HEADRACE_CA", "HEADRACE_API_KEY", "HEADRACE_API_KEY_FILE"):
        monkeypatch.setenv(name, f"/of/{name}")


def meant(given: dict[str, str]) -> ClusterAddress:
    return ClientSettings().find(cluster_of(ConnectorOptions.parse(given, Mode.WRITE_BATCH)))


@pytest.mark.usefixtures("profile")
def test_the_files_that_a_profile_names_travel_with_its_address() -> None:
    found = meant(add_address({"topic": "t"}))
    assert (list(found), found.ca, found.api_key_file, found.api_key) == (["p:1"], "/p.pem", "/p.key", None)
    chosen = meant(add_address({"topic": "t", "Headrace.TokenFile": "/q.key", "headrace.cafile": "/q.pem"}))
    assert (chosen.ca, chosen.api_key_file) == ("/q.pem", "/q.key")
    shown = meant(add_address({"topic": "t", "headrace.token": "x"}))
    assert (shown.api_key_file, shown.api_key) == (None, Secret("x"))


@pytest.mark.usefixtures("profile")
def test_what_the_environment_names_each_process_finds_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", "env:1")
    assert add_address({"topic": "t"}) == {"topic": "t", "kafka.bootstrap.servers": "env:1"}
    assert add_address({"bootstrap.servers": "a:1"}) == {"bootstrap.servers": "a:1"}, "nothing of another cluster"


@pytest.mark.usefixtures("here")
def test_what_a_query_shows_is_nowhere_in_what_it_prints() -> None:
    given = {"topic": "t", "kafka.bootstrap.servers": "a:1", "headrace.token": "hunter2"}
    cluster = cluster_of(ConnectorOptions.parse(given, Mode.WRITE_BATCH))
    assert "hunter2" not in f"{cluster!r} {cluster}"
    other = cluster_of(ConnectorOptions.parse(given | {"headrace.token": "other"}, Mode.WRITE_BATCH))
    assert cluster != other, "clients of a process are shared by what they show too"
