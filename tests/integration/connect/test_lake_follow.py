"""lake_follow and lake-sink on one lake at once, and drivers that are killed; the job's loop without Spark."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.integration.connect.handing import Handing

from headrace.testing import TestCluster
from headrace_jobs.lake_follow import job
from headrace_jobs.lake_follow.job import Done

STEPS = ("jobs.lake_follow.files", "jobs.lake_follow.commit")
"""A driver dies with files that no commit names, and between the commits of two partitions."""
LONG = "CONNECT_LONG" in os.environ
"""``make connect-long``."""
pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_800 if LONG else 600)]


def test_of_two_at_once_one_loses(cluster: TestCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handing = Handing(cluster, tmp_path)
    handing.fill(40)
    reached: list[str] = []

    def another(name: str) -> None:
        reached.append(name)
        if len(reached) == 1:
            handing.fill(10)
            handing.sink()

    monkeypatch.setattr(job, "failpoint", another)
    assert handing.follow_here() == Done(taken=2)
    handing.check()
    names = {path.name.split("-")[1] for path in handing.lake.rglob("*.parquet")}
    assert names == {f"{25:020}"}, "files of refused commits are deleted"
    handing.fill(10)
    assert handing.follow_here().commits == 2
    handing.fill(10)
    reached.clear()
    assert handing.follow_here(ends_if_taken=True, trigger=job.trigger_of("1 second")) == Done(taken=2)
    handing.check()


def test_both_run_all_the_time(cluster: TestCluster, tmp_path: Path) -> None:
    handing = Handing(cluster, tmp_path, **{"offset.flush.interval.ms": "100"})
    handing.fill(20)
    ready, stop = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def sink() -> None:
        loops.append(asyncio.get_running_loop())
        ready.set()
        await handing.run(stop)

    thread = threading.Thread(target=lambda: asyncio.run(sink()))
    thread.start()
    assert ready.wait(60)
    try:
        for _ in range(200 if LONG else 10):
            handing.fill(500)
            handing.follow_here(offsets_max=400)
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join(120)
    assert not thread.is_alive()
    handing.follow_here()
    handing.check()


def test_a_driver_is_killed(cluster: TestCluster, tmp_path: Path) -> None:
    handing = Handing(cluster, tmp_path)
    command = [sys.executable, "-m", "tests.integration.connect.handing", str(handing.file), handing.bootstrap]
    environment = os.environ | {"HEADRACE_FAILPOINTS_DIR": str(tmp_path)}
    for number, step in enumerate(STEPS):
        handing.fill(30)
        (tmp_path / step).write_text("kill")
        with (tmp_path / "log").open("wb") as log:
            died = subprocess.run(command, env=environment, stdout=log, stderr=log, timeout=240)
        assert died.returncode == -9, (tmp_path / "log").read_text()[-4_000:]
        done = handing.follow_here()
        assert done.commits == 2 - (step != STEPS[0]), "one partition was committed before"
        handing.check()
        if number:
            handing.fill(10)
            handing.sink()
            handing.check()
