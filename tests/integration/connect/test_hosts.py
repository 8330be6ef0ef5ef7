"""Host processes against a cluster: tasks are started, paused, resumed, killed, moved on and stopped; each row once."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
from libs.connect.tests.wheels import write_wheel
from typer.testing import CliRunner

from headrace.testing import TestCluster
from headrace_cli.app import app
from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.clock import SystemClock, limit_s, pause_ms
from headrace_common.runtime.threads import run_in_thread
from headrace_connect.core.errors import Fault
from headrace_connect.core.progress import Progress
from headrace_connect.core.splitting import share
from headrace_connect.runtime.installing import Index, install
from headrace_connect_worker.adapters.host_processes import HostProcesses
from headrace_connect_worker.config import ConnectConfig, HostLimits
from headrace_connect_worker.core.records import RunState, SplitSpec, TargetState
from headrace_connect_worker.ports import (
    HostCrashed,
    HostEvent,
    StartTask,
    TaskReported,
    TopicSeen,
    WorkFound,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

FILES, ROWS = 2, 500
BAD = 7


class Files:
    """A connector of files, and the events of its hosts."""

    def __init__(self, hosts: HostProcesses, topic: str, directory: Path) -> None:
        self.hosts = hosts
        self.topic = topic
        self.name = f"files-{topic}"
        self.directory = directory
        self.config = {
            "name": self.name,
            "connector.class": "files",
            "path": str(directory),
            "format": "jsonl",
            "topic": topic,
            "tasks.max": "2",
            "offset.flush.interval.ms": "100",
            "poll.interval.ms": "50",
        }
        self.written = 0
        self._events: AsyncIterator[HostEvent] = hosts.events()

    def write(self) -> None:
        for number in range(FILES):
            with (self.directory / f"{number}.jsonl").open("a") as file:
                for _ in range(ROWS):
                    file.write(json.dumps({"n": self.written}) + "\n")
                    self.written += 1

    async def next(self) -> HostEvent:
        async with limit_s(60):
            return await anext(self._events)

    async def both(self, state: RunState) -> None:
        """Wait until both tasks are in ``state``."""
        seen: set[int] = set()
        while len(seen) < FILES:
            event = await self.next()
            if isinstance(event, TaskReported) and event.state is state:
                seen.add(event.task)

    async def until(self, task: int, state: RunState, generation: int) -> TaskReported:
        """Wait until a task is in ``state``."""
        while True:
            event = await self.next()
            if isinstance(event, TaskReported) and (event.task, event.state, event.generation) == (
                task,
                state,
                generation,
            ):
                return event

    async def start(self, splits: tuple[SplitSpec, ...], generation: int) -> None:
        by_id = {split.id: split for split in splits}
        for task, own in enumerate(share(list(by_id), 2)):
            parts = tuple(by_id[split] for split in own)
            await self.hosts.start(StartTask(self.name, task, self.config, parts, generation))

    async def refuse_secrets(self) -> None:
        """A variable that the worker does not allow is refused, and not shown."""
        config = {**self.config, "topic": "${env:HOME}"}
        await self.hosts.start(StartTask(self.name, 0, config, (), 13))
        while True:
            event = await self.next()
            if isinstance(event, TaskReported) and event.generation == 13:
                break
        assert (event.state, event.fault) == (RunState.FAILED, Fault.CONFIG)
        assert "env.allowed names those that may" in event.trace

    async def set_target(self, target: TargetState) -> None:
        for task in range(FILES):
            await self.hosts.set_target(self.name, task, target)


def numbers_in(cluster: TestCluster, topic: str) -> Counter[int]:
    with cluster.consumer(topic, isolation_level="read_committed") as consumer:
        return Counter(json.loads(record.value)["n"] for record in consumer.read_to_end(timeout_ms=60_000))


async def until_all_are_there(cluster: TestCluster, files: Files) -> None:
    async with limit_s(60):
        while sum((found := await run_in_thread(numbers_in, cluster, files.topic)).values()) < files.written:
            await pause_ms(50)
    assert found == Counter(range(files.written))


async def test_two_tasks_of_a_file_source(cluster: TestCluster, tmp_path: Path) -> None:
    topic = cluster.unique_topic("numbers", partitions=2)
    config = ConnectConfig(bootstrap_servers=",".join(cluster.bootstrap_servers))
    async with HostProcesses.of(config, SystemClock()) as hosts:
        files = Files(hosts, topic, tmp_path)
        files.write()
        await hosts.watch(files.name, files.config, 1)
        work = await files.next()
        assert isinstance(work, WorkFound)
        assert {split.id for split in work.splits} == {"0.jsonl", "1.jsonl"}

        await files.start(work.splits, 10)
        topics: set[tuple[int, str]] = set()
        while len(topics) < FILES:
            event = await files.next()
            if isinstance(event, TopicSeen):
                topics.add((event.task, event.topic))
        assert topics == {(0, topic), (1, topic)}
        await until_all_are_there(cluster, files)

        await files.set_target(TargetState.PAUSED)
        await files.both(RunState.PAUSED)
        files.write()
        await files.set_target(TargetState.STARTED)
        await files.both(RunState.RUNNING)
        await until_all_are_there(cluster, files)

        [host] = hosts._hosts.values()
        assert host.pid is not None
        files.write()
        os.kill(host.pid, signal.SIGKILL)
        while not isinstance(crashed := await files.next(), HostCrashed):
            pass
        assert "killed by SIGKILL" in crashed.trace
        await hosts.watch(files.name, files.config, 1)
        await files.start(work.splits, 11)
        await files.both(RunState.RUNNING)
        await until_all_are_there(cluster, files)

        await hosts.stop(files.name, 0)
        await hosts.start(StartTask(files.name, 0, files.config, work.splits, 12))
        await files.until(0, RunState.RUNNING, 12)
        files.write()  # both tasks read, and the one of the older generation is fenced
        event = await files.until(1, RunState.UNASSIGNED, 11)
        assert event.fault is Fault.FENCED
        await until_all_are_there(cluster, files)
        await hosts.stop(files.name, 0)
        assert len(hosts._hosts) == 1, "that of the watch"
        await files.refuse_secrets()
    assert numbers_in(cluster, topic) == Counter(range(files.written))


def rows_of(target: Path) -> list[int]:
    with closing(sqlite3.connect(target)) as database:
        if not database.execute("select 1 from sqlite_master where name = 'rows'").fetchone():
            return []
        return [n for (n,) in database.execute("select n from rows order by n")]


async def test_tasks_of_a_sink(cluster: TestCluster, tmp_path: Path) -> None:
    topic, rows = cluster.unique_topic("rows", partitions=2), 500
    with cluster.producer() as producer:
        producer.send_many(topic, [json.dumps({"n": n}).encode() for n in range(rows)])
        producer.flush()
    target = tmp_path / "target.db"
    name = f"sink-{topic}"
    config = {
        "name": name,
        "connector.class": "sql-sink",
        "topics": topic,
        "tasks.max": "5",
        "connection.url": f"sqlite:///{target}",
        "auto.create": "true",
        "table.name.format": "rows",
        "pk.mode": "kafka",
    }
    worker = ConnectConfig(bootstrap_servers=",".join(cluster.bootstrap_servers))
    async with HostProcesses.of(worker, SystemClock()) as hosts:
        await hosts.watch(name, config, 3)
        events = hosts.events()
        async with limit_s(60):
            assert await anext(events) == WorkFound(name, 3, "sink", "positions", (), 2)
            for task in range(2):
                await hosts.start(StartTask(name, task, config, (), 5))
            while not isinstance(event := await anext(events), TopicSeen):
                pass
            assert event.topic == topic
            while not target.exists() or len(rows_of(target)) < rows:
                await pause_ms(50)
        for task in range(2):
            await hosts.stop(name, task)
        assert rows_of(target) == list(range(rows))
        shown = await hosts.preview({**config, "table.name.format": "other"}, 3)
        assert [(one["table"], one["action"], len(one["row"])) for one in shown] == [("other", "insert", 4)] * 3
        with closing(sqlite3.connect(target)) as database, database:
            assert not database.execute("select 1 from sqlite_master where name = 'other'").fetchone()
            database.execute("delete from rows where n in (3, 499)")
            database.execute("update rows set n = -1 where n = 7")
        told: list[Progress] = []
        found = await hosts.verify(config, (topic,), 100_000, repair=True, tell=told.append)
        assert told[-1] == Progress(rows, 0, rows)
        assert (found["wrong"], found["repaired"], found["agrees"]) == (3, 3, True)
        assert {one["topic"] for one in found["ranges"]} == {topic}
        assert sum(one["records"] for one in found["ranges"]) == rows
        assert sum(one["missing"] for one in found["ranges"]) == 2
        with closing(sqlite3.connect(target)) as database, database:
            database.execute("update headrace_positions set position = 9999")
        with pytest.raises(InvalidConfig, match=r"has position 9999 .* which ends at"):
            await hosts.verify(config, (), 1, repair=False, tell=told.append)
    assert rows_of(target) == list(range(rows))


def prepared_of(cluster: TestCluster, name: str) -> list[str]:
    """Transactional ids of dead letters that nobody has decided."""
    with cluster.admin() as admin:
        while (found := admin.list_prepared_transactions()).missing:
            pass
    return [one.transactional_id for one in found.transactions if name in one.transactional_id]


async def test_dead_letters_of_tasks_that_are_gone(
    cluster: TestCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_FAILPOINTS_DIR", str(tmp_path))
    topic = cluster.unique_topic("rows")
    dead, name, target = f"{topic}-dead", f"sink-{topic}", tmp_path / "target.db"
    config = {
        "name": name,
        "connector.class": "sql-sink",
        "topics": topic,
        "tasks.max": "4",
        "connection.url": f"sqlite:///{target}",
        "table.name.format": "rows",
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": dead,
    }
    make_table(target)
    worker = ConnectConfig(bootstrap_servers=",".join(cluster.bootstrap_servers))

    def write() -> None:
        with cluster.producer() as producer:
            producer.send_many(topic, [json.dumps({"n": n}).encode() for n in (BAD, 1, 2, 3)])
            producer.flush()

    async with HostProcesses.of(worker, SystemClock()) as hosts, limit_s(240):
        events = hosts.events()

        async def killed_at(step: str, task: int) -> None:
            """A task is, with its host."""
            (tmp_path / step).write_text("kill")
            await hosts.start(StartTask(name, task, config, (), 1))
            while not isinstance(await anext(events), HostCrashed):
                pass
            assert await run_in_thread(prepared_of, cluster, name) == [f"connect-dlq.connect-cluster.{name}.{task}"]

        await run_in_thread(write)
        await killed_at("connect.sink.prepared", 3)
        await hosts.watch(name, config, 1)  # one partition: the tasks from 1 on are gone
        while not isinstance(await anext(events), WorkFound):
            pass
        while await run_in_thread(prepared_of, cluster, name):
            await pause_ms(50)
        assert tokens_of(target) == [0], "the target had none of it"
        await hosts.unwatch(name)

        await killed_at("connect.sink.committed", 0)
        assert tokens_of(target) == [0, 1], "it had that, and who deletes the connector finds it there"
        assert await hosts.settle(config) == 1
        assert await run_in_thread(prepared_of, cluster, name) == []
        assert await hosts.settle(config) == 0
    assert await run_in_thread(numbers_in, cluster, dead) == Counter([BAD])


def tokens_of(target: Path) -> list[int]:
    """Whether what they stand for was committed, of each; sorted."""
    with closing(sqlite3.connect(target)) as database:
        return [done for (done,) in database.execute("select done from headrace_tokens order by done")]


def make_table(target: Path) -> None:
    with closing(sqlite3.connect(target)) as database:
        database.execute(f"create table rows (n integer check (n <> {BAD}))")


SOURCE = """
import almanac
from headrace_connect import Chunk, source

