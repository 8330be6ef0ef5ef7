"""Listeners with TLS, over real connections: who is let in, and what new certificates do to those who are there."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from libs.common.tests.kit.authority import Authority, of_client
from libs.common.tests.kit.secure import Secure, shown

from headrace_common.core.errors import HeadraceError, NetworkFailed
from headrace_common.core.ids import Endpoint
from headrace_common.rpc.calls import CallTo, never_sent
from headrace_common.rpc.channels import Certificates, Channels, Security, SyncChannels, open_channel, open_sync_channel
from headrace_common.rpc.credentials import Pem
from headrace_common.runtime import tls_server
from headrace_common.runtime.port_claims import prove_port
from headrace_common.runtime.running_server import RunningServer
from headrace_common.runtime.service import CannotListen, GrpcService, ServerConfig
from headrace_common.runtime.tasks import TaskRunner
from headrace_common.runtime.tls_server import ServerTls, TlsServer

ANY = Endpoint("127.0.0.1", 0)


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
async def secure(authority: Authority, tmp_path: Path) -> AsyncIterator[Secure]:
    async with Secure.open(authority, tmp_path) as opened:
        yield opened


@pytest.fixture
async def internal(authority: Authority, tmp_path: Path) -> AsyncIterator[Secure]:
    """One that asks for certificates."""
    async with Secure.open(authority, tmp_path, client_certificates=True) as opened:
        yield opened


async def refused(secure: Secure, pem: Pem | None, **more: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await secure.ask(pem, **more)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    return str(raised.value.details())


# --- who is let in -------------------------------------------------------------------------------------------


async def test_who_trusts_its_ca_is_served(secure: Secure, authority: Authority) -> None:
    assert await secure.ask(shown(authority)) == b"word"
    assert await secure.ask(shown(authority), server_name=lambda _: "broker.headrace") == b"word"
    with open_sync_channel(secure.target, Security(pem=shown(authority))) as channel:
        call = channel.unary_unary("/t.T/echo")
        assert await asyncio.to_thread(lambda: call(b"sync", timeout=20)) == b"sync"


async def test_who_trusts_another_ca_or_wants_another_name_goes_away(secure: Secure, authority: Authority) -> None:
    assert "CERTIFICATE_VERIFY_FAILED" in await refused(secure, shown(Authority()))
    assert await refused(secure, shown(authority), server_name=lambda _: "admin.headrace")
    assert not secure.told


async def test_plain_text_to_tls_and_tls_to_plain_text(secure: Secure, authority: Authority) -> None:
    await refused(secure, None)
    async with GrpcService.open(ServerConfig(listen=ANY, drain_ms_max=0), []) as plain:
        secured = open_channel(f"127.0.0.1:{plain.port}", Security(pem=shown(authority)))
        async with secured as channel:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await channel.unary_unary("/t.T/echo")(b"", timeout=20)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    assert await secure.ask(shown(authority)) == b"word"
    assert secure.told == [b"word"]


async def test_bytes_that_are_no_tls_are_cut_off(secure: Secure, authority: Authority) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", secure.port)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" + bytes(1_000))
    assert len(await reader.read()) < 100
    writer.close()
    assert await secure.ask(shown(authority)) == b"word"


async def test_a_certificate_that_has_ended_is_not_taken(tmp_path: Path) -> None:
    old = Authority(now=datetime.now(UTC) - timedelta(days=5))
    async with Secure.open(old, tmp_path) as secure:  # to its own clock it is good for another day
        assert "CERTIFICATE_VERIFY_FAILED" in await refused(secure, shown(old))


async def test_an_internal_listener_serves_certificates_of_its_ca_alone(internal: Secure, authority: Authority) -> None:
    node = authority.make(of_client())
    assert await internal.ask(shown(authority, node)) == b"word"
    strange = Authority()
    ended = authority.make(of_client(), age=timedelta(days=4))
    for pair in (None, strange.make(of_client()), ended):
        await refused(internal, shown(authority, pair))
    await refused(internal, None)
    assert internal.told == [b"word"]


# --- the port ------------------------------------------------------------------------------------------------


async def test_a_port_is_shared_with_nobody_else(secure: Secure, tmp_path: Path) -> None:
    taken = Endpoint("127.0.0.1", secure.port)
    with pytest.raises(CannotListen, match="is the port taken"):
        async with Secure.open(Authority(), tmp_path / "..", listen=taken):
            pass
    with pytest.raises(CannotListen):
        async with GrpcService.open(ServerConfig(listen=taken), []):
            pass
    with pytest.raises(OSError, match="in use"):
        socket.create_server(("127.0.0.1", secure.port))


def test_two_that_begin_at_the_same_time_do_not_share_a_port() -> None:
    with prove_port(ANY, frozenset()) as port:
        taken = prove_port(Endpoint("127.0.0.1", port), frozenset())
        with pytest.raises(OSError, match="in use"):
            taken.__enter__()
    with prove_port(Endpoint("127.0.0.1", port), frozenset()) as again:
        assert again == port


async def test_a_port_of_a_server_in_plain_text_is_not_taken(authority: Authority, tmp_path: Path) -> None:
    async with GrpcService.open(ServerConfig(listen=ANY, drain_ms_max=0), []) as plain:
        with pytest.raises(CannotListen):
            async with Secure.open(authority, tmp_path, listen=Endpoint("127.0.0.1", plain.port)):
                pass


@pytest.mark.parametrize("host", ["0.0.0.0", "localhost", "::1"])
async def test_other_hosts(host: str, authority: Authority, tmp_path: Path) -> None:
    async with Secure.open(authority, tmp_path, listen=Endpoint(host, 0)) as secure:
        await secure.replace()
        await secure.until_shown("::1" if host == "::1" else "127.0.0.1")
        target = f"[::1]:{secure.port}" if host == "::1" else secure.target
        named = Security(pem=shown(authority), server_name=lambda _: "broker.headrace")
        async with open_channel(target, named) as channel:
            assert await channel.unary_unary("/t.T/echo")(b"w", timeout=20) == b"w"
        with pytest.raises(CannotListen):
            async with Secure.open(authority, tmp_path / "..", listen=Endpoint(host, secure.port)):
                pass


async def test_an_address_of_another_machine(authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(CannotListen):
        async with Secure.open(authority, tmp_path, listen=Endpoint("192.0.2.1", 0)):
            pass


# --- new certificates ----------------------------------------------------------------------------------------


class Talk:
    """A stream that stays open."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call: Any = channel.stream_stream("/t.T/echoes")()
        self.said = 0

    async def say(self) -> None:
        """Something, and hear it back."""
        self.said += 1
        word = b"%d" % self.said
        async with asyncio.timeout(20):
            await self.call.write(word)
            assert await self.call.read() == word

    async def cut(self) -> bool:
        """Whether it ends at once, and not because we wanted it to."""
        try:
            async with asyncio.timeout(20):
                return await self.call.code() is not grpc.StatusCode.OK
        except TimeoutError:
            return False


