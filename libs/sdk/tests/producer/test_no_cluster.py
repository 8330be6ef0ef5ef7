"""Nobody is there: the log says so soon, whichever client it is and whether or not anybody listens at the address."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from headrace import AdminClient, Consumer, Producer
from headrace.errors import HeadraceError


def produce(address: str) -> None:
    with Producer(address, max_block_ms=3_000) as producer:
        producer.send("t", b"x")


def consume(address: str) -> None:
    with Consumer("t", bootstrap_servers=address, default_api_timeout_ms=3_000) as consumer:
        consumer.partitions_for("t")


def administer(address: str) -> None:
    with AdminClient(address, default_api_timeout_ms=3_000) as admin:
        admin.list_topics()


@pytest.fixture(params=["refused", "silent"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        if request.param == "refused":
            silent.close()
        yield f"127.0.0.1:{port}"


@pytest.mark.parametrize("use", [produce, consume, administer])
def test_who_hears_nothing_is_warned(
    use: Callable[[str], None], address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("headrace._transport.grpc.UNHEARD_MS", 50)
    warned = threading.Event()

    class Seen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno == logging.WARNING and address in record.getMessage():
                warned.set()

    logger, handler = logging.getLogger("headrace"), Seen()
    logger.addHandler(handler)
    try:
        using = threading.Thread(target=_quietly, args=(use, address))
        using.start()
        assert warned.wait(60)
        using.join(60)
    finally:
        logger.removeHandler(handler)


def _quietly(use: Callable[[str], None], address: str) -> None:
    try:
        use(address)
    except HeadraceError:
        return
