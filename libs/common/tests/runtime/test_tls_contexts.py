"""What servers take, gRPC's and asyncio's: the same, and nothing that is old."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from libs.common.tests.kit.authority import Authority
from libs.common.tests.kit.secure import Secure

from headrace_common.core.ciphers import CIPHERS, OF_ETCD
from headrace_common.runtime.tls_config import TlsFiles
from headrace_common.runtime.tls_contexts import keep_policy, make_server_context

# Those of 1.2 that a certificate of ECDSA can be used with: a server shows one of these, so RSA's are not agreed on.
AGREED = {cipher for cipher in CIPHERS if "ECDSA" in cipher}
OLD = [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1]


@asynccontextmanager
async def serving(kind: str, directory: Path) -> AsyncIterator[tuple[int, TlsFiles]]:
    authority = Authority()
    async with Secure.open(authority, directory) as secure:
        if kind == "grpc":
            yield secure.port, secure.files
            return
        context = make_server_context(secure.live.bundle)
        server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0, ssl=context)
        async with server:
            yield server.sockets[0].getsockname()[1], secure.files


async def agree(port: int, files: TlsFiles, version: ssl.TLSVersion, ciphers: str = "ALL:@SECLEVEL=0") -> str | None:
    """The cipher that both take; None: there is none."""
    context = ssl.create_default_context(cafile=files.ca)
    context.set_ciphers(ciphers)
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    except (ssl.SSLError, ConnectionError):
        return None
    cipher: str = writer.get_extra_info("cipher")[0]
    writer.close()
    return cipher


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@pytest.mark.parametrize("kind", ["grpc", "asyncio"])
async def test_versions_and_ciphers_of_a_server(kind: str, tmp_path: Path) -> None:
    offered = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    offered.set_ciphers("ALL:@SECLEVEL=0")
    known = [one["name"] for one in offered.get_ciphers() if not one["name"].startswith("TLS_")]
    assert len(known) > 50, "what is refused is offered"
    async with serving(kind, tmp_path) as (port, files):
        for version in OLD:
            assert await agree(port, files, version) is None
        taken = {await agree(port, files, ssl.TLSVersion.TLSv1_2, f"{name}:@SECLEVEL=0") for name in known}
        assert taken - {None} == AGREED
        newest = await agree(port, files, ssl.TLSVersion.TLSv1_3)
        assert newest is not None
        assert newest.startswith("TLS_")


def test_etcd_is_told_the_same() -> None:
    plain = ("-".join(name.removeprefix("TLS_").replace("_WITH_", "_").split("_")) for name in OF_ETCD)
    assert [name.replace("AES-", "AES") for name in plain] == list(CIPHERS)


def test_a_client_offers_nothing_else() -> None:
    context = keep_policy(ssl.create_default_context())
    names = {cipher["name"] for cipher in context.get_ciphers()}
    assert {name for name in names if not name.startswith("TLS_")} == set(CIPHERS)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
