"""The supervisor of a local cluster: on a disk that fills up, and with certificates that come to their end."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from headrace.local_keys import read_local_keys
from headrace_cli.local import LocalCluster
from headrace_cli.local.certificate_files import LEAF_LIFE, EtcdFiles
from headrace_cli.local.children import Child
from headrace_cli.local.failures import LocalClusterFailed
from headrace_cli.local.plan import (
    ADMIN_KEYS,
    CERTIFICATE_SECONDS_MIN,
    CERTIFICATES,
    NODE_TOKEN,
    ClusterOptions,
    node_files,
)
from headrace_cli.local.state import NOBODY, ClusterState, DataDir, Phase, ProcessState, is_own_name
from headrace_cli.local.supervisor import Supervisor
from headrace_common.core.access.api_keys import verifier_of
from headrace_common.core.errors import Rejected
from headrace_common.core.secret import Secret


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


# --- closed clusters ----------------------------------------------------------------------------------------------

ADDRESS = "127.0.0.1:9292"


def closed(tmp_path: Path, *, id: str | None = "one") -> Supervisor:
    supervisor = Supervisor(DataDir.at(tmp_path), ClusterOptions(closed=True), owned=False)
    supervisor._state.cluster_id = id
    supervisor._state.processes = [
        ProcessState("broker-1", "broker", ADDRESS, "127.0.0.1:1"),
        ProcessState("controller-1", "controller", "127.0.0.1:2", "127.0.0.1:3"),
        ProcessState("admin-1", "admin", "127.0.0.1:4", "127.0.0.1:5", "127.0.0.1:6"),
    ]
    return supervisor


@pytest.fixture
def local_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "headrace" / "local"


def test_each_start_has_another_key_which_controllers_know_and_programs_find(tmp_path: Path, local_keys: Path) -> None:
    seen = set()
    for _ in range(2):
        supervisor = closed(tmp_path)
        supervisor._make_key()
        found = read_local_keys(local_keys)
        key = found[ADDRESS].reveal()
        assert found == dict.fromkeys([ADDRESS, "127.0.0.1:4", "127.0.0.1:6"], Secret(key))
        assert (tmp_path / ADMIN_KEYS).read_text() == f"{verifier_of(key)}\n"
        assert (tmp_path / ADMIN_KEYS).stat().st_mode & 0o777 == 0o600
        assert LocalCluster(tmp_path).authorization == {"Authorization": f"Bearer {key}"}
        assert (tmp_path / "authorization").stat().st_mode & 0o777 == 0o600
        assert is_own_name("authorization")
        assert key not in repr(vars(supervisor))
        seen.add(key)
    assert len(seen) == 2
    supervisor._forget_key()
    assert not list(local_keys.iterdir())
    assert not (tmp_path / ADMIN_KEYS).exists()
    assert LocalCluster(tmp_path).authorization == {}


def test_a_copy_and_its_original_have_a_key_each(tmp_path: Path, local_keys: Path) -> None:
    original, copy = closed(tmp_path / "original"), closed(tmp_path / "copy")
    copy._state.original = str(tmp_path / "original")
    copy._state.processes = [ProcessState("broker-1", "broker", "127.0.0.1:8", "127.0.0.1:9")]
    for supervisor in (original, copy):
        supervisor._directory.create()
        supervisor._make_key()
    assert {ADDRESS, "127.0.0.1:8"} <= read_local_keys(local_keys).keys()
    copy._forget_key()
    assert ADDRESS in read_local_keys(local_keys)


def test_a_new_cluster_tells_its_key_as_soon_as_it_has_an_id(
    tmp_path: Path, local_keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = closed(tmp_path, id=None)
    supervisor._make_key()
    assert not local_keys.exists()
    told: list[bool] = []
    monkeypatch.setattr(DataDir, "cluster_id", lambda _: "one")
    monkeypatch.setattr(DataDir, "write", lambda *_: told.append((local_keys / "one.toml").exists()))
    supervisor._directory.logs.mkdir()
    supervisor._look()
    assert told == [True], "who sees that it is ready finds the key"


def test_a_place_for_the_key_that_cannot_be_written_is_told(tmp_path: Path, local_keys: Path) -> None:
    (tmp_path / "config").touch()
    with pytest.raises(LocalClusterFailed, match="XDG_CONFIG_HOME names another directory"):
        closed(tmp_path)._make_key()


def test_an_open_cluster_has_no_key(tmp_path: Path, local_keys: Path) -> None:
    supervisor = running(tmp_path, Phase.STARTING)
    supervisor._state.cluster_id = "one"
    supervisor._make_key()
    supervisor._forget_key()
    assert not local_keys.exists()
    assert not (tmp_path / ADMIN_KEYS).exists()


@pytest.mark.parametrize("was", [True, False])
def test_a_closed_cluster_never_opens(tmp_path: Path, was: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = DataDir.at(tmp_path / "d")
    directory.create()
    directory.write(ClusterState(NOBODY, Phase.STOPPED, ClusterOptions(closed=was), data_dir=directory.real))
    started: list[object] = []
    monkeypatch.setattr("headrace_cli.local.cluster.spawn_supervisor", lambda *given, **how: started.append(given))
    if was:
        with pytest.raises(Rejected, match="a cluster that was closed never opens"):
            LocalCluster(directory.path, closed=False).launch()
        assert not started
    else:
        LocalCluster(directory.path, closed=False).launch()
    LocalCluster(directory.path, closed=True).launch()
    assert started


@pytest.mark.parametrize(
    ("was", "connect", "closed"),
    [(None, False, True), (None, True, True), (False, False, False), (False, True, False), (True, True, True)],
)
def test_a_new_cluster_is_closed_and_one_of_before_stays_what_it_was(
    tmp_path: Path, was: bool | None, connect: bool, closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = DataDir.at(tmp_path / "d")
    directory.create()
    if was is not None:
        directory.write(ClusterState(NOBODY, Phase.STOPPED, ClusterOptions(closed=was), data_dir=directory.real))
    monkeypatch.setattr("headrace_cli.local.cluster.spawn_supervisor", lambda *_, **__: None)
    cluster = LocalCluster(directory.path, connect=connect)
    cluster.launch()
    assert cluster.options.closed is closed
