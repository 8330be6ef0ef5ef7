"""Snapshots on a real S3 server: a worker whose disk is gone begins with them, and is exact without them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen
from uuid import uuid4

import pytest
from libs.common.tests.kit.ports import free_port
from libs.streams.tests import test_snapshot_places as contract

from headrace.testing import TestCluster
from headrace_streams.adapters.snapshots import ArrowSnapshots

from .apps import AppUnderTest, app, wait_until
from .s3_server import BUCKET, started_s3
from .test_workers import Counted

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]
globals().update({name: test for name, test in vars(contract).items() if name.startswith("test_")})
TASKS = [f"by-word/{number}" for number in range(3)]
NEVER_MS = 86_400_000


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with started_s3(tmp_path_factory.mktemp("s3")) as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield


@pytest.fixture
def url(s3: None) -> str:
    return f"s3://{BUCKET}/{uuid4().hex}"


@pytest.fixture
def place(url: str) -> Iterator[contract.Place]:
    place = contract.Place(url)
    with place.snapshots:
        yield place


async def test_a_bucket_that_does_not_exist_is_told(s3: None, tmp_path: Path) -> None:
    place = contract.Place("s3://nowhere/x")
    with pytest.raises(contract.SnapshotFailed, match="Bucket 'nowhere' not found"):
        await place.put(tmp_path, contract.snapshot())


class Watched:
    """A worker whose figures are read."""

    def __init__(self, tested: AppUnderTest) -> None:
        self.tested = tested
        self.listen = f"127.0.0.1:{free_port()}"

    def figure(self, name: str) -> float:
        with urlopen(f"http://{self.listen}/metrics") as page:
            lines: list[str] = page.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"headrace_streams_{name}_total"))

    def reach(self, name: str, count: int) -> None:
        wait_until(lambda: self.figure(name) >= count, f"{name} is {count}", self.tested.log)


async def test_a_disk_that_is_gone_is_restored_from_a_snapshot_and_the_rest(
    cluster: TestCluster, tmp_path: Path, url: str
) -> None:
    tested = app(cluster, tmp_path, "counts")
    counted, watched = Counted(tested), Watched(tested)
    settings = {"snapshot_url": url, "acceptable_recovery_lag": 0, "metrics_listen": watched.listen}
    with tested.running(snapshot_interval_ms=1_000, **settings):
        counted.send()
        counted.check()
        watched.reach("snapshots", 3)
    place = ArrowSnapshots(url, f"{tested.lines}-counts")
    before = {task: max(await place.find(task)) for task in TASKS}
    with tested.running(snapshot_interval_ms=NEVER_MS, **settings):
        counted.send()
        counted.check()
        assert watched.figure("snapshots_restored") == 0, "the disk is there"
    shutil.rmtree(tmp_path / "state")
    with tested.running(snapshot_interval_ms=NEVER_MS, **settings):
        counted.send()
        counted.check()
        assert (watched.figure("snapshots_restored"), watched.figure("snapshots_failed")) == (3, 0)
    assert all(f"task {task} begins with the snapshot {before[task].name}" in tested.log() for task in TASKS)

    for task in TASKS:
        for one in await place.find(task):
            with place._files.open_output_stream(f"{place._at(task, one)}/CURRENT") as target:
                target.write(b"damaged")
    shutil.rmtree(tmp_path / "state")
    with tested.running(snapshot_interval_ms=NEVER_MS, **settings):
        counted.send()
        counted.check()
        assert watched.figure("snapshots_restored") == 0
        assert watched.figure("snapshots_failed") >= 3
    assert "CURRENT has 7 bytes that are not those that were written" in tested.log()


def test_a_place_that_is_away_stops_nothing(cluster: TestCluster, tmp_path: Path, s3: None) -> None:
    tested = app(cluster, tmp_path, "counts")
    counted, watched = Counted(tested), Watched(tested)
    settings = {"snapshot_url": "s3://nowhere/x", "acceptable_recovery_lag": 0, "metrics_listen": watched.listen}
    with tested.running(snapshot_interval_ms=1_000, **settings):
        counted.send()
        counted.check()
        watched.reach("snapshots_failed", 3)
    shutil.rmtree(tmp_path / "state")
    with tested.running(**settings):
        counted.send()
        counted.check()
