"""Hosts that are forked, over real processes: whatever becomes of their fork server, they go on and can be ended."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import venv
from contextlib import suppress
from pathlib import Path

import pytest

from headrace_common.runtime.clock import limit_s, pause_ms
from headrace_connect_worker.adapters import fork_server, forked_child
from headrace_connect_worker.adapters.environments import OWN
from headrace_connect_worker.adapters.fork_server import ForkServer
from headrace_connect_worker.adapters.host_process import HostProcess
from headrace_connect_worker.config import HostLimits
from headrace_connect_worker.core.hosting import Work
from headrace_connect_worker.ports import HostUnavailable, TaskReported, WorkFound

from .test_host_processes import Hosts, config, hosts, task

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

MARK = "HEADRACE_TEST_MARK"


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A variable that all processes have that this test begins."""
    monkeypatch.setenv(MARK, str(tmp_path))
    return f"{MARK}={tmp_path}"


def marked(mark: str) -> dict[int, str]:
    """The processes that were begun and have not ended, with their short names; not this one."""
    found = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and int(path.name) != os.getpid():
            with suppress(OSError):
                if mark.encode() in (path / "environ").read_bytes():  # of one that has ended it is empty
                    found[int(path.name)] = (path / "comm").read_text().strip()
    return found


async def until_none_is_left(mark: str) -> None:
    async with limit_s(30):
        while marked(mark):
            await pause_ms(20)


def server_of(made: Hosts) -> ForkServer:
    server, _ = made.all._starts._servers[OWN.name]
    return server


async def watched(made: Hosts, name: str, number: int = 1) -> None:
    await made.all.watch(name, config(name), number)
    found = await made.until(WorkFound, name)
    assert isinstance(found, WorkFound)
    assert found.config_offset == number


def pid_of(made: Hosts, name: str) -> int:
    [host] = [host for host in made.all._hosts.values() if host._output._label == name]
    assert host.pid is not None
    return host.pid


def host_of(made: Hosts, name: str) -> HostProcess:
    """Of a connector's task."""
    number = made.all._hosting.find(Work(name, 0))
    assert number is not None
    return made.all._hosts[number]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def forking(made: Hosts, mark: str) -> int:
    """A host that has forked processes which stay; the id of its fork server."""
    await made.all.start(task("b", "ForksAndStays"))
    await made.until(TaskReported, "b")
    while len(marked(mark)) < 3:
        await pause_ms(10)
    server = server_of(made).pid
    assert server is not None
    return server


async def test_hosts_go_on_when_their_fork_server_was_killed_and_the_next_one_has_another(mark: str) -> None:
    async with hosts() as made:
        await watched(made, "a")
        await made.all.start(task("b", "ForksAndStays"))
        await made.until(TaskReported, "b")
        first = server_of(made)
        assert first.pid is not None
        assert parent_of(pid_of(made, "a")) == first.pid
        os.kill(first.pid, signal.SIGKILL)
        while first.is_usable:
            await pause_ms(5)
        await watched(made, "a", 2)
        await watched(made, "c")
        second = server_of(made)
        assert second is not first
        assert parent_of(pid_of(made, "c")) == second.pid
        os.kill(pid_of(made, "a"), signal.SIGKILL)
        lost = await made.crash()
        assert lost.connector == "a"
        assert "its process has ended, nobody knows how" in lost.trace
        os.kill(pid_of(made, "c"), signal.SIGSEGV)
        assert "was killed by SIGSEGV" in (await made.crash()).trace
        host_of(made, "b").kill("a test wants it")
        assert "a test wants it" in (await made.crash()).trace
    await until_none_is_left(mark)


@pytest.mark.parametrize("group", [forked_child._GROUP, 1 << 20], ids=["by name", "an older system"])
async def test_an_orphan_is_killed_with_all_that_it_has_forked(
    mark: str, monkeypatch: pytest.MonkeyPatch, group: int
) -> None:
    monkeypatch.setattr(forked_child, "_GROUP", group)
    async with hosts() as made:
        os.kill(await forking(made, mark), signal.SIGKILL)
        while server_of(made).is_usable:
            await pause_ms(5)
        host_of(made, "b").kill("a test wants it")
        assert "a test wants it" in (await made.crash()).trace
        await until_none_is_left(mark)


async def test_a_fork_server_that_hangs_is_replaced_and_what_waited_starts_by_itself(
    mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "FORK_MS_MAX", 300.0)
    async with hosts() as made:
        await watched(made, "a")
        first = server_of(made)
        assert first.pid is not None
        os.kill(first.pid, signal.SIGSTOP)
        await watched(made, "b")
        assert parent_of(pid_of(made, "b")) == os.getpid(), "it has started by itself"
        await watched(made, "a", 2)
        await watched(made, "c")
        assert server_of(made) is not first
        assert parent_of(pid_of(made, "c")) == server_of(made).pid
    await until_none_is_left(mark)


async def test_the_end_of_a_host_is_seen_though_its_fork_server_hangs(
    mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forked_child, "REPORT_MS_MAX", 100.0)
    async with hosts() as made:
        server = await forking(made, mark)
        os.kill(server, signal.SIGSTOP)
        child = host_of(made, "b")._child
        assert child is not None
        monkeypatch.setattr(child, "kill", lambda: None)
        os.kill(child.pid, signal.SIGKILL)
        assert "nobody knows how" in (await made.crash()).trace
        async with limit_s(30):
            while set(marked(mark)) - {server}:
                await pause_ms(10)
        os.kill(server, signal.SIGCONT)
    await until_none_is_left(mark)


