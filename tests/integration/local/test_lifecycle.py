"""The life of a local cluster, with a real etcd and stand-ins for the services, which start at once."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from libs.common.tests.kit.ports import free_port, give_back
from tests.integration.local.conftest import MakeCluster, headrace, processes_on

from headrace_cli.local import AlreadyRunning, LocalCluster, LocalClusterFailed, NotRunning, StartFailed, StartTimedOut
from headrace_cli.local.processes import ProcessId, wait_until
from headrace_cli.local.state import Health

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("fakes")]

NAMES = ["etcd-1", "controller-1", "broker-1", "broker-2", "broker-3", "coordinator-1", "admin-1"]


def test_cluster_json_says_where_everything_is_and_afterwards_that_nothing_runs(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = make_cluster()
    cluster.start()
    file = tmp_path / "data" / "cluster.json"
    told = json.loads(file.read_text())
    assert set(told) == {"cluster_id", "data_dir", "bootstrap_servers", "admin_url", "connect_url", "ca", "processes"}
    assert told["data_dir"] == os.path.realpath(tmp_path / "data")
    assert [p["name"] for p in told["processes"]] == NAMES
    assert all(set(p) == {"name", "role", "pid", "grpc", "metrics"} for p in told["processes"])
    assert told["bootstrap_servers"] == cluster.bootstrap_servers == [p["grpc"] for p in told["processes"][2:5]]
    assert told["admin_url"] == cluster.admin_url
    assert (told["connect_url"], told["ca"]) == (None, None)
    for process in told["processes"]:
        os.kill(process["pid"], 0)
        assert (tmp_path / "data" / "logs" / f"{process['name']}.log").exists()
    cluster.stop()
    cluster.stop()
    assert [p["pid"] for p in json.loads(file.read_text())["processes"]] == [None] * len(NAMES)
    assert processes_on(tmp_path) == []


def test_a_start_that_is_late_says_what_the_first_that_is_late_has_said(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    etcd = tmp_path / "etcd"
    etcd.write_text("#!/bin/sh\necho 'the disk takes long' >&2\nexec sleep 100\n")
    etcd.chmod(0o755)
    with pytest.raises(StartTimedOut) as late:
        make_cluster(etcd=str(etcd)).start(timeout_seconds=3)
    for part in ("etcd-1 is starting", "The end of that of etcd-1:\nthe disk takes long"):
        assert part in str(late.value)


def test_an_etcd_that_was_killed_as_it_began_begins_anew(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """As it leaves its log in the first tenth of a second: with what it is, and no entry."""
    cluster = make_cluster()
    cluster.start()
    cluster.stop()
    member = tmp_path / "data" / "etcd-1" / "member"
    [log] = (member / "wal").glob("*.wal")
    content, at = log.read_bytes(), 0
    for _ in range(3):  # checksum, metadata, snapshot
        (frame,) = struct.unpack_from("<Q", content, at)
        at += 8 + (frame & 0xFF_FFFF) + (frame >> 56 & 7)
    log.write_bytes(content[:at] + bytes(len(content) - at))
    (member / "snap" / "db").unlink()
    cluster.start()
    assert "it begins anew" in (tmp_path / "data" / "logs" / "supervisor.log").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_a_process_that_is_killed_comes_back_where_it_was(make_cluster: MakeCluster, tmp_path: Path, name: str) -> None:
    cluster = make_cluster(restart_delay_ms=0)
    cluster.start()
    before = cluster.kill(name)
    cluster.wait_ready()
    after = cluster.process(name)
    assert after.pid != before.pid
    assert (after.grpc, after.metrics, after.http) == (before.grpc, before.metrics, before.http)
    assert after.restarts == 1
    told = {p["name"]: p["pid"] for p in json.loads((tmp_path / "data" / "cluster.json").read_text())["processes"]}
    assert told[name] == after.pid
    log = (tmp_path / "data" / "logs" / "supervisor.log").read_text()
    assert f"{name} was killed by SIGKILL; starting it again in 0 ms" in log


@pytest.fixture
def own_port() -> dict[str, int]:
    """For the first broker: every cluster wants 9292 for it, and while ours is stopped another test's takes that."""
    port = free_port()
    give_back(port)
    return {"broker-1": port}


