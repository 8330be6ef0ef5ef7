"""A broker whose wall clock jumps by a day, by a preloaded shim: nothing goes early, through a restart either."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest
from retention_looks import HURRIED, starts, until, write

from headrace import AdminClient, Producer
from headrace.testing import TestCluster, started_cluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
SHIM = Path(__file__).with_name("clock_shim.c")
DAY_S = 86_400
HALF_A_DAY_MS = DAY_S * 500


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None, "this test compiles a C file: install a C compiler (apt-get install gcc)"
    library = tmp_path_factory.mktemp("shim") / "clock_shim.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SHIM), "-ldl"], check=True, timeout=60)
    return library


def believed_off_ms(producer: Producer, topic: str) -> int:
    """How far the broker's stamps are from the true time."""
    stamp = producer.send(topic, b"now").result(30).timestamp_ms
    return stamp - time.time_ns() // 1_000_000


def look(admin: AdminClient, producer: Producer, topic: str) -> None:
    """Return when retention has looked again, by the true time: what is written now is old in a moment."""
    write(producer, topic, 1)
    [end] = [log.log_end_offset for one in admin.describe_logs(topics=[topic]) for log in one.logs or ()]
    until(lambda: starts(admin, topic) == [end], "retention goes on while the clock is wrong")


def test_a_day_ahead_or_behind_deletes_nothing_early(tmp_path: Path, shim: Path) -> None:
    shift = tmp_path / "seconds"
    launcher = ["env", f"LD_PRELOAD={shim}", f"HEADRACE_CLOCK_FILE={shift}"]
    with started_cluster(tmp_path / "data", settings=HURRIED, launchers={"broker-1": launcher}) as cluster:
        kept = cluster.unique_topic(retention_ms="3600000")
        short = cluster.unique_topic(retention_ms="500")
        stamped = cluster.unique_topic(message_timestamp_type="LogAppendTime", retention_ms="3600000")
        with cluster.producer(linger_ms=0) as producer, cluster.admin() as admin:
            write(producer, kept, 3)
            assert abs(believed_off_ms(producer, stamped)) < HALF_A_DAY_MS
            look(admin, producer, short)
            shift.write_text(f"{DAY_S}\n")
            until(lambda: believed_off_ms(producer, stamped) > HALF_A_DAY_MS, "the clock is a day ahead")
            look(admin, producer, short)
            assert (starts(admin, kept), starts(admin, stamped)) == ([0], [0])
        _restart(cluster)
        with cluster.producer(linger_ms=0) as producer, cluster.admin() as admin:
            assert believed_off_ms(producer, stamped) > HALF_A_DAY_MS, "the clock is a day ahead from the start"
            look(admin, producer, short)
            assert (starts(admin, kept), starts(admin, stamped)) == ([0], [0])
            shift.write_text("0\n")
            look(admin, producer, short)
            shift.write_text(f"-{DAY_S}\n")
            time.sleep(1.5)  # three looks: by a clock that went back nothing is old, so nothing can be seen of them
            assert believed_off_ms(producer, stamped) > -HALF_A_DAY_MS, "stamps do not go back by a day"
            shift.write_text("0\n")
            time.sleep(1.5)  # likewise: for an hour it is doubted that the day has passed
            assert (starts(admin, kept), starts(admin, stamped)) == ([0], [0])


def _restart(cluster: TestCluster) -> None:
    cluster.local.kill("broker-1")
    cluster.local.restart("broker-1")
    cluster.local.wait_ready()
