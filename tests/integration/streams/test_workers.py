"""Several workers share an app: they come, go, are killed, follow each other; every row is in the output once."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from libs.common.tests.kit.ports import free_port

from headrace import WorkGroup
from headrace.errors import NotFound, WaitTimedOut
from headrace.testing import TestCluster
from headrace_streams import Stores
from headrace_streams.stores import NoWorkers
from headrace_streams.upkeep import apps
from headrace_streams.worker_process import Ending

from .apps import AppUnderTest, app, check_each_count_once, licence_lines, some_lines, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

TAKEN_OVER_S = 30.0
"""On a busy machine; 3.3 s on a quiet one."""
POINTS = ("streams.fed", "streams.changelog", "sdk.txn.offsets.after", "sdk.txn.end.before", "streams.committed")


class Counted:
    """Sends lines, and knows what has to come out."""

    def __init__(self, tested: AppUnderTest) -> None:
        self.tested = tested
        self.words: Counter[str] = Counter()
        self._seed = 0

    def send(self, count: int = 20) -> None:
        """Some more lines."""
        self._seed += 1
        lines = some_lines(self._seed, count)
        self.words.update(word for line in lines for word in line.split())
        self.tested.send([line.encode() for line in lines])

    def check(self) -> None:
        """All of it came, once."""
        check_each_count_once(self.tested.read(sum(self.words.values())), self.words)


def test_workers_come_and_go(cluster: TestCluster, tmp_path: Path) -> None:
    """Tasks move with their state, whether a worker joins, is stopped, or has no disk."""
    tested = app(cluster, tmp_path, "counts")
    counted = Counted(tested)
    with ExitStack() as stack:
        first = stack.enter_context(tested.running())
        counted.send()
        counted.check()
        second = stack.enter_context(tested.running("other-disk"))
        tested.wait_for_log("works on 3 tasks", 2)
        counted.send()
        counted.check()
        first.send_signal(signal.SIGTERM)
        assert first.wait(30) == Ending.DONE, tested.log()
        counted.send()
        counted.check()
        stack.enter_context(tested.running())
        counted.send()
        second.send_signal(signal.SIGTERM)
        assert second.wait(30) == Ending.DONE, tested.log()
        counted.send()
        counted.check()


def test_two_workers_on_one_disk_have_a_directory_each(cluster: TestCluster, tmp_path: Path) -> None:
    tested = app(cluster, tmp_path, "counts")
    counted = Counted(tested)
    with tested.running(), tested.running():
        tested.wait_for_log("works on 3 tasks", 2)
        counted.send()
        counted.check()
    assert {path.name for path in (tmp_path / "state" / f"{tested.lines}-counts").iterdir()} == {"0", "1"}


def test_a_standby_takes_over_when_a_worker_is_killed(cluster: TestCluster, tmp_path: Path) -> None:
    tested = app(cluster, tmp_path, "counts")
    counted = Counted(tested)
    with tested.running(standbys=1) as first, tested.running("other-disk", standbys=1) as second:
        tested.wait_for_log("works on 3 tasks and stands by for", 2)
        counted.send()
        counted.check()
        killed = second if counted.tested.log().count("stands by") else first
        killed.kill()
        began = time.monotonic()
        counted.send()
        counted.check()
        assert time.monotonic() - began < TAKEN_OVER_S, "after the grace of the group, and not its session of 45 s"


@pytest.mark.parametrize("standbys", [0, 1])
def test_a_worker_dies_at_each_step_beside_another(cluster: TestCluster, tmp_path: Path, standbys: int) -> None:
    """What it leaves open is ended by who takes its tasks over."""
    tested = app(cluster, tmp_path, "counts")
    counted = Counted(tested)
    with ExitStack() as stack:
        workers = [stack.enter_context(tested.running(f"disk-{n}", standbys=standbys)) for n in range(2)]
        tested.wait_for_log("works on 3 tasks", 2)
        for turn, point in enumerate(POINTS):
            tested.arm(point, "kill")
            counted.send()
            tested.wait_for(point)
            (tmp_path / f"{point}.hit").unlink()
            for number, worker in enumerate(workers):
                if worker.poll() is not None:
                    workers[number] = stack.enter_context(tested.running(f"new-{turn}", standbys=standbys))
            counted.check()


def test_words_of_licences_are_counted_with_metrics_and_health(cluster: TestCluster, tmp_path: Path) -> None:
    """By the command, as a newcomer does it; a line may have several spaces in a row, and words that are empty."""
    tested = app(cluster, tmp_path, "counts")
    lines = licence_lines(200)
    words = Counter(word for line in lines for word in line.split(" "))
    assert len(words) > 300, "text"
    tested.send([line.encode() for line in lines])
    metrics, health = (f"127.0.0.1:{port}" for port in (free_port(), free_port()))
    listens = ("--metrics-listen", metrics, "--health-listen", health)
    with tested.running_by_command(*listens) as parent, grpc.insecure_channel(health) as channel:
        check_each_count_once(tested.read(words.total()), words)
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="ready")
        wait_until(lambda: stub.Check(request).status == health_pb2.HealthCheckResponse.SERVING, "ready", tested.log)
        with urlopen(f"http://{metrics}/metrics") as page:
            said = page.read().decode()
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(30) == Ending.DONE, tested.log()
    assert 'headrace_streams_tasks{state="running"} 6.0' in said, said
    assert f'headrace_streams_read_records_total{{topic="{tested.lines}"}} 200.0' in said, said
    assert f'headrace_streams_written_records_total{{topic="{tested.words}"}} {words.total()}.0' in said, said
    assert f'headrace_streams_lag_records{{partition="0",topic="{tested.lines}"}} 0.0' in said, said
    assert "headrace_streams_commit_seconds_bucket" in said, said
    assert re.search(rf"headrace_streams_rows_out_total{{node=\"agg 'counts' [^}}]+}} {words.total()}.0", said), said


def test_state_is_asked_for_from_outside(cluster: TestCluster, tmp_path: Path) -> None:
    """Whichever worker has a key answers; when it has died, the next one."""
    tested = app(cluster, tmp_path, "counts")
    counted = Counted(tested)
    counted.send()
    listens = "127.0.0.1:0"
    servers = ",".join(cluster.bootstrap_servers)
    with (
        tested.running("one", query_listen=listens) as one,
        tested.running("two", query_listen=listens),
        Stores(f"{tested.lines}-counts", servers) as stores,
    ):
        tested.wait_for_log("works on 3 tasks", 2)
        counted.check()
        assert stores.names() == ["counts"]
        counts = stores["counts"]
        assert {row["word"]: row["n"] for row in counts.table().to_pylist()} == counted.words
        assert {word: (counts.get(word) or {})["n"] for word in counted.words} == counted.words
        assert counts.get("nowhere") is None
        word, n = counted.words.most_common(1)[0]
        command = [sys.executable, "-m", "headrace_cli", "-b", servers, "-o", "json", "streams", "state"]
        said = subprocess.run([*command, stores.app, "counts", word], capture_output=True, check=True, timeout=60)
        assert json.loads(said.stdout) == {"rows": [{"word": word, "n": n}]}

        def explained() -> dict[str, Any] | None:
            """Once its sender has told how far it is, or counts as idle."""
            asked = [*command[:-1], "explain", stores.app, word]
            said = subprocess.run(asked, capture_output=True, check=True, timeout=60)
            (told,) = json.loads(said.stdout)["stores"]
            return told if told["watermark"] else None

        told = wait_until(explained, "there is a watermark", tested.log)
        assert told is not None
        with cluster.admin() as admin:
            group = admin.describe_group(stores.app)
        owners = {item.id: item.owner for item in group.items}
        listening = {member.member_id: member.endpoint for member in group.members}
        assert (told["store"], told["key"], told["rows"]) == ("counts", word, [{"word": word, "n": n}])
        assert told["worker"] == owners[told["task"]]
        assert told["listens"] == listening[told["worker"]]
        assert [(at["topic"], at["lag"]) for at in told["reads"]] == [(f"{stores.app}.by-word.repartition", 0)]
        assert told["committed_at"] > told["watermark"] > "2026"
        assert (told["note"], told["standbys"]) == (None, [])
        asked = f"{cluster.admin_url}/v1/streams/{stores.app}/stores/counts/keys/{word}"
        with urlopen(Request(asked, headers=cluster.local.authorization)) as page:
            assert json.load(page)["rows"] == [{"word": word, "n": n}]
        one.kill()
        assert {row["word"]: row["n"] for row in counts.table().to_pylist()} == counted.words
        with pytest.raises(NotFound, match="no store 'sums'; there are: counts"):
            stores["sums"]


def test_what_was_produced_is_read(cluster: TestCluster, tmp_path: Path) -> None:
    tested = app(cluster, tmp_path, "numbered")
    servers = ",".join(cluster.bootstrap_servers)
    with (
        tested.running(query_listen="127.0.0.1:0", commit_interval_ms=500),
        cluster.producer() as producer,
        Stores(f"{tested.lines}-numbered", servers) as stores,
    ):
        tested.wait_for_log("works on")
        numbers = stores["numbers"]
        for n in range(1, 11):
            sent = producer.send(tested.lines, b"x", key=b"ann").result(30)
            assert numbers.get("ann", at_least=sent) == {"key": b"ann", "seen": n}
        beyond = sent._replace(offset=sent.offset + 1)
        with Stores(stores.app, servers, timeout_ms=1_500) as less, pytest.raises(WaitTimedOut, match="and not"):
            less["numbers"].get("ann", at_least=beyond)
    with Stores(stores.app, servers, timeout_ms=60_000) as none, pytest.raises(NoWorkers):
        none.names()
    command = [sys.executable, "-m", "headrace_cli", "-b", servers, "streams", "explain", stores.app, "ann"]
    said = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout.decode()
    assert "the key is taken as text, as no worker answers: no worker of" in said
    assert re.search(rf"task: +{tested.lines}/\d\nworker: +-\n", said), said


def test_a_worker_whose_function_does_not_return_ends_and_others_go_on(cluster: TestCluster, tmp_path: Path) -> None:
    tested = app(cluster, tmp_path, "stuck", 1)
    tested.send([b"first", b"wait", b"last"])
    with tested.running("one", max_poll_interval_ms=2_000) as one:
        assert one.wait(30) == Ending.LOST, tested.log()
        assert "has not returned for 2 s (max_poll_interval_ms)" in tested.log()
        with tested.running("two"):
            assert [row["word"] for _, row in tested.read(3)] == ["first", "wait", "last"]


def test_a_topic_that_is_made_anew_under_a_running_app_is_not_mixed_with_the_old_one(
    cluster: TestCluster, tmp_path: Path
) -> None:
    tested = app(cluster, tmp_path, "numbered", 1)
    tested.send([b"x"] * 5, [b"a"] * 5)
    with tested.running() as worker, cluster.admin() as admin:
        tested.read(5)
        admin.delete_topic(tested.lines)
        admin.create_topic(tested.lines, 1)
        tested.send([b"x"], [b"a"])
        assert worker.wait(60) == Ending.FAILED, tested.log()
    assert "was deleted and made anew" in tested.log()
    assert len(tested.read(5)) == 5, "nothing of the new topic was counted on top of the old one"


def test_a_topic_that_is_enlarged_under_a_running_app_is_read_whole(cluster: TestCluster, tmp_path: Path) -> None:
    """Without state a program gets more tasks; with state, whose keys would move, it is refused."""
    plain, counts = (app(cluster, tmp_path / name, name, 1) for name in ("plain", "numbered"))
    for tested in (plain, counts):
        tested.directory.mkdir()
        tested.send([b"x"] * 3, [b"a"] * 3)
    with plain.running(metadata_max_age_ms=200), counts.running(metadata_max_age_ms=200) as refused:
        plain.read(3)
        counts.read(3)
        with cluster.admin() as admin, cluster.producer() as producer:
            for tested in (plain, counts):
                admin.add_partitions(tested.lines, 2)
                producer.send_many(tested.lines, [b"y"] * 4, partition=1)
            producer.flush()
        assert len(plain.read(7)) == 7, plain.log()
        assert refused.wait(60) == Ending.FAILED, counts.log()
    assert "was enlarged" in counts.log()


def test_an_app_without_topics_of_its_own_is_listed(cluster: TestCluster, tmp_path: Path) -> None:
    """Others that share named work are none."""
    tested = app(cluster, tmp_path, "plain", 1)
    tested.send([b"x"])
    name, other = f"{tested.lines}-plain", f"{tested.lines}-crawlers"
    with tested.running(), WorkGroup(other, ["eu/0"], cluster.bootstrap_servers) as crawlers:
        wait_until(lambda: crawlers.poll(100), "the group has its item", tested.log)
        tested.read(1)
        found = {one["app"]: one for one in apps(cluster.bootstrap_servers)}
    assert found[name] == {"app": name, "members": 1, "changelogs": 0, "repartitions": 0}
    assert other not in found
