"""A data directory that was copied, moved or damaged: no process of another one is shown, stopped or killed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace_cli.app import app
from headrace_cli.bundle import Bundle
from headrace_cli.bundle_parts import add_local
from headrace_cli.local import LocalCluster, LocalClusterFailed
from headrace_cli.local.plan import ClusterOptions
from headrace_cli.local.processes import ProcessId
from headrace_cli.local.state import ClusterState, DataDir, Health, Phase, ProcessState, public
from headrace_cli.local.supervisor import Supervisor

runner = CliRunner()
NO_ETCD = ClusterOptions(etcd="/nowhere/etcd")


@pytest.fixture
def bystander() -> Iterator[ProcessId]:
    """A process of the original cluster."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        found = ProcessId.of(process.pid)
        assert found is not None
        yield found
    finally:
        process.kill()
        process.communicate()


def broker(process: ProcessId) -> ProcessState:
    return ProcessState(
        "broker-1",
        "broker",
        "127.0.0.1:1",
        "127.0.0.1:2",
        pid=process.pid,
        started=process.started,
        health=Health.READY,
    )


@pytest.fixture
def original(bystander: ProcessId, tmp_path: Path) -> DataDir:
    """As a cluster that runs leaves its files."""
    directory = DataDir.at(tmp_path / "original")
    directory.create()
    state = ClusterState(
        bystander,
        Phase.READY,
        ClusterOptions(brokers=5),
        ports={"broker-1": 1},
        processes=[broker(bystander)],
        cluster_id="c",
        data_dir=directory.real,
    )
    directory.write(state)
    return directory


def copy_of(original: DataDir) -> DataDir:
    copy = DataDir.at(original.path.parent / "copy")
    shutil.copytree(original.path, copy.path)
    return copy


def test_a_copy_keeps_options_and_ports_and_no_process(original: DataDir, bystander: ProcessId) -> None:
    copy = copy_of(original)
    state = copy.read()
    assert state is not None
    assert (state.options.brokers, state.ports, state.cluster_id) == (5, {"broker-1": 1}, "c")
    assert (state.processes, state.bootstrap_servers, state.phase) == ([], [], Phase.STOPPED)
    assert not state.supervisor.alive()
    assert copy.find_original(state) == original.real
    assert bystander.alive()


def test_a_stop_in_a_copy_that_is_about_to_start_ends_no_process_of_the_original(
    original: DataDir, bystander: ProcessId
) -> None:
    copy = copy_of(original)
    lock = copy.lock()  # its supervisor lives, and has not written its file yet
    assert lock is not None
    cluster = LocalCluster.attach(copy.path)
    cluster.stop()
    assert bystander.alive()


@pytest.mark.parametrize("version", ["ours", "before"])
def test_a_start_in_a_copy_kills_nobody(original: DataDir, bystander: ProcessId, version: str) -> None:
    copy = copy_of(original)
    if version == "before":
        written = json.loads(copy.state_file.read_text())
        del written["data_dir"]
        copy.state_file.write_text(json.dumps(written))
    supervisor = Supervisor(copy, ClusterOptions(), owned=False)
    lock = copy.lock()
    assert lock is not None
    before = copy.read()
    assert before is not None
    supervisor._clear_leftovers(before)
    assert bystander.alive()


def failed_start(directory: DataDir, options: ClusterOptions) -> ClusterState:
    """What is written down of a start that fails before any process runs."""
    argv = [sys.executable, "-m", "headrace_cli.local.supervisor", "--data-dir", str(directory.path)]
    ran = subprocess.run([*argv, "--options", json.dumps(options.to_json())], timeout=60)
    assert ran.returncode == 1
    state = directory.read()
    assert state is not None
    assert state.phase is Phase.FAILED
    assert state.error is not None
    return state


def test_a_copy_stays_one_when_its_first_start_fails(original: DataDir) -> None:
    copy = copy_of(original)
    for _ in range(2):
        state = failed_start(copy, NO_ETCD)
        assert (state.ports, state.original_ports, state.original) == ({}, (1,), original.real)
        assert "/nowhere/etcd" in str(state.error)
    second = DataDir.at(copy.path.parent / "second")
    shutil.copytree(copy.path, second.path)
    copied = replace(state, ports={"broker-1": 2}, processes=[])
    second.write(copied)
    state = failed_start(second, NO_ETCD)
    assert (state.ports, state.original_ports, state.original) == ({}, (1, 2), copy.real)