def test_ports_are_the_same_after_a_stop(make_cluster: MakeCluster, own_port: dict[str, int]) -> None:
    first = make_cluster(ports=own_port)
    first.start()
    ports = first.state.ports
    first.stop()
    second = make_cluster()
    second.start()
    assert second.state.ports == ports


def test_without_restarts_the_dead_stay_dead_until_they_are_started(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(restart=False)
    cluster.start()
    cluster.kill("broker-2")
    assert wait_until(lambda: cluster.process("broker-2").health is Health.DEAD, 10)
    with pytest.raises(StartFailed, match="broker-2 was killed by SIGKILL and stays dead"):
        cluster.wait_ready()
    with pytest.raises(NotRunning, match="broker-2 does not run now"):
        cluster.kill("broker-2")
    cluster.restart("broker-2")
    cluster.wait_ready()
    assert cluster.process("broker-2").alive()


def test_a_gentle_kill_and_signals_by_role(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(restart_delay_ms=0)
    cluster.start()
    assert cluster.kill("admin", hard=False).name == "admin-1"
    cluster.wait_ready()
    cluster.signal("controller", signal.SIGSTOP)
    cluster.signal("controller", signal.SIGCONT)
    with pytest.raises(NotRunning, match="no process is called 'broker'; there are etcd-1"):
        cluster.kill("broker")


def test_a_second_start_on_the_same_directory_is_refused(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    cluster.start()
    with pytest.raises(AlreadyRunning):
        make_cluster().start()
    assert cluster.running()
    attached = LocalCluster.attach(cluster.directory.path)
    assert attached.bootstrap_servers == cluster.bootstrap_servers
    attached.stop()
    with pytest.raises(NotRunning):
        LocalCluster.attach(cluster.directory.path)


def test_what_a_killed_supervisor_leaves_is_cleared_and_the_next_start_works(
    make_cluster: MakeCluster, tmp_path: Path, own_port: dict[str, int]
) -> None:
    cluster = make_cluster(ports=own_port)
    cluster.start()
    state = cluster.state
    state.supervisor.signal(signal.SIGKILL)
    for process in state.processes:
        assert process.identity is not None
        assert process.identity.wait_gone(10), "children die with their supervisor"
    stale = json.loads((tmp_path / "data" / "cluster.json").read_text())
    assert all(p["pid"] for p in stale["processes"])
    assert wait_until(cluster.revive, 10)
    cluster.wait_ready()
    assert cluster.bootstrap_servers == stale["bootstrap_servers"]
    cluster.stop()
    assert not cluster.revive()
    again = make_cluster()
    again.start()
    assert again.bootstrap_servers == stale["bootstrap_servers"]


def test_a_copy_of_a_live_directory_starts_beside_its_original(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster()
    cluster.start()
    before = [(p.name, p.pid) for p in cluster.processes]
    shutil.copytree(tmp_path / "data", tmp_path / "copy", ignore=shutil.ignore_patterns("etcd-*"))
    told = headrace("status", "--data-dir", "copy", "-o", "json", cwd=tmp_path)
    assert (told.returncode, json.loads(told.stdout)["processes"]) == (7, [])
    assert "no cluster runs on" in headrace("down", "--data-dir", "copy", cwd=tmp_path).stderr
    with LocalCluster(tmp_path / "copy") as copy:
        assert copy.state.data_dir == os.path.realpath(tmp_path / "copy")
        assert not set(copy.bootstrap_servers) & set(cluster.bootstrap_servers)
        assert [(p.name, p.pid) for p in cluster.processes] == before
        assert all(p.alive() and p.health is Health.READY and p.restarts == 0 for p in cluster.processes)
    assert all(p.alive() for p in cluster.processes)


def test_a_copy_leaves_its_ports_to_an_original_that_is_down(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster(brokers=1)
    cluster.start()
    cluster.stop()
    ports = cluster.state.ports
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    with LocalCluster(tmp_path / "copy", brokers=1) as copy:
        assert not set(copy.state.ports.values()) & set(ports.values())
        cluster.start()
        assert copy.running()


def test_a_copied_quorum_that_failed_beside_its_original_starts_when_that_is_down(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(brokers=1, etcd_members=3)
    cluster.start()
    cluster.stop()
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    cluster.start()
    copy = LocalCluster(tmp_path / "copy", brokers=1, etcd_members=3)
    for _ in range(2):
        with pytest.raises(StartFailed, match=f"is a copy of {re.escape(str(cluster.directory.real))}, whose cluster"):
            copy.start()
    assert all(p.alive() and p.restarts == 0 for p in cluster.processes)
    cluster.stop()
    with copy:
        assert not set(copy.bootstrap_servers) & set(cluster.bootstrap_servers)
        assert {p.name for p in copy.processes} == {p.name for p in cluster.processes}
    cluster.start()


def test_a_moved_directory_goes_on_where_it_was(make_cluster: MakeCluster, own_port: dict[str, int]) -> None:
    first = make_cluster(ports=own_port)
    first.start()
    ports = first.state.ports
    first.stop()
    data = first.directory.path
    data.rename(data.parent / "moved")
    with LocalCluster(data.parent / "moved") as moved:
        assert moved.state.ports == ports
        assert moved.state.data_dir == os.path.realpath(data.parent / "moved")


def test_a_pid_that_now_belongs_to_somebody_else_is_never_signalled() -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        mine = ProcessId.of(bystander.pid)
        assert mine is not None
        assert not ProcessId(mine.pid, mine.started - 1).signal(signal.SIGKILL)
        assert mine.alive()
    finally:
        bystander.communicate(b"\n")
    assert not mine.alive()


def test_the_cluster_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        "import sys; from headrace_cli.local import LocalCluster; LocalCluster(sys.argv[1], closed=False).start(); "
        "print('up', flush=True); input()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "data")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"up\n"
    owner.kill()
    owner.communicate()
    assert wait_until(lambda: processes_on(tmp_path) == [], 20, poll_seconds=0.1)


def test_a_service_that_does_not_start_is_named_with_its_last_words(
    make_cluster: MakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CRASH", "broker-2")
    with pytest.raises(StartFailed) as failed:
        make_cluster(restart_delay_ms=0).start()
    assert "broker-2 exited with code 7" in str(failed.value)
    assert "the fake has an unhappy day" in str(failed.value)
    assert processes_on(tmp_path) == []


def test_a_directory_with_other_things_in_it_is_not_used(make_cluster: MakeCluster, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.txt").write_text("precious")
    with pytest.raises(LocalClusterFailed, match="holds other files"):
        make_cluster().start()
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["thesis.txt"]
    refused = headrace("demo", "--fresh", "--data-dir", "data", cwd=tmp_path)
    assert refused.returncode == 2
    assert (tmp_path / "data" / "thesis.txt").read_text() == "precious"


def test_an_etcd_that_cannot_be_run_is_named(make_cluster: MakeCluster) -> None:
    with pytest.raises(StartFailed, match="no-such-etcd is no program"):
        make_cluster(etcd="no-such-etcd").start()


def test_three_etcd_members_form_a_quorum_and_one_may_go(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(etcd_members=3, brokers=1, restart_delay_ms=0)
    cluster.start()
    cluster.kill("etcd-2")
    cluster.wait_ready()
    assert [p.name for p in cluster.processes if p.role == "etcd"] == ["etcd-1", "etcd-2", "etcd-3"]


def test_ctrl_c_stops_a_cluster_in_the_foreground(tmp_path: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        command = [sys.executable, "-m", "headrace_cli", "up", "--brokers", "1", "--open", "-o", "json"]
        up = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert up.stdout is not None
        text = ""
        while not text.endswith("\n}\n"):
            line = up.stdout.readline()
            assert line, up.communicate(timeout=30)[1]
            text += line
        assert json.loads(text)["bootstrap_servers"]
        up.send_signal(number)
        _, said = up.communicate(timeout=30)
        assert up.returncode == 0, said
        assert "stopped; data are kept" in said
        assert "Traceback" not in said
        assert processes_on(tmp_path) == []
