"""What is said where TLS lets no connection come about, by real servers: what is wrong, and what to do."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from libs.common.tests.kit.authority import BROKER, Authority, of_client
from libs.common.tests.kit.secure import Secure, shown

from headrace_common.core.errors import NetworkFailed, TlsFailed
from headrace_common.core.ids import Endpoint
from headrace_common.rpc.calls import CallTo, never_sent
from headrace_common.rpc.channels import Security, open_channel
from headrace_common.rpc.credentials import Pem, of_server
from headrace_common.rpc.handshakes import explain_handshake
from headrace_common.runtime.service import GrpcService, ServerConfig


async def said(target: str, security: Security) -> str:
    async with open_channel(target, security, own_connection=True) as channel:
        with pytest.raises(TlsFailed) as raised, CallTo("server"):
            await channel.unary_unary("/t.T/echo")(b"word", timeout=20)  # type: ignore[misc]  # the stubs know the sync ones only
    assert never_sent(raised.value), "it may go out again"
    return str(raised.value)


@pytest.fixture
def authority() -> Authority:
    return Authority()


async def test_a_certificate_of_an_unknown_ca(authority: Authority, tmp_path: Path) -> None:
    async with Secure.open(authority, tmp_path) as secure:
        text = await said(secure.target, Security(pem=shown(Authority())))
        assert "leads to no CA that is trusted here" in text
        assert "ssl_ca_location or HEADRACE_CA" in text
        named = Security(pem=shown(authority), server_name=lambda _: "admin.headrace")
        assert "does not have the name" in await said(secure.target, named)
        assert "closed it, as one does that speaks TLS" in await said(secure.target, Security())
        assert "no certificate that can be read" in await said(secure.target, Security(pem=Pem(b"no PEM")))
        assert secure.told == []


@pytest.mark.parametrize("kind", ["none", "foreign", "expired"])
async def test_a_node_without_a_certificate_that_is_taken(authority: Authority, tmp_path: Path, kind: str) -> None:
    pairs = {
        "foreign": Authority("another").make(of_client()),
        "expired": authority.make(of_client(), age=timedelta(days=5)),
    }
    async with Secure.open(authority, tmp_path, client_certificates=True) as internal:
        text = await said(internal.target, Security(pem=shown(authority, pairs.get(kind))))
        assert "shown no certificate of a CA that it trusts" in text
        assert internal.told == []


async def test_a_certificate_that_has_expired(authority: Authority) -> None:
    old = authority.make(BROKER, age=timedelta(days=5))
    pem = Pem(authority.ca.certificate_pem, old.certificate_pem, old.key_pem)
    server = grpc.aio.server()
    port = server.add_secure_port("127.0.0.1:0", of_server(grpc, pem, client_certificates=False))
    await server.start()
    text = await said(f"127.0.0.1:{port}", Security(pem=shown(authority)))
    await server.stop(None)
    assert "has expired, or the clock of this machine is wrong" in text


async def test_tls_to_a_port_without(authority: Authority) -> None:
    config = ServerConfig(listen=Endpoint("127.0.0.1", 0), drain_ms_max=0)
    async with GrpcService.open(config, []) as plain:
        assert "speaks plain text" in await said(f"127.0.0.1:{plain.port}", Security(pem=shown(authority)))


async def test_nobody_there_is_no_matter_of_tls(authority: Authority) -> None:
    async with open_channel("127.0.0.1:1", Security(pem=shown(authority)), own_connection=True) as channel:
        with pytest.raises(NetworkFailed) as raised, CallTo("server"):
            await channel.unary_unary("/t.T/echo")(b"word", timeout=20)  # type: ignore[misc]  # as above
    assert not isinstance(raised.value, TlsFailed)
    assert explain_handshake("Socket closed") is None, "a connection that was there broke"