@source
def {name}():
    yield Chunk([{{"says": almanac.SAYS}}], {{}}, drained=True)
"""


async def test_two_connectors_whose_packages_quarrel(cluster: TestCluster, tmp_path: Path) -> None:
    """`plugin install` makes an environment of each, without a network, and both run side by side."""
    wheels, plugins = tmp_path / "wheels", tmp_path / "plugins"
    for version, name in (("1.0", "tides"), ("2.0", "skies")):
        write_wheel(wheels, "almanac", version, {"almanac.py": f"SAYS = 'almanac {version}'"})
        needs, points = [f"almanac=={version}"], {name: f"{name}_source:{name}"}
        write_wheel(wheels, name, "1.0", {f"{name}_source.py": SOURCE.format(name=name)}, needs, points)
    with pytest.raises(InvalidConfig, match="conflict"):
        install(plugins, "both", ["tides", "skies"], Index(links=(str(wheels),), offline=True))
    for name in ("tides", "skies"):
        words = [name, "--path", str(plugins), "--no-index", "--find-links", str(wheels)]
        done = CliRunner().invoke(app, ["connect", "plugin", "install", *words])
        assert done.exit_code == 0, done.output
        assert name in done.output
    limits = HostLimits(plugin_path=(str(plugins),))
    config = ConnectConfig(bootstrap_servers=",".join(cluster.bootstrap_servers), processes=limits)
    async with HostProcesses.of(config, SystemClock()) as hosts:
        said = [
            (await hosts.preview({"name": name, "connector.class": name, "topic": "t"}, 1))[0]["value"]
            for name in ("tides", "skies")
        ]
    assert said == ['{"says":"almanac 1.0"}', '{"says":"almanac 2.0"}']
