"""The certificates of a service: whom they must name, and that its channels take new ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from libs.common.tests.kit.authority import BROKER, Authority
from libs.common.tests.kit.clock import FakeClock
from libs.common.tests.kit.secure import Secure, shown

from headrace_common.adapters.certificates_service import CertificatesServicer
from headrace_common.core.errors import InvalidConfig, TlsFailed
from headrace_common.core.ids import NodeId
from headrace_common.core.image import NodeKey, Role
from headrace_common.rpc.calls import CallTo
from headrace_common.rpc.channels import Certificates, Channels, Security, SyncChannels
from headrace_common.runtime.certificates import leaf_of, names_of
from headrace_common.runtime.metrics import open_metrics
from headrace_common.runtime.service_tls import ServiceTls, open_tls
from headrace_common.runtime.tasks import TaskRunner
from headrace_common.runtime.tls_config import TlsConfig, TlsFiles
from headrace_proto.v1 import certificates_pb2 as pb

KEY = NodeKey(Role.BROKER, NodeId(3))


def config_of(files: TlsFiles, **more: Any) -> TlsConfig:
    return TlsConfig(files.cert, files.key, files.ca, **more)


@asynccontextmanager
async def opened(
    config: TlsConfig, authority: Authority, node: NodeKey | None = KEY
) -> AsyncIterator[ServiceTls | None]:
    clock = FakeClock(int(authority.now.timestamp() * 1_000))
    async with AsyncExitStack() as stack:
        metrics = stack.enter_context(open_metrics("t", 1, None))
        tasks = await stack.enter_async_context(TaskRunner())
        yield await stack.enter_async_context(open_tls(config, node, clock, metrics.meter, tasks))


@pytest.mark.parametrize(
    ("leaf", "node", "wrong"),
    [
        (BROKER, KEY, None),
        (replace(BROKER, uri="spiffe://headrace/broker/3"), KEY, None),
        (replace(BROKER, uri="spiffe://headrace/broker/33"), KEY, "must be of spiffe://headrace/broker and nobody"),
        (replace(BROKER, uri="spiffe://elsewhere/broker"), KEY, "must be of spiffe://headrace/broker and nobody"),
        (BROKER, NodeKey(Role.ADMIN, NodeId(1)), "lacks the name admin.headrace"),
        (replace(BROKER, uri=None), KEY, "it is of none"),
        (replace(BROKER, uri=None), None, None),
    ],
)
async def test_whom_it_must_name(tmp_path: Path, leaf: Any, node: NodeKey | None, wrong: str | None) -> None:
    authority = Authority()
    config = config_of(authority.files(tmp_path / "tls", leaf))
    if wrong is None:
        async with opened(config, authority, node) as tls:
            assert tls is not None
        return
    with pytest.raises(InvalidConfig, match=wrong):
        async with opened(config, authority, node):
            pass


async def test_without_settings_there_is_nothing() -> None:
    async with opened(TlsConfig(), Authority()) as tls:
        assert tls is None


def test_settings_are_whole() -> None:
    with pytest.raises(InvalidConfig, match="tls_cert, tls_key and tls_ca are set together"):
        TlsConfig(Path("a"), Path("b"))
    with pytest.raises(InvalidConfig, match="trust_domain takes a name"):
        TlsConfig(trust_domain="spiffe://x")


async def test_channels_that_are_there_take_new_certificates(tmp_path: Path) -> None:
    """A pool opens anew, a stream that is open goes on, and a thread's channels are opened anew too."""
    first, second = Authority(), Authority()
    files = first.files(tmp_path / "client")
    async with Secure.open(first, tmp_path, client_certificates=True) as server, opened(config_of(files), first) as tls:
        assert tls is not None
        pool: Channels[str] = Channels(Security(pem=tls.certificates))
        thread: SyncChannels[str] = SyncChannels(Security(pem=tls.certificates))
        before = pool.to(server.target)
        call: Any = before.unary_unary("/t.T/echo")
        assert await call(b"a", timeout=20) == b"a"
        talk: Any = before.stream_stream("/t.T/echoes")()
        await talk.write(b"1")
        assert await talk.read() == b"1"
        await asyncio.to_thread(ask, thread, server.target)
        first.write(files, first.make(), second)  # trusts both now
        await tls.live.look()
        await settle(lambda: tls.certificates.pem is tls.live.bundle.pem)
        assert pool.to(server.target) is not before
        await talk.write(b"2")
        assert await talk.read() == b"2", "what is under way goes on"
        await server.replace(second, first)
        await server.until_shown()
        again: Any = pool.to(server.target).unary_unary("/t.T/echo")
        with CallTo("server"):
            assert await again(b"b", timeout=20, wait_for_ready=True) == b"b"
        await asyncio.to_thread(ask, thread, server.target)
        await talk.done_writing()
        second.write(files, second.make())
        await tls.live.look()
        await settle(lambda: tls.certificates.pem is tls.live.bundle.pem)
        assert not pool, "who was trusted is let go"
        await pool.close()
        thread.close()