async def test_calls_of_before_go_on_and_new_ones_see_the_new_certificate(secure: Secure, authority: Authority) -> None:
    second = Authority()
    async with secure.channel(shown(authority)) as channel:
        talk = Talk(channel)
        await talk.say()
        await secure.replace(second, authority)
        await secure.until_shown()
        await talk.say()
        assert await secure.ask(shown(second)) == b"word"
        await refused(secure, shown(authority))
        await talk.say()
        await talk.call.done_writing()
        assert await talk.call.code() is grpc.StatusCode.OK


async def test_a_server_of_before_drains_for_its_time(authority: Authority, tmp_path: Path) -> None:
    async with Secure.open(authority, tmp_path, grace_ms=50) as secure, secure.channel(shown(authority)) as channel:
        talk = Talk(channel)
        await talk.say()
        await secure.replace()
        await secure.until_shown()
        assert await talk.cut()
        assert await secure.ask(shown(authority)) == b"word"
        server: Any = secure.service._server
        async with asyncio.timeout(20):
            while server._draining:
                await asyncio.sleep(0.01)


async def test_who_was_trusted_is_cut_off_with_the_trust(internal: Secure, authority: Authority) -> None:
    second = Authority()
    old, new = authority.make(of_client("admin")), second.make(of_client("admin"))
    both = authority.ca.certificate_pem + second.ca.certificate_pem
    old_pem, new_pem = (Pem(both, pair.certificate_pem, pair.key_pem) for pair in (old, new))
    await refused(internal, new_pem)
    async with internal.channel(old_pem) as channel:
        talk = Talk(channel)
        await talk.say()
        await internal.replace(authority, second)
        await internal.until_shown()
        assert await internal.ask(new_pem) == b"word"
        assert await internal.ask(old_pem) == b"word"
        async with internal.channel(old_pem) as later, internal.channel(new_pem) as known:
            talks = talk, Talk(later), Talk(known)
            for one in talks:
                await one.say()
            await internal.replace(second)
            await internal.until_shown()
            for one in talks:
                assert await one.cut(), "on a server that trusts who is not trusted any more"
        assert await internal.ask(new_pem) == b"word"
        await refused(internal, old_pem)


