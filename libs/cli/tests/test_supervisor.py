"""The supervisor of a local cluster on a disk that fills up."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from headrace_cli.local.children import Child
from headrace_cli.local.failures import LocalClusterFailed
from headrace_cli.local.plan import NODE_TOKEN, ClusterOptions
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