async def test_a_fork_server_that_is_killed_while_it_forks(
    mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host is there then that nobody knows; it ends, for nobody has the other end of its pipe."""
    monkeypatch.setenv("HEADRACE_FAILPOINTS_DIR", str(tmp_path))
    async with hosts() as made:
        await watched(made, "a")
        first = server_of(made)
        (tmp_path / "connect.forked").write_text("kill")
        await watched(made, "b")
        assert not first.is_usable
        assert parent_of(pid_of(made, "b")) == os.getpid()
        await watched(made, "a", 2)
        async with limit_s(30):
            while len(marked(mark)) > 2:
                await pause_ms(10)
    await until_none_is_left(mark)


async def test_one_that_was_killed_while_it_imported() -> None:
    async with hosts() as made:
        made.all.warm()
        server = server_of(made)
        watching = asyncio.get_running_loop().create_task(made.all.watch("a", config("a"), 1))
        while server.pid is None:
            await pause_ms(1)
        os.kill(server.pid, signal.SIGKILL)
        await watching
        await made.until(WorkFound, "a")
        assert parent_of(pid_of(made, "a")) == os.getpid()
        await watched(made, "b")
        assert parent_of(pid_of(made, "b")) == os.getpid(), "for a while no other one is tried"


async def test_a_worker_that_closes_waits_for_no_fork_server(mark: str) -> None:
    async with limit_s(15), hosts() as made:
        made.all.warm()
    async with limit_s(15):
        async with hosts() as made:
            made.all.warm()
            server = server_of(made)
            while server.pid is None:
                await pause_ms(1)
            os.kill(server.pid, signal.SIGSTOP)
            watching = asyncio.get_running_loop().create_task(made.all.watch("a", config("a"), 1))
            while not made.all._hosts:
                await pause_ms(1)
        with pytest.raises(HostUnavailable, match="the worker is closing"):
            await watching
    await until_none_is_left(mark)


WORKER = """
import asyncio, sys
from headrace_connect_worker.adapters.host_processes import HostProcesses
from headrace_connect_worker.ports import TaskReported
from services.connect.tests.integration.test_host_processes import LIMITS, SETTINGS, SystemClock, task

async def main():
    async with HostProcesses(SETTINGS, LIMITS, SystemClock()) as hosts:
        hosts.warm()
        events = hosts.events()
        for name in ("a", "b"):
            await hosts.start(task(name, "ForksAndStays"))
            await anext(events)
        print("there", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_a_worker_that_was_killed_leaves_no_process_behind(mark: str) -> None:
    with subprocess.Popen([sys.executable, "-c", WORKER], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"there\n"
        async with limit_s(30):
            while len(marked(mark)) < 6:  # it, the fork server, two hosts and what they have forked
                await pause_ms(10)
        worker.kill()
        worker.wait()
        await until_none_is_left(mark)


VENDOR = """
import os
from headrace_connect import Source, Split

class Vendor(Source):
    def splits(self):
        return [Split("a", {"parent": os.getppid()})]
"""


def make_environment(folder: Path) -> Path:
    home = folder / "vendor"
    venv.create(home, with_pip=False)
    [packages] = home.glob("lib/python3.*/site-packages")
    (packages / "workers_own.pth").write_text("\n".join(path for path in sys.path if path))
    install(packages, "vendor")
    return packages


def install(packages: Path, name: str) -> None:
    (packages / f"{name}.py").write_text(VENDOR)
    info = packages / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[headrace.connectors]\n{name} = {name}:Vendor\n")


async def parent_in(made: Hosts, name: str, plugin: str) -> int:
    await made.all.watch(name, {"name": name, "connector.class": plugin, "topic": "t"}, 1)
    found = await made.until(WorkFound, name)
    assert isinstance(found, WorkFound)
    return int(found.splits[0].detail["parent"])


async def test_each_environment_has_one_and_a_new_one_when_something_was_installed(mark: str, tmp_path: Path) -> None:
    packages = make_environment(tmp_path)
    async with hosts(limits=HostLimits(plugin_path=(str(tmp_path),))) as made:
        first = await parent_in(made, "a", "vendor")
        assert await parent_in(made, "b", "vendor") == first
        await watched(made, "own")
        assert parent_of(pid_of(made, "own")) == server_of(made).pid != first
        install(packages, "other")
        second = await parent_in(made, "c", "other")
        assert second not in (first, os.getpid())
        assert first in marked(mark), "its hosts go on"
        for name in ("a", "b"):
            await made.all.unwatch(name)
        async with limit_s(30):
            while first in marked(mark):
                await pause_ms(10)
        assert second in marked(mark)
    await until_none_is_left(mark)


async def test_where_nothing_can_be_forked_hosts_start_by_themselves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    packages = make_environment(tmp_path)
    (packages / "threads.pth").write_text(
        "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    async with hosts(limits=HostLimits(plugin_path=(str(tmp_path),))) as made:
        for name in ("a", "b"):
            assert await parent_in(made, name, "vendor") == os.getpid()
        [told] = [one.getMessage() for one in caplog.records if "starts by itself" in one.getMessage()]
        assert "its process ended with 1" in told
        assert "threads that imports have begun" in told
