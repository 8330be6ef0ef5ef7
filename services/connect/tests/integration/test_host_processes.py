"""Real host processes: whatever a connector does to its own, others are not hurt, and its last lines are known."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import sys
import venv
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.clock import SystemClock, limit_s, pause_ms
from headrace_connect.core.errors import Fault
from headrace_connect_worker.adapters.host_process import HostSettings
from headrace_connect_worker.adapters.host_processes import HostProcesses
from headrace_connect_worker.config import HostLimits
from headrace_connect_worker.core.records import RunState, SplitSpec
from headrace_connect_worker.ports import (
    HostCrashed,
    HostEvent,
    HostUnavailable,
    NotAnswered,
    StartTask,
    TaskReported,
    WatchFailed,
    WorkFound,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

PLUGINS = Path(__file__).with_name("plugins.py")
SETTINGS = HostSettings({"bootstrap_servers": "127.0.0.1:1", "default_api_timeout_ms": 1_000}, end_ms=300)
LIMITS = HostLimits()
WAIT_S = 60


class Hosts:
    """``HostProcesses``, and what they said."""

    def __init__(self, hosts: HostProcesses) -> None:
        self.all = hosts
        self._events = hosts.events()

    async def next(self) -> HostEvent:
        async with limit_s(WAIT_S):
            return await anext(self._events)

    async def crash(self) -> HostCrashed:
        while not isinstance(event := await self.next(), HostCrashed):
            pass
        return event

    async def until(self, kind: type, connector: str) -> HostEvent:
        while True:
            event = await self.next()
            if isinstance(event, kind) and event.connector == connector:
                return event


@asynccontextmanager
async def hosts(settings: HostSettings = SETTINGS, limits: HostLimits = LIMITS) -> AsyncIterator[Hosts]:
    async with HostProcesses(settings, limits, SystemClock()) as made:
        yield Hosts(made)


def config(name: str, plugin: str = "Waits", **more: str) -> dict[str, str]:
    where = plugin if ".py" in plugin else f"{PLUGINS}:{plugin}"
    return {"name": name, "connector.class": where, "topic": "t"} | {k.replace("_", "."): v for k, v in more.items()}


def task(name: str, plugin: str = "Waits", number: int = 0, **more: str) -> StartTask:
    return StartTask(name, number, config(name, plugin, **more), (SplitSpec("a"),), 7)


BAD = {
    "Exits": ({}, "its process ended with 3; its last lines:\nexits"),
    "ExitsKindly": ({}, r"SystemExit\('no licence'\)"),
    "Crashes": ({}, "its process was killed by SIGSEGV"),
    "Forks": ({}, "its process ended with 4; its last lines:\nforked "),
    "ForksItsLoop": ({}, "the child ended with 1"),
    "Eats": ({"task_memory_max": str(400 << 20)}, "400 MiB is the most: see task.memory.max"),
    "Blocks": ({}, "in stand_still"),
    "Closes": ({}, "Bad file descriptor|it has closed its pipe to the worker"),  # whichever of the two sees it first
    "Writes": ({}, "what the worker does not understand: no JSON: b'rubbish"),
}


async def test_whatever_a_connector_does_its_last_lines_are_told_and_others_go_on() -> None:
    async with hosts(replace(SETTINGS, silence_ms=10_000)) as made:
        await made.all.watch("good", config("good"), 5)
        good = await made.until(WorkFound, "good")
        assert good == WorkFound("good", 5, "source", "", (SplitSpec("a"), SplitSpec("b")), 0)
        await asyncio.gather(*(made.all.start(task(plugin, plugin, **more)) for plugin, (more, _) in BAD.items()))
        traces: dict[str, str] = {}
        while len(traces) < len(BAD):
            crashed = await made.crash()
            traces[crashed.connector] = crashed.trace
        for plugin, (_, says) in BAD.items():
            assert re.search(says, traces[plugin]), traces[plugin]
        child = int(traces["Forks"].split("forked ")[1].split()[0])
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)
        await made.all.watch("good", config("good"), 6)
        again = await made.until(WorkFound, "good")
        assert isinstance(again, WorkFound)
        assert again.config_offset == 6, "its host is still there"


async def test_each_line_of_a_log_says_of_which_connector_and_task_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """Two connectors share a host."""
    name = "headrace_connect_worker.adapters.host_output"
    with caplog.at_level(logging.INFO, name):
        async with hosts(limits=HostLimits(worker_hosts_max=1)) as made:
            await made.all.start(task("a/b", "Logs", 3))
            async with limit_s(WAIT_S):
                while "printed" not in caplog.messages:
                    await pause_ms(10)
            await made.all.watch("c", config("c", "Logs"), 5)
            await made.until(WorkFound, "c")
            async with limit_s(WAIT_S):
                while caplog.messages.count("printed") < 2:
                    await pause_ms(10)
    said = {
        (one.getMessage(), one.__dict__.get("connector"), one.__dict__.get("task"))
        for one in caplog.records
        if one.name == name
    }
    of_task = {"WARNING plugins: from its thread", "in two lines", "WARNING plugins: from another thread", "printed"}
    assert {(line, "a/b", 3) for line in of_task} <= said
    assert {("WARNING plugins: from its thread", "c", None), ("in two lines", "c", None)} <= said
    assert ("WARNING plugins: from another thread", None, None) in said, "nobody knows of which of two"


async def test_a_task_that_fails_says_where_and_its_host_goes_on(tmp_path: Path) -> None:
    raises = tmp_path / "raises.py"
    raises.write_text("print('looking for a licence')\nraise RuntimeError('there is none')\n")
    async with hosts() as made:
        await made.all.start(task("raises", f"{raises}:Any"))
        failed = await made.until(TaskReported, "raises")
        assert isinstance(failed, TaskReported)
        assert (failed.state, failed.fault, failed.generation) == (RunState.FAILED, Fault.CONFIG, 7)
        assert "raises.py" in failed.trace
        assert "RuntimeError: there is none" in failed.trace

        await made.all.watch("raises", config("raises", tasks_max="many"), 3)
        unusable = await made.until(WatchFailed, "raises")
        assert isinstance(unusable, WatchFailed)
        assert (unusable.fault, unusable.config_offset) == (Fault.CONFIG, 3)
        assert "tasks.max" in unusable.trace

        await made.all.start(task("prints", "Prints"))
        while True:
            failed = await made.until(TaskReported, "prints")
            assert isinstance(failed, TaskReported)
            if failed.state is not RunState.STARTING:
                break
        assert (failed.state, failed.fault) == (RunState.FAILED, Fault.BUG)
        assert "done with printing" in failed.trace
        await made.all.stop("prints", 0)
        await made.all.stop("prints", 0)


async def test_a_task_that_does_not_end_is_killed_with_its_host_and_no_process_is_left() -> None:
    async with hosts(limits=HostLimits(task_stop_ms_max=300)) as made:
        await made.all.start(task("slow", "Sleeps"))
        await made.until(TaskReported, "slow")
        await made.all.start(task("slow", "Waits", 1))
        [host] = made.all._hosts.values()
        await made.all.stop("slow", 0)
        crashed = await made.until(HostCrashed, "slow")
        assert isinstance(crashed, HostCrashed)
        assert "task 0 of slow did not end within 300 ms" in crashed.trace
        await made.all.start(task("slow", "Sleeps"))
        [other] = made.all._hosts.values()
    for pid in (host.pid, other.pid):
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_tasks_that_are_alone_do_not_hurt_each_other() -> None:
    async with hosts() as made:
        await made.all.watch("many", config("many", isolation="task"), 1)
        await made.until(WorkFound, "many")
        await made.all.start(task("many", "Exits", isolation="task"))
        while True:
            ended = await made.next()
            assert not isinstance(ended, HostCrashed)
            if isinstance(ended, TaskReported) and ended.state is RunState.UNASSIGNED:
                break
        assert ended.fault is None
        assert "its process ended with 3" in ended.trace
        await made.all.start(task("many", "Sleeps", 1, isolation="task"))
        watching = made.all._hosts[min(made.all._hosts)]
        assert watching.pid is not None
        os.kill(watching.pid, signal.SIGKILL)
        lost = await made.until(WatchFailed, "many")
        assert isinstance(lost, WatchFailed)
        assert (lost.fault, lost.config_offset) == (Fault.WORLD, 1)
        found = await made.until(WorkFound, "many")
        assert isinstance(found, WorkFound)
        assert found.config_offset == 1, "it is watched again"
        assert len(made.all._hosts) == 2, "the other task goes on"


async def test_beyond_the_most_connectors_share_and_fall_together() -> None:
    async with hosts(limits=HostLimits(worker_hosts_max=1)) as made:
        await made.all.watch("good", config("good"), 1)
        await made.until(WorkFound, "good")
        await made.all.start(task("bad", "Exits"))
        crashed = {(await made.until(HostCrashed, name)).connector for name in ("bad", "good")}
        assert crashed == {"bad", "good"}


async def test_questions_have_processes_of_their_own() -> None:
    async with hosts() as made:
        validation = await made.all.validate(config("a", nonsense="x"))
        assert [problem.key for problem in validation.problems] == ["nonsense"]
        assert validation.kind == "source"
        assert {"name", "tasks.max"} <= {one.key for one in validation.definitions}
        with pytest.raises(InvalidConfig, match="is files meant"):
            await made.all.describe("filez")
        with pytest.raises(NotAnswered) as away:
            await made.all.preview(config("a", "Lacks"), 5)
        assert str(away.value) == "RetriableError: the desk does not answer", "and no trace of it"
        files = {plugin.name: plugin for plugin in await made.all.plugins()}["files"]
        assert (files.kind, files.where) == ("source", "headrace_connect.connectors.files:FilesSource")
    async with hosts(limits=HostLimits(plugin_ms_max=1_000)) as made:
        with pytest.raises(HostUnavailable, match="did not answer within 1000 ms"):
            await made.all.preview(config("a", "Sleeps"), 5)


async def test_a_python_that_is_not_there_is_told(tmp_path: Path) -> None:
    home = tmp_path / "env"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python").write_text("#!/bin/sh\necho no module named headrace_connect\nexit 1\n")
    (home / "bin" / "python").chmod(0o755)
    packages = home / "lib" / "python3.12" / "site-packages"
    (packages / "vendor").mkdir(parents=True)
    async with hosts(limits=HostLimits(plugin_path=(str(tmp_path),))) as made:
        with pytest.raises(HostUnavailable, match=r"(?s)ended with 1.*no module named headrace_connect"):
            await made.all.watch("a", {"name": "a", "connector.class": "vendor.source:Source"}, 1)
        await made.all.unwatch("a")


VENDOR = """
import sys
from headrace_connect import Source, Split

class Vendor(Source):
    def splits(self):
        return [Split("a", {"prefix": sys.prefix})]
"""


async def test_a_connector_of_an_environment_runs_under_its_python(tmp_path: Path) -> None:
    home = tmp_path / "environments" / "vendor"
    venv.create(home, with_pip=False)
    [packages] = home.glob("lib/python3.*/site-packages")
    (packages / "vendor.py").write_text(VENDOR)
    (packages / "workers_own.pth").write_text("\n".join(path for path in sys.path if path))
    info = packages / "vendor-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vendor\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[headrace.connectors]\nvendor = vendor:Vendor\n")
    async with hosts(limits=HostLimits(plugin_path=(str(home.parent),))) as made:
        await made.all.watch("a", {"name": "a", "connector.class": "vendor", "topic": "t"}, 1)
        found = await made.until(WorkFound, "a")
        assert isinstance(found, WorkFound)
        assert found.splits == (SplitSpec("a", {"prefix": str(home)}),)