async def test_calls_are_cut_where_a_ca_is_trusted_no_more(tmp_path: Path) -> None:
    """Also one that was trusted for a while only."""
    first, second = Authority(), Authority()
    files = first.files(tmp_path / "client")
    async with Secure.open(first, tmp_path) as server, opened(config_of(files), first) as tls:
        assert tls is not None
        pool: Channels[str] = Channels(Security(pem=tls.certificates))
        talks: list[Any] = []
        for also in ([second], []):
            talks.append(pool.to(server.target).stream_stream("/t.T/echoes")())
            await talks[-1].write(b"1")
            assert await talks[-1].read() == b"1"
            first.write(files, first.make(), *also)
            await tls.live.look()
            await settle(lambda: tls.certificates.pem is tls.live.bundle.pem)
        await settle(talks[1].done)
        assert not talks[0].done(), "it was opened with what is trusted still"
        talks[0].cancel()


def ask(channels: SyncChannels[str], target: str) -> None:
    channel: Any = channels.to(target)
    assert channel.unary_unary("/t.T/echo")(b"c", timeout=20, wait_for_ready=True) == b"c"


async def settle(reached: Any) -> None:
    async with asyncio.timeout(20):
        while not reached():
            await asyncio.sleep(0)


async def test_who_is_no_node_is_shown_nothing_and_has_the_newest_cas(tmp_path: Path) -> None:
    first, second = Authority(), Authority()
    files = first.files(tmp_path / "client")
    async with Secure.open(second, tmp_path) as server, opened(config_of(files), first) as tls:
        assert tls is not None
        assert tls.cas.pem == shown(first)
        pool: Channels[str] = Channels(Security(pem=tls.cas))
        pool.to(server.target)
        first.write(files, first.make())
        await tls.live.look()
        await settle(lambda: tls.certificates.pem is tls.live.bundle.pem)
        assert pool, "the same CAs open no channel anew"
        second.write(files, second.make())
        await tls.live.look()
        await settle(lambda: tls.cas.pem == shown(second))
        call: Any = pool.to(server.target).unary_unary("/t.T/echo")
        assert await call(b"a", timeout=20) == b"a"
        await pool.close()


async def test_what_it_names(tmp_path: Path) -> None:
    authority = Authority()
    many = [f"worker-{n}.apps" for n in range(200)]
    files = authority.files(tmp_path, leaf_of("streams", many, "headrace"))
    async with opened(config_of(files), authority, None) as tls:
        assert tls is not None
        assert tls.names("streams.headrace")
        assert all(map(tls.names, many))
        assert not tls.names("connect.headrace")
        authority.write(files, authority.make(leaf_of("connect", (), "headrace")))
        await tls.live.look()
        assert not tls.names("streams.headrace")


async def test_a_workers_pair_is_no_nodes(tmp_path: Path) -> None:
    """Not even where anybody with a certificate of the CA gets in, nor could a node start with it."""
    authority = Authority()
    leaf = leaf_of("streams", [*BROKER.hosts], "headrace")
    pair = authority.make(leaf)
    assert not [name for name in names_of(pair.certificate) if "://" in name]
    async with Secure.open(authority, tmp_path, client_certificates=True) as server:
        pool: Channels[str] = Channels(Security(pem=shown(authority, pair)))
        call: Any = pool.to(server.target).unary_unary("/t.T/echo")
        with pytest.raises(TlsFailed), CallTo("server"):
            await call(b"a", timeout=20)
        assert server.told == []
        await pool.close()
    with pytest.raises(InvalidConfig, match="it is of none"):
        async with opened(config_of(authority.files(tmp_path / "own", leaf)), authority):
            pass


async def test_a_pool_that_is_gone_is_not_held(tmp_path: Path) -> None:
    certificates = Certificates(shown(Authority()))
    Channels[str](Security(pem=certificates))
    await certificates.renew(shown(Authority()), grace_ms=0)
    assert not list(certificates._pools)


async def test_a_server_with_another_role_is_not_spoken_to(tmp_path: Path) -> None:
    authority = Authority()
    async with Secure.open(authority, tmp_path) as server:
        pool: Channels[str] = Channels(Security(pem=shown(authority), server_name=lambda _: "controller.headrace"))
        call: Any = pool.to(server.target).unary_unary("/t.T/echo")
        with pytest.raises(TlsFailed, match="does not have the name"), CallTo("server"):
            await call(b"a", timeout=20)
        assert server.told == []
        await pool.close()


async def test_a_node_tells_what_it_shows_and_looks_first_where_it_is_asked_to(tmp_path: Path) -> None:
    authority = Authority()
    files = authority.files(tmp_path / "tls")
    async with opened(config_of(files), authority) as tls:
        servicer = CertificatesServicer(KEY, tls)
        told = await servicer.DescribeServed(pb.DescribeServedRequest(), None)
        assert (told.node, [one.name for one in told.bundles]) == ("broker-3", ["service"])
        pair = authority.make()
        authority.write(files, pair)
        again = await servicer.DescribeServed(pb.DescribeServedRequest(), None)
        assert again == told
        looked = await servicer.DescribeServed(pb.DescribeServedRequest(look=True), None)
    assert looked.bundles[0].certificate.serial == f"{pair.certificate.serial_number:x}"
    assert not looked.bundles[0].behind
    none = await CertificatesServicer(KEY, None).DescribeServed(pb.DescribeServedRequest(look=True), None)
    assert (none.node, len(none.bundles)) == ("broker-3", 0)
