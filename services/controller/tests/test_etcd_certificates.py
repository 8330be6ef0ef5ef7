"""New certificates for etcd are used once they are whole, and connections of before go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from libs.common.tests.kit.authority import Authority, of_client
from libs.common.tests.kit.clock import FakeClock

from headrace_common.core.ids import Endpoint
from headrace_common.rpc.credentials import Pem
from headrace_common.runtime.certificates import write_pair
from headrace_common.runtime.tls_config import TlsFiles
from headrace_controller.adapters.etcd_certificates import LOOK_EVERY_MS, EtcdTlsFiles, follow
from headrace_controller.adapters.etcd_store import EtcdStore


@dataclass
class Followed:
    authority: Authority
    paths: TlsFiles
    files: EtcdTlsFiles
    used: Pem
    clock: FakeClock = field(default_factory=FakeClock)
    taken: list[Pem] = field(default_factory=list)

    async def look(self) -> list[Pem]:
        """All that was taken, after one more look."""
        await self.clock.until_asleep()
        await self.clock.advance(LOOK_EVERY_MS)
        async with asyncio.timeout(20):
            await self.clock.until_asleep()
        return self.taken


@pytest.fixture
async def followed(tmp_path: Path) -> AsyncIterator[Followed]:
    authority = Authority()
    paths = authority.files(tmp_path / "etcd", of_client("controller"))
    files = EtcdTlsFiles(paths.ca, paths.cert, paths.key)
    used = files.read()
    assert used is not None
    one = Followed(authority, paths, files, used)
    following = asyncio.create_task(follow(files, used, one.clock, one.taken.append))
    yield one
    following.cancel()
    await asyncio.wait([following])
    assert following.cancelled(), "it goes on for ever"


async def test_new_ones_are_taken_once(followed: Followed) -> None:
    assert await followed.look() == []
    followed.authority.write(followed.paths, followed.authority.make(of_client("controller")))
    assert await followed.look() == [followed.files.read()]
    assert len(await followed.look()) == 1


async def test_a_ca_alone_may_change(followed: Followed) -> None:
    followed.paths.ca.write_bytes(followed.used.ca + Authority().ca.certificate_pem)
    assert await followed.look() == [followed.files.read()]


async def test_what_is_torn_is_not_taken_and_said_once(followed: Followed, caplog: pytest.LogCaptureFixture) -> None:
    pair = followed.authority.make(of_client("controller"))
    followed.paths.cert.write_bytes(pair.certificate_pem)
    assert await followed.look() == []
    assert await followed.look() == []
    assert caplog.text.count("are no pair") == 1
    followed.paths.key.unlink()
    assert await followed.look() == []
    assert "cannot read" in caplog.text
    write_pair(followed.paths.cert, followed.paths.key, pair)
    assert await followed.look() == [followed.files.read()]
    followed.paths.cert.write_bytes(b"no certificate")
    assert len(await followed.look()) == 1
    assert caplog.text.count("are no pair") == 2


async def test_a_store_connects_with_what_is_new(tmp_path: Path) -> None:
    first, second = (Authority().files(tmp_path / name) for name in ("a", "b"))
    one, two = (EtcdTlsFiles(files.ca, files.cert, files.key).read() for files in (first, second))
    assert one is not None
    assert two is not None
    async with EtcdStore.open([Endpoint("127.0.0.1", 1), Endpoint("127.0.0.1", 2)], "/t/", tls=one) as store:
        before = list(store._channels)
        store.renew(two)
        assert len(store._channels) == len(before)
        assert not set(store._channels) & set(before)
        assert store._tls is two, "also for a channel that is opened again later"
