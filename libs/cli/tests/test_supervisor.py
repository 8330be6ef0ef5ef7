"""The supervisor of a local cluster: on a disk that fills up, and with certificates that come to their end."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from headrace_cli.local.certificate_files import LEAF_LIFE, EtcdFiles
from headrace_cli.local.children import Child
from headrace_cli.local.failures import LocalClusterFailed
from headrace_cli.local.plan import CERTIFICATE_SECONDS_MIN, CERTIFICATES, NODE_TOKEN, ClusterOptions, node_files
from headrace_cli.local.state import ClusterState, DataDir, Phase
from headrace_cli.local.supervisor import Supervisor


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def running(tmp_path: Path, phase: Phase) -> Supervisor:
    supervisor = Supervisor(DataDir.at(tmp_path), ClusterOptions(), owned=False)
    supervisor._state.phase = phase
    return supervisor


def test_a_full_disk_does_not_end_it_and_what_happened_is_written_down_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = running(tmp_path, Phase.READY)
    with monkeypatch.context() as disk:
        disk.setattr(DataDir, "write", full)
        disk.setattr(Path, "open", full)
        supervisor._say("died", "a process died")
        supervisor._save()
        supervisor._look()
    written: list[Phase] = []

    def write(_: DataDir, state: ClusterState) -> None:
        written.append(state.phase)

    monkeypatch.setattr(DataDir, "write", write)
    supervisor._look()
    supervisor._look()
    assert written == [Phase.READY], "once"


def test_a_disk_that_is_full_from_the_start_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = running(tmp_path, Phase.STARTING)
    monkeypatch.setattr(DataDir, "write", full)
    with pytest.raises(OSError, match="No space"):
        supervisor._save()


def test_a_token_file_without_a_token_is_told_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / NODE_TOKEN).touch()
    with pytest.raises(LocalClusterFailed, match="remove it, and `headrace up` makes a new one"):
        running(tmp_path, Phase.STARTING)._make_token()


def test_a_token_file_that_was_removed_is_there_for_what_starts_again(tmp_path: Path) -> None:
    supervisor = running(tmp_path, Phase.READY)
    starts: list[bool] = []

    class Started:
        plan = SimpleNamespace(name="broker-1")
        state = SimpleNamespace(pid=1)

        def start(self, _now: float) -> None:
            starts.append((tmp_path / NODE_TOKEN).is_file())

    supervisor._start(cast(Child, Started()))
    assert starts == [True]


@pytest.mark.parametrize("tls", [False, True])
def test_certificates_are_made_anew_while_the_cluster_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    options = ClusterOptions(tls=tls, certificate_seconds=CERTIFICATE_SECONDS_MIN)
    now = [1_000.0]
    monkeypatch.setattr("headrace_cli.local.supervisor.time.monotonic", lambda: now[0])
    supervisor = Supervisor(DataDir.at(tmp_path), options, owned=False)
    supervisor._directory.logs.mkdir()
    supervisor._state.phase = Phase.READY
    supervisor._renew_certificates()
    etcd, nodes = EtcdFiles(tmp_path / CERTIFICATES), node_files(tmp_path)
    pairs = [etcd.member, etcd.controller, *([nodes.of("broker"), nodes.of("controller")] if tls else [])]
    before = {path: path.read_bytes() for path in (*pairs, etcd.ca)}
    now[0] += CERTIFICATE_SECONDS_MIN / 3 - 1
    supervisor._look()
    assert {path: path.read_bytes() for path in before} == before, "it is not time yet"
    now[0] += 1
    with monkeypatch.context() as disk:
        disk.setattr("headrace_cli.local.certificates.write_pair", full)
        supervisor._look()
    assert {path: path.read_bytes() for path in before} == before
    assert "cannot write certificates to" in supervisor._directory.events.read_text()
    now[0] += CERTIFICATE_SECONDS_MIN / 3
    supervisor._look()
    assert all(path.read_bytes() != before[path] for path in pairs)
    assert etcd.ca.read_bytes() == before[etcd.ca]
    after = {path: path.read_bytes() for path in pairs}
    supervisor._look()
    assert {path: path.read_bytes() for path in pairs} == after, "once"


def test_it_wakes_up_for_its_next_look_at_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def wait(_: object, __: object, ___: object, timeout: float) -> tuple[list[int], list[int], list[int]]:
        waits.append(timeout)
        return [], [], []

    monkeypatch.setattr("headrace_cli.local.supervisor.select.select", wait)
    for seconds in (CERTIFICATE_SECONDS_MIN, LEAF_LIFE.total_seconds()):
        Supervisor(DataDir.at(tmp_path), ClusterOptions(certificate_seconds=seconds), owned=False)._wait()
    assert 9 < waits[0] <= 10
    assert waits[1] == 60
