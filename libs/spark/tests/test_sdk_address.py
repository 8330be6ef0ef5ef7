"""How a query whose options name no cluster finds one."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest

from headrace.settings import ClientSettings
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
