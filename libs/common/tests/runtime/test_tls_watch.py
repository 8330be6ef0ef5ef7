"""New certificates are seen and handed on; wrong ones change nothing, and are told."""

from __future__ import annotations

import asyncio
import logging
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.request import urlopen

import pytest
from cryptography.hazmat.primitives import hashes
from libs.common.tests.kit.authority import Authority
from libs.common.tests.kit.clock import FakeClock

from headrace_common.core.errors import InvalidConfig
from headrace_common.core.ids import Endpoint
from headrace_common.runtime.metrics import Metrics, open_metrics
from headrace_common.runtime.tasks import TaskRunner
from headrace_common.runtime.tls import Bundle, Wanted
from headrace_common.runtime.tls_config import TlsFiles
from headrace_common.runtime.tls_contexts import keep_policy, make_server_context, renew_context
from headrace_common.runtime.tls_watch import LOOK_EVERY_MS, LiveBundle, TlsMetrics

NOW = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture
def authority() -> Authority:
    return Authority(now=NOW)


@pytest.fixture
def files(authority: Authority, tmp_path: Path) -> TlsFiles:
    return authority.files(tmp_path / "tls")


def live(files: TlsFiles, clock: FakeClock | None = None, metrics: Metrics | None = None) -> LiveBundle:
    clock = clock or FakeClock(int(NOW.timestamp() * 1_000))
    with open_metrics("t", 1, None) as none:
        return LiveBundle("internal", files, Wanted(), clock, TlsMetrics((metrics or none).meter))


class Takes:
    """A taker that may fail."""

    def __init__(self) -> None:
        self.bundles: list[Bundle] = []
        self.fails = False
        self.took = asyncio.Event()

    async def __call__(self, bundle: Bundle) -> None:
        if self.fails:
            raise OSError("no descriptor is left")
        self.bundles.append(bundle)
        self.took.set()


async def test_it_looks_every_ten_seconds(authority: Authority, files: TlsFiles) -> None:
    clock = FakeClock(int(NOW.timestamp() * 1_000))
    watched, taker = live(files, clock), Takes()
    async with TaskRunner() as tasks:
        tasks.start(watched.run(), name="watch")
        with watched.takes(taker, watched.bundle):
            await clock.until_asleep()
            authority.write(files, authority.make())
            await clock.advance(LOOK_EVERY_MS - 1)
            assert not taker.bundles
            await clock.advance(1)
            await taker.took.wait()
            assert taker.bundles == [watched.bundle]
            assert watched.bundle.pem.chain == files.cert.read_bytes()


async def test_what_did_not_change_is_not_handed_on(files: TlsFiles) -> None:
    watched, taker = live(files), Takes()
    with watched.takes(taker, watched.bundle):
        await watched.look()
    assert not taker.bundles


async def test_a_ca_alone_is_a_change(authority: Authority, files: TlsFiles) -> None:
    watched, taker = live(files), Takes()
    before = watched.bundle
    files.ca.write_bytes(Authority("second", NOW).ca.certificate_pem + authority.ca.certificate_pem)
    with watched.takes(taker, before):
        await watched.look()
    assert [bundle.distrusts(before) for bundle in taker.bundles] == [False]
    assert before.distrusts(watched.bundle)