async def test_who_was_trusted_for_a_while_is_cut_off(internal: Secure, authority: Authority) -> None:
    second = Authority()
    pair = second.make(of_client("admin"))
    await internal.replace(authority, second)
    await internal.until_shown()
    async with internal.channel(Pem(authority.ca.certificate_pem, pair.certificate_pem, pair.key_pem)) as channel:
        talk = Talk(channel)
        await talk.say()
        await internal.replace(authority)
        assert await talk.cut()


class Listening:
    """Where a server is that never ends."""

    def __init__(self) -> None:
        self.leaves = False

    async def stop(self, grace: float | None) -> None:
        self.leaves = True
        await asyncio.Event().wait()


async def test_when_a_new_server_is_there_the_one_of_before_has_left(secure: Secure) -> None:
    begun: list[Any] = []

    async def begin(credentials: grpc.ServerCredentials) -> RunningServer:
        begun.append(Listening())
        return RunningServer(begun[-1])

    async with TaskRunner() as tasks:
        server = await TlsServer.open(ServerTls(secure.live), begin, tasks)
        await server.renew(secure.live.bundle)
        assert [one.leaves for one in begun] == [True, False]


async def test_no_more_than_some_servers_drain(
    secure: Secure, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_server, "DRAINING_MAX", 2)
    async with secure.channel(shown(authority)) as one, secure.channel(shown(authority)) as two:
        first = Talk(one)
        await first.say()
        await secure.replace()
        await secure.until_shown()
        second = Talk(two)  # it connects at once
        await second.say()
        for _ in range(2):
            await secure.replace()
            await secure.until_shown()
        assert await first.cut()
        await second.say()


async def test_a_process_that_leaves_waits_for_both(authority: Authority, tmp_path: Path) -> None:
    async with Secure.open(authority, tmp_path) as secure, secure.channel(shown(authority)) as channel:
        talk = Talk(channel)
        await talk.say()
        await secure.replace()
        await secure.until_shown()
        async with asyncio.timeout(20):
            await secure.service.drain()
        assert await talk.cut()
        server: Any = secure.service._server
        server._begin = None  # nothing is opened any more, not even for a moment
        await secure.replace()
        await refused(secure, shown(authority))


async def test_new_certificates_in_the_moment_of_leaving_open_nothing(secure: Secure, authority: Authority) -> None:
    authority.write(secure.files, authority.make())
    server: Any = secure.service._server
    begin = server._begin

    async def and_leave(credentials: Any) -> Any:
        begun = await begin(credentials)
        await secure.service.drain()
        return begun

    server._begin = and_leave
    await secure.live.look()
    await refused(secure, shown(authority))


