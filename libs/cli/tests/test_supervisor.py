"""The supervisor of a local cluster on a disk that fills up."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from headrace_cli.local.plan import ClusterOptions
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