def test_a_copied_quorum_does_not_start_beside_its_original(original: DataDir) -> None:
    state = original.read()
    assert state is not None
    options = ClusterOptions(etcd_members=3)
    ports = {"broker-1": 1, "etcd-2.metrics": 2, "etcd-2.peer": 3, "etcd-1.metrics": 4}
    original.write(replace(state, options=options, ports=ports, data_dir=original.real))
    copy = copy_of(original)
    lock = original.lock()  # its supervisor lives
    assert lock is not None
    try:
        for _ in range(2):
            state = failed_start(copy, options)
            assert f"is a copy of {original.real}, whose cluster runs" in str(state.error)
            assert f"`headrace down --data-dir {original.real}`" in str(state.error)
            assert state.ports == {"etcd-2.peer": 3}
    finally:
        os.close(lock)


def test_what_a_dead_supervisor_of_this_directory_left_is_killed(original: DataDir, bystander: ProcessId) -> None:
    state = original.read()
    assert state is not None
    assert state.processes == [], "its supervisor seems to live, and has no lock: a copy was put in its place"
    written = json.loads(original.state_file.read_text())
    written["supervisor"]["started"] -= 1
    original.state_file.write_text(json.dumps(written))
    before = original.read()
    assert before is not None
    Supervisor(original, ClusterOptions(), owned=False)._clear_leftovers(before)
    assert not bystander.alive()


def test_the_supervisor_names_its_directory_in_both_files(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    directory = DataDir.at(tmp_path / "link")
    state = Supervisor(directory, ClusterOptions(), owned=False)._state
    assert public(state)["data_dir"] == state.to_json()["data_dir"] == str((tmp_path / "real").resolve())


@pytest.mark.parametrize("output", ["table", "json"])
def test_status_of_a_copy_names_the_original_and_shows_nothing_of_it(
    original: DataDir, bystander: ProcessId, output: str
) -> None:
    copy = copy_of(original)
    ended = runner.invoke(app, ["status", "--data-dir", str(copy.path), "-o", output])
    assert ended.exit_code == 7
    assert f"copied or moved from {original.real}; `headrace up` starts it" in ended.stdout
    assert str(bystander.pid) not in ended.stdout.replace(original.real, "")
    assert "127.0.0.1:1" not in ended.stdout


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}"])
@pytest.mark.parametrize("command", ["status", "up", "down"])
def test_a_damaged_state_file_is_named_and_left(original: DataDir, damage: str, command: str) -> None:
    original.state_file.write_text(damage)
    lock = original.lock() if command == "down" else None
    assert lock is None or command == "down"
    ended = runner.invoke(app, [command, "--data-dir", str(original.path)])
    assert ended.exit_code == 1
    assert f"{original.state_file} is damaged" in ended.stderr
    assert "`headrace up --brokers N`" in ended.stderr
    assert original.state_file.read_text() == damage


def test_a_library_start_on_a_damaged_directory_starts_nothing(original: DataDir) -> None:
    original.state_file.write_text("{")
    with pytest.raises(LocalClusterFailed, match=r"supervisor\.json is damaged"):
        LocalCluster(original.path).launch()
    assert original.state_file.read_text() == "{"


@pytest.mark.parametrize("command", ["status", "up", "demo"])
def test_a_file_in_the_place_of_the_directory_is_named(tmp_path: Path, command: str) -> None:
    (tmp_path / "file").write_text("mine")
    ended = runner.invoke(app, [command, "--data-dir", str(tmp_path / "file")])
    assert ended.exit_code == 1
    assert f"{tmp_path / 'file'} is a file" in ended.stderr
    assert "move it away, or give another place, as in `headrace up --data-dir DIR`" in ended.stderr
    assert (tmp_path / "file").read_text() == "mine"


def test_a_bundle_of_a_damaged_directory_says_so_and_has_the_logs(original: DataDir) -> None:
    (original.logs / "broker-1.log").write_text("a line\n")
    original.state_file.write_text("{")
    bundle = Bundle()
    assert add_local(bundle, original.path)
    assert bundle.names == ["local/logs/broker-1.log"]
    assert "is damaged" in bundle.missing["local/supervisor.json"]


@pytest.mark.parametrize("planted", ["", "supervisor.json"])
def test_what_another_user_has_put_there_is_neither_started_nor_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    directory = DataDir(tmp_path / ".headrace")
    directory.create()
    owners = {directory.path / planted: 10_001}
    monkeypatch.setattr("headrace_common.runtime.private_files._owner_of", lambda path, _: owners.get(path, 0))
    for refused in (directory.create, directory.read):
        with pytest.raises(LocalClusterFailed, match=r"belongs to another user \(uid 10001\).*--data-dir DIR"):
            refused()
    held = directory.lock()
    assert held is not None
    assert runner.invoke(app, ["down", "--data-dir", str(directory.path)]).exit_code != 0
    os.close(held)