async def test_wrong_ones_change_nothing_and_the_next_good_ones_are_taken(
    authority: Authority, files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with open_metrics("t", 1, Endpoint("127.0.0.1", 0)) as metrics:
        watched, taker = live(files, metrics=metrics), Takes()
        first, key = watched.bundle, files.key.read_bytes()
        with watched.takes(taker, first):
            files.key.write_bytes(authority.make().key_pem)
            for _ in range(3):
                await watched.look()
                assert watched.bundle is first
            files.key.unlink()
            await watched.look()
            errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
            assert len(errors) == 2, "each cause once"
            assert errors[0].startswith("the certificates in use stay: the key")
            files.key.write_bytes(key)
            await watched.look()
            assert not taker.bundles
            authority.write(files, authority.make(life=timedelta(days=3)))
            await watched.look()
        assert taker.bundles == [watched.bundle]
        assert metrics.endpoint is not None
        text = urlopen(f"http://{metrics.endpoint}/metrics", timeout=10).read().decode()
    assert 'headrace_tls_refused_total{bundle="internal"} 4.0' in text
    (shown,) = (line for line in text.splitlines() if line.startswith("headrace_tls_not_after_seconds{"))
    assert float(shown.split()[-1]) == (NOW + timedelta(days=3)).timestamp()
    begun = float(text.partition("headrace_tls_not_before_seconds{")[2].split()[1])
    assert begun == (NOW - timedelta(days=1)).timestamp()
    ca_ends = float(text.partition("headrace_tls_ca_not_after_seconds{")[2].split()[1])
    assert ca_ends == authority.ca.certificate.not_valid_after_utc.timestamp()
    assert "new certificates are in use" in caplog.text


async def test_an_end_that_comes_changes_nothing_and_is_told_once(
    files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock(int(NOW.timestamp() * 1_000))
    watched = live(files, clock)
    for _ in range(3):
        clock.jump_wall(2 * 86_400_000)
        await watched.look()
    assert len([r for r in caplog.records if "not valid after" in r.getMessage()]) == 1
    assert watched.bundle.fingerprint


async def test_who_could_not_take_them_is_given_them_again(
    authority: Authority, files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    watched, other, taker = live(files), Takes(), Takes()
    taker.fails = True
    with watched.takes(taker, watched.bundle), watched.takes(other, watched.bundle):
        authority.write(files, authority.make())
        await watched.look()
        assert "could not be taken, and will be again: no descriptor is left" in caplog.text
        taker.fails = False
        await watched.look()
        await watched.look()
    assert taker.bundles == other.bundles == [watched.bundle]


async def test_what_is_served_says_what_was_refused_and_who_lags_behind(authority: Authority, files: TlsFiles) -> None:
    watched, taker = live(files), Takes()
    ca = authority.ca.certificate.fingerprint(hashes.SHA256()).hex()
    first = watched.served()
    assert (first.name, first.refused, first.behind) == ("internal", "", False)
    assert first.certificate.fingerprint == watched.bundle.fingerprint
    assert first.not_after_ms == first.certificate.not_after_ms == int((NOW + timedelta(days=1)).timestamp()) * 1_000
    assert (first.issuer.fingerprint, [one.fingerprint for one in first.trusted]) == (ca, [ca])
    taker.fails = True
    with watched.takes(taker, watched.bundle):
        pair = authority.make()
        authority.write(files, pair)
        await watched.look()
        assert watched.served().behind
        assert watched.served().certificate.serial == f"{pair.certificate.serial_number:x}"
        files.key.write_bytes(authority.make().key_pem)
        taker.fails = False
        await watched.look()
        told = watched.served()
        assert (told.behind, "does not belong to" in told.refused) == (False, True)
        authority.write(files, pair)
        await watched.look()
    assert watched.served().refused == ""


async def test_looks_at_one_time_end_with_the_newest(authority: Authority, files: TlsFiles) -> None:
    watched, taker = live(files), Takes()
    with watched.takes(taker, watched.bundle):
        authority.write(files, authority.make())
        await asyncio.gather(*(watched.look() for _ in range(4)))
    assert taker.bundles == [watched.bundle], "one has read it, the others found nothing new"


def test_a_process_does_not_start_with_wrong_ones(authority: Authority, files: TlsFiles) -> None:
    files.key.write_bytes(authority.make().key_pem)
    with pytest.raises(InvalidConfig, match="does not belong to"):
        live(files)


async def test_a_server_of_asyncio_shows_new_ones_and_its_connections_go_on(tmp_path: Path) -> None:
    authority = Authority()
    files = authority.files(tmp_path / "now")
    with open_metrics("t", 1, None) as metrics:
        clock = FakeClock(int(authority.now.timestamp() * 1_000))
        watched = LiveBundle("client", files, Wanted(), clock, TlsMetrics(metrics.meter))
    context = make_server_context(watched.bundle)

    async def renew(bundle: Bundle) -> None:
        renew_context(context, bundle)

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    client = keep_policy(ssl.create_default_context(cafile=files.ca))
    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with watched.takes(renew, watched.bundle):
            shown, open_ones = [], []
            for _ in range(2):
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
                shown.append(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
                open_ones.append((reader, writer))
                authority.write(files, authority.make())
                await watched.look()
            for reader, writer in open_ones:
                writer.write(b"still here\n")
                assert await reader.readline() == b"still here\n"
                writer.close()
                await writer.wait_closed()
    assert shown[0] != shown[1]