async def test_what_cannot_be_taken_is_taken_at_the_next_look(
    secure: Secure, authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    second = Authority()
    with monkeypatch.context() as patch:
        patch.setattr("headrace_common.runtime.service.bind", refuse)
        await secure.replace(second, authority)
        assert "could not be taken" in caplog.text
        assert await secure.ask(shown(authority)) == b"word"
    await secure.live.look()
    await secure.until_shown()
    assert await secure.ask(shown(second)) == b"word"


def refuse(*_: object) -> int:
    raise CannotListen.at(ANY)


async def test_a_pool_opens_new_channels_and_old_ones_end_with_their_calls(
    internal: Secure, authority: Authority
) -> None:
    second = Authority()
    both = authority.ca.certificate_pem + second.ca.certificate_pem
    old, new = authority.make(of_client()), second.make(of_client())
    channels = Channels[str](Security(pem=Pem(both, old.certificate_pem, old.key_pem)))
    before = channels.to(internal.target)
    talk = Talk(before)
    await talk.say()
    await internal.replace(authority, second)
    await internal.until_shown()
    renewing = asyncio.create_task(channels.renew(Security(pem=Pem(both, new.certificate_pem, new.key_pem))))
    await asyncio.sleep(0)
    after = channels.to(internal.target)
    assert after is not before
    assert await after.unary_unary("/t.T/echo")(b"new", timeout=20) == b"new"
    await talk.say()
    assert not renewing.done()
    await talk.call.done_writing()
    await renewing
    hanging = Talk(after)
    await hanging.say()
    await channels.renew(Security(pem=shown(authority)), grace_ms=0)
    assert hanging.call.done()
    await channels.close()


async def test_a_pool_opens_channels_with_what_it_was_renewed_with(secure: Secure, authority: Authority) -> None:
    channels = Channels[str](Security(pem=shown(Authority())))
    before = channels.to(secure.target)
    with pytest.raises(grpc.aio.AioRpcError):
        await before.unary_unary("/t.T/echo")(b"a", timeout=20)
    await channels.renew(Security(pem=shown(authority)))
    assert await channels.to(secure.target).unary_unary("/t.T/echo")(b"b", timeout=20) == b"b"
    await channels.close()


@pytest.mark.parametrize("grace_ms", [0.0, 50.0])
async def test_calls_of_all_pools_are_cut_after_their_time(
    secure: Secure, authority: Authority, grace_ms: float
) -> None:
    certificates = Certificates(shown(authority))
    pools = [Channels[str](Security(pem=certificates), own_connection=True) for _ in range(2)]
    talks = [Talk(pool.to(secure.target)) for pool in pools]
    for talk in talks:
        await talk.say()
    newest = shown(Authority())
    async with asyncio.timeout(20):
        await certificates.renew(newest, grace_ms=grace_ms)
    assert [talk.call.done() for talk in talks] == [True, True]
    assert certificates.pem is newest
    assert not any(pools)
    with pytest.raises(grpc.aio.AioRpcError):
        await pools[0].to(secure.target).unary_unary("/t.T/echo")(b"a", timeout=20)
    for pool in pools:
        await pool.close()


class Closing:
    """A channel that says ``error`` when it is closed; None: it takes a moment, and closes."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self.closed = False

    async def close(self, grace: float | None = None) -> None:
        await asyncio.sleep(0)
        if self._error is not None:
            raise self._error
        for _ in range(3):
            await asyncio.sleep(0)
        self.closed = True


@pytest.mark.parametrize("error", [grpc.aio.UsageError("closed"), RuntimeError("something else")])
async def test_one_channel_that_cannot_be_closed_keeps_no_other_open(error: Exception) -> None:
    channels: Any = Channels[str]()
    first, second = Closing(error), Closing()
    channels._opened.update(a=first, b=second)
    with pytest.raises(RuntimeError) if isinstance(error, RuntimeError) else nullcontext():
        await channels.renew(grace_ms=0)
    assert second.closed
    assert not channels


async def test_a_pool_of_threads_opens_new_channels(secure: Secure, authority: Authority) -> None:
    channels = SyncChannels[str](Security(pem=shown(authority)))
    assert channels.to(secure.target) is channels.to(secure.target)
    assert (
        await asyncio.to_thread(lambda: channels.to(secure.target).unary_unary("/t.T/echo")(b"a", timeout=20)) == b"a"
    )
    second = Authority()
    await secure.replace(second)
    await secure.until_shown()
    channels.renew(Security(pem=shown(second)))
    assert (
        await asyncio.to_thread(lambda: channels.to(secure.target).unary_unary("/t.T/echo")(b"b", timeout=20)) == b"b"
    )
    channels.close()


# --- swaps under load ----------------------------------------------------------------------------------------

LONG = os.environ.get("TLS_LONG") == "1"
SECONDS, AT_ONCE, EVERY_S = (60.0, 100, 2.0) if LONG else (4.0, 20, 0.2)


@pytest.mark.timeout(300)
async def test_certificates_are_swapped_under_handshakes(internal: Secure, authority: Authority) -> None:
    """
    No request that arrived is lost: it is answered, or the caller hears of an error and nothing was done, so that it
    goes out again. ``TLS_LONG=1``: 100 handshakes at a time for a minute.
    """
    loop = asyncio.get_running_loop()
    pem = shown(authority, authority.make(of_client()))
    answered: list[bytes] = []
    failed: dict[bytes, HeadraceError] = {}

    async def connect(who: int, end: float) -> None:
        asked = 0
        while loop.time() < end:
            asked += 1
            request = b"%d-%d" % (who, asked)
            try:
                with CallTo("server"):
                    answered.append(await internal.ask(pem, request))
            except HeadraceError as error:
                failed[request] = error

    async def swap(end: float) -> int:
        swaps = 0
        while loop.time() < end - EVERY_S:
            await asyncio.sleep(EVERY_S)
            await internal.replace()
            swaps += 1
        return swaps

    async def talk(one: Talk, end: float) -> None:
        while loop.time() < end:
            await one.say()
            await asyncio.sleep(0.01)

    async with internal.channel(pem) as channel:
        stays = Talk(channel)
        await stays.say()
        end = loop.time() + SECONDS
        swaps, *_ = await asyncio.gather(swap(end), talk(stays, end), *(connect(n, end) for n in range(AT_ONCE)))
        await stays.say()
    print(f"{len(answered)} calls, {swaps} swaps, {stays.said} words of a stream, {len(failed)} to be tried again")
    assert swaps >= 3
    assert len(answered) > AT_ONCE
    assert sorted(answered) == sorted(internal.told), "what was done was answered, once"
    assert all(isinstance(error, NetworkFailed) for error in failed.values()), set(failed.values())
    unsure = {request: str(error) for request, error in failed.items() if not never_sent(error)}
    assert len(unsure) <= len(failed) // 10, unsure
    assert len(failed) <= swaps * AT_ONCE, "no more than those that were connecting then"
    assert await internal.ask(pem) == b"word"
