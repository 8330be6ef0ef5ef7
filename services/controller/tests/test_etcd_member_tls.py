"""
Real etcds that speak TLS: three meet, form a cluster, and answer nobody without a certificate of etcd's own CA; and
those that knew each other without TLS get to know each other with it, one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import json
import ssl
from collections.abc import Sequence
from pathlib import Path

import grpc.aio
import pytest
from aetcd import rpc
from libs.common.tests.kit.authority import Authority
from services.controller.tests.kit.etcd_trio import MEMBER, Trio
from services.controller.tests.kit.process import ControllerProcess

from headrace_common.core.ids import Endpoint
from headrace_common.rpc.credentials import Pem
from headrace_common.runtime.certificates import Leaf
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.tls_config import TlsFiles
from headrace_controller import backup
from headrace_controller.adapters.etcd_channels import open_channel
from headrace_controller.etcd_member.core.facts import Phase
from headrace_controller.etcd_member.core.roster import Peer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

KEYS = [b"key0", b"key1", b"key2"]


def shown_to_etcd(files: TlsFiles) -> tuple[str, ...]:
    """As the arguments of a controller, or of a program beside it."""
    return ("--etcd-ca", str(files.ca), "--etcd-cert", str(files.cert), "--etcd-key", str(files.key))


async def backed_up(trio: Trio, top: Path) -> dict[str, object]:
    """What the program prints."""
    given = backup.parse_arguments(
        ["--etcd", ",".join(map(str, trio.clients)), *shown_to_etcd(trio.controller), "--to", str(top / "backups")]
    )
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert await backup.back_up(given, SystemClock()) == 0
    found = json.loads(said.getvalue())
    assert isinstance(found, dict)
    return found


def answer_at_peer_port(peer: Peer, files: TlsFiles, shown: TlsFiles | None) -> int:
    """The status for who shows this. Raises: OSError, HTTPException: there is none."""
    context = ssl.create_default_context(cafile=files.ca)
    if shown is not None:
        context.load_cert_chain(shown.cert, shown.key)
    at = Endpoint.parse(peer.url.removeprefix("https://"))
    connection = http.client.HTTPSConnection(at.host, at.port, context=context, timeout=10)
    try:
        connection.request("GET", "/members")
        return connection.getresponse().status
    finally:
        connection.close()


def certificate_at(endpoint: Endpoint, files: TlsFiles) -> bytes | None:
    """What a member shows who connects now."""
    context = ssl.create_default_context(cafile=files.ca)
    context.load_cert_chain(files.cert, files.key)
    connection = http.client.HTTPSConnection(endpoint.host, endpoint.port, context=context, timeout=10)
    try:
        connection.connect()
        assert isinstance(connection.sock, ssl.SSLSocket)
        return connection.sock.getpeercert(binary_form=True)
    finally:
        connection.close()


async def is_refused(trio: Trio, number: int, shown: Pem | None) -> bool:
    async with open_channel(str(trio.clients[number]), shown) as channel:
        try:
            await rpc.KVStub(channel).Range(rpc.RangeRequest(key=b"key0"), timeout=10)
        except grpc.aio.AioRpcError as error:
            return error.code() is grpc.StatusCode.UNAVAILABLE
    return False


async def test_formed_by_tls_with_a_controller_and_one_replaced(trio: Trio, tmp_path: Path) -> None:
    trio.secure |= {0, 1, 2}
    await trio.bring_up(2, 0, 1)
    first = await trio.members()
    assert all(url.startswith("https://") for m in first.values() for url in (*m.peer_urls, *m.client_urls))
    for number in range(3):
        await trio.put(number, KEYS[number])

    # Those of the nodes' CA, or of none, get nothing from either port.
    mine = trio.shown(trio.controller)
    node = Authority("CA of nodes").files(tmp_path / "node", Leaf("controller", frozenset({"controller.headrace"})))
    assert not await is_refused(trio, 0, mine)
    for stranger in (None, Pem(mine.ca), Pem(mine.ca, node.cert.read_bytes(), node.key.read_bytes())):
        assert await is_refused(trio, 0, stranger)
    assert await asyncio.to_thread(answer_at_peer_port, trio.peers[0], trio.member, trio.member) == 200
    for shown in (None, node):
        with pytest.raises((OSError, http.client.HTTPException)):
            await asyncio.to_thread(answer_at_peer_port, trio.peers[0], trio.member, shown)

    # A controller makes its cluster there, and a backup has it.
    controller = ControllerProcess(tmp_path, 1, trio.clients[1], *shown_to_etcd(trio.controller))
    try:
        await controller.start()
        async with asyncio.timeout(30):
            while (await backed_up(trio, tmp_path))["backup"] is None:
                await asyncio.sleep(0.1)
    finally:
        await controller.close()

    # Other pairs are shown to who connects, and taken from who does, without a restart.
    before = await asyncio.to_thread(certificate_at, trio.clients[0], trio.controller)
    trio.authority.write(trio.member, trio.authority.make(MEMBER))
    trio.authority.write(trio.controller, trio.authority.make(Leaf("controller")))
    assert await asyncio.to_thread(certificate_at, trio.clients[0], trio.controller) != before
    assert await trio.keys(0) == KEYS

    trio.kill(1)
    trio.lose(1)
    await trio.bring_up(1)
    second = await trio.members()
    assert second["m-1"].id != first["m-1"].id
    assert await trio.keys(1) == KEYS
    for number in range(3):
        trio.kill(number)
    await trio.bring_up(0, 1, 2)
    assert await trio.keys(1) == KEYS
    assert [(trio.facts(n).phase, trio.facts(n).tls) for n in range(3)] == [(Phase.STARTED, True)] * 3


async def test_another_ca_comes_in_steps(trio: Trio) -> None:
    """As docs/security.md has it: only what etcd trusts takes a restart."""
    trio.size = 1
    trio.secure.add(0)
    await trio.bring_up(0)
    await trio.put(0, KEYS[0])
    old, new = trio.authority, Authority("another CA of etcd")
    stranger = trio.shown(new.files(trio.top / "new", Leaf("controller")))
    before = trio.shown(trio.controller)

    async def restarted() -> None:
        trio.kill(0)
        await trio.bring_up(0)
        assert await trio.keys(0) == KEYS[:1]

    for files, leaf in ((trio.member, MEMBER), (trio.controller, Leaf("controller"))):
        old.write(files, old.make(leaf), new)
    both = trio.shown(trio.controller).ca
    assert await is_refused(trio, 0, Pem(both, stranger.chain, stranger.key)), "it has not read its CAs again"
    await restarted()
    assert not await is_refused(trio, 0, Pem(both, stranger.chain, stranger.key))
    for files, leaf in ((trio.member, MEMBER), (trio.controller, Leaf("controller"))):
        new.write(files, new.make(leaf), old)
    assert not await is_refused(trio, 0, stranger), "it shows a pair of the new one, without a restart"
    assert not await is_refused(trio, 0, Pem(both, before.chain, before.key))
    for files, leaf in ((trio.member, MEMBER), (trio.controller, Leaf("controller"))):
        new.write(files, new.make(leaf))
    await restarted()
    assert await is_refused(trio, 0, Pem(both, before.chain, before.key))


async def moved(trio: Trio) -> dict[str, Sequence[str]]:
    return {name: m.peer_urls for name, m in (await trio.members()).items()}


async def test_members_of_before_get_tls_one_by_one(trio: Trio) -> None:
    await trio.bring_up(0, 1, 2)
    await trio.put(0, KEYS[0])
    first = await trio.members()

    # Where all are stopped, nobody can be told of it: it waits, and goes on as soon as the others run as before.
    for number in range(3):
        trio.kill(number)
    trio.secure.add(2)
    trio.decide(2)
    await trio.until_said(2, "If all are stopped, start all so")
    await trio.bring_up(0, 1)
    await trio.decided(2)
    trio.run_etcd(2)
    await trio.put(2, KEYS[1])

    # One that is killed on the way starts at once; the others are not yet reached by it alone.
    trio.kill(2)
    await trio.put(0, KEYS[2])
    await trio.bring_up(2)
    assert await trio.keys(2) == KEYS
    for number in (1, 0):
        trio.kill(number)
        trio.secure.add(number)
        await trio.bring_up(number)
        assert await trio.keys(number) == KEYS
    assert await moved(trio) == {f"m-{n}": (trio.with_tls(n).url,) for n in range(3)}
    assert {m.id for m in (await trio.members()).values()} == {m.id for m in first.values()}

    # And back it does not go: who has no certificate is told so, and loses nothing.
    trio.kill(0)
    trio.secure.remove(0)
    trio.decide(0)
    await trio.until_said(0, "start this one with certificates again")
    trio.kill(0)
    trio.secure.add(0)
    for number in (1, 2):
        trio.kill(number)
    await trio.bring_up(0, 1, 2)
    assert await trio.keys(0) == KEYS


async def test_one_alone_of_before_gets_tls_and_grows(trio: Trio) -> None:
    trio.size = 1
    await trio.bring_up(0)
    await trio.put(0, KEYS[0])
    trio.kill(0)
    trio.secure |= {0, 1}
    await trio.bring_up(0)
    assert await is_refused(trio, 0, None)
    trio.size = 2
    trio.kill(0)
    trio.decide(1)
    await trio.bring_up(0)  # it starts although nobody else runs: the other has no data
    await trio.decided(1)
    trio.run_etcd(1)
    assert await moved(trio) == {f"m-{n}": (trio.with_tls(n).url,) for n in range(2)}
    await trio.put(1, KEYS[1])
    trio.kill(0)
    trio.kill(1)
    await trio.bring_up(1)  # alone it is no quorum; it lists the other one as it is now
    await trio.bring_up(0)
    assert trio.facts(0).tls
    assert await trio.keys(0) == KEYS[:2]
