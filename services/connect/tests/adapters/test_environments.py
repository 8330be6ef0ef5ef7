"""Which environment has a connector; nothing of it is imported for that."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_common.runtime.clock import SystemClock
from headrace_connect.core.names import PLUGIN_PATH, SPARK_APPLICATION
from headrace_connect_worker.adapters.environments import OWN, Environments
from headrace_connect_worker.adapters.host_processes import HostProcesses
from headrace_connect_worker.config import ConnectConfig, HostLimits


def test_hosts_are_told_where_environments_and_applications_are() -> None:
    config = ConnectConfig(processes=HostLimits(plugin_path=("/a", "/b"), spark_application="/etc/application.json"))
    variables = HostProcesses.of(config, SystemClock()).variables
    assert variables[PLUGIN_PATH] == "/a,/b"
    assert variables[SPARK_APPLICATION] == "/etc/application.json"


@pytest.mark.parametrize(("endpoint", "wanted"), [("http://collector:4317", "http://collector:4317"), (None, "env")])
def test_hosts_trace_where_their_worker_says(
    endpoint: str | None, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_OTLP_ENDPOINT", "env")
    config = ConnectConfig(otlp_endpoint=endpoint)
    assert HostProcesses.of(config, SystemClock()).variables["HEADRACE_OTLP_ENDPOINT"] == wanted


def environment(home: Path, *connectors: str, package: str = "") -> Path:
    """Something that looks like a virtual environment."""
    packages = home / "lib" / "python3.12" / "site-packages"
    packages.mkdir(parents=True)
    (home / "bin").mkdir()
    (home / "bin" / "python").touch()
    if connectors:
        info = packages / "some_connectors-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-connectors\nVersion: 1.0\n")
        lines = "\n".join(f"{name} = some:Thing" for name in connectors)
        (info / "entry_points.txt").write_text(f"[headrace.connectors]\n{lines}\n")
    if package:
        (packages / package).mkdir()
        (packages / package / "__init__.py").write_text("raise RuntimeError('imported')")
    return home


@pytest.fixture
def environments(tmp_path: Path) -> Environments:
    environment(tmp_path / "many" / "old", "weather", "files")
    environment(tmp_path / "many" / "new", "weather", "traffic", package="vendor")
    (tmp_path / "many" / "notes.txt").touch()
    environment(tmp_path / "single", "stocks")
    return Environments([tmp_path / "many", tmp_path / "single", tmp_path / "absent"])


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ("files", ""),
        ("weather", "many/new"),
        ("traffic", "many/new"),
        ("stocks", "single"),
        ("vendor.deep:Source", "many/new"),
        ("headrace_connect.connectors.files:FilesSource", ""),
        ("no-such", ""),
        ("no_such.module:Source", ""),
        ("/tmp/own.py:Source", ""),
        ("../vendor:Source", ""),
        (":Source", ""),
        ("", ""),
    ],
)
def test_the_first_that_has_it_runs_it_and_the_workers_own_where_none_has_it(
    environments: Environments, tmp_path: Path, given: str, where: str
) -> None:
    found = environments.find(given)
    assert found.home == (tmp_path / where if where else None)
    assert found.python == (tmp_path / where / "bin" / "python" if where else OWN.python)


def test_a_new_one_is_found(environments: Environments, tmp_path: Path) -> None:
    assert environments.find("tides") == OWN
    environment(tmp_path / "many" / "zzz", "tides")
    assert environments.find("tides").home == tmp_path / "many" / "zzz"
    assert environments.all()[0].name == ""
