"""Nobody is there: the log says so soon, whichever client it is and whether or not anybody listens at the address."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from libs.sdk.tests.kit.broker_thread import BrokerThread

from headrace import AdminClient, Consumer, LogWatch, Producer, UnitOwner
from headrace.errors import ClusterUnreachable, HeadraceError, NetworkFailed, Overloaded, RequestTimedOut
from headrace.settings import ProducerSettings, read_settings
from headrace_common.rpc.calls import nobody_there


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
def test_who_hears_nothing_is_warned(use: Callable[[str], None], address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace._transport.grpc.UNHEARD_MS", 50)
    assert f"at {address}; is the cluster up there?" in warning_of(lambda: use(address))


def test_who_has_no_descriptors_is_not_told_to_look_at_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(count: int) -> None:
        raise Overloaded(f"none of {count} is left")

    monkeypatch.setattr("headrace._transport.grpc.GrpcTransport._holds", None)
    monkeypatch.setattr("headrace._transport.grpc.need_descriptors", none_left)
    monkeypatch.setattr("headrace._transport.grpc.UNHEARD_MS", 50)
    assert "is left. Trying on" in warning_of(lambda: produce("127.0.0.1:1"))


def warning_of(use: Callable[[], None]) -> str:
    """The first that the client's log says while it is used."""
    said: list[str] = []
    warned = threading.Event()

    class Seen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno == logging.WARNING:
                said.append(record.getMessage())
                warned.set()

    logger, handler = logging.getLogger("headrace"), Seen()
    logger.addHandler(handler)
    try:
        using = threading.Thread(target=_quietly, args=(use,))
        using.start()
        assert warned.wait(60)
        using.join(60)
    finally:
        logger.removeHandler(handler)
    return said[0]


def _quietly(use: Callable[[], None]) -> None:
    try:
        use()
    except HeadraceError:
        return


GIVE_UP = 300


def in_a_group(address: str, **settings: Any) -> None:
    with Consumer("t", bootstrap_servers=address, group_id="g", **settings) as consumer:
        while True:
            consumer.poll(timeout_ms=100)


def reads(address: str, **settings: Any) -> None:
    with Consumer("t", bootstrap_servers=address, **settings) as consumer:
        consumer.poll(timeout_ms=None)


def commits(address: str, **settings: Any) -> None:
    with Consumer(bootstrap_servers=address, group_id="g", **settings) as consumer:
        consumer.committed([("t", 0)])


def transacts(address: str, **settings: Any) -> None:
    with Producer(address, transactional_id="x", **settings) as producer:
        producer.begin_transaction()


def sends(address: str, **settings: Any) -> None:
    with Producer(address, **settings) as producer:
        producer.send("t", b"x")


def asks(address: str, **settings: Any) -> None:
    with AdminClient(address, **settings) as admin:
        admin.list_topics()


def creates(address: str, **settings: Any) -> None:
    with AdminClient(address, **settings) as admin:
        admin.create_topic("t", partitions=1)


def watches(address: str, **settings: Any) -> None:
    with LogWatch(address, **settings) as watch:
        watch.topics()


def decides(address: str, **settings: Any) -> None:
    with UnitOwner(address, "nightly", **settings) as owner:
        owner.init()


USES: dict[Callable[..., None], str] = {
    sends: "max_block_ms",
    transacts: "max_block_ms",
    reads: "default_api_timeout_ms",
    in_a_group: "default_api_timeout_ms",
    commits: "default_api_timeout_ms",
    asks: "default_api_timeout_ms",
    creates: "default_api_timeout_ms",
    watches: "default_api_timeout_ms",
    decides: "default_api_timeout_ms",
}


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An address that refuses, for as long as the test lasts; who is told so is told soon."""
    monkeypatch.setattr("headrace._core.phases.UNREACHABLE_MS", GIVE_UP)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize("use", USES)
def test_a_client_that_is_refused_from_the_first_says_so(use: Callable[..., None], nobody: str) -> None:
    with pytest.raises(ClusterUnreachable, match="headrace up") as raised:
        use(nobody)
    assert nobody in str(raised.value)


@pytest.mark.parametrize(
    ("said", "nobody"),
    [
        ("failed to connect to all addresses; ipv4:10.0.0.1:9292: connect: Connection refused (111)", True),
        ("DNS resolution failed for nowhere:9292: C-ares status is not ARES_SUCCESS", True),
        ("failed to connect to all addresses; ipv4:10.0.0.1:9292: connect: No route to host (113)", False),
        ("Socket closed", False),
    ],
)
def test_only_who_refuses_or_has_no_address_is_not_there(said: str, nobody: bool) -> None:
    assert nobody_there(NetworkFailed(f"the connection failed: {said}")) is nobody
    assert not nobody_there(RequestTimedOut(said))


@pytest.mark.parametrize("use", USES)
def test_one_that_was_told_how_long_waits_so_long(use: Callable[..., None], nobody: str) -> None:
    with pytest.raises(HeadraceError) as raised:
        use(nobody, **{USES[use]: 3 * GIVE_UP})
    assert not isinstance(raised.value, ClusterUnreachable)


def test_one_silent_address_is_waited_for(nobody: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace._transport.grpc.METADATA_ATTEMPT_MS", 200)
    settings = read_settings(ProducerSettings, {"max_block_ms": 5 * GIVE_UP})
    monkeypatch.setattr("headrace.producer.read_settings", lambda *_: settings)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(HeadraceError) as raised:
        sends(f"{nobody},127.0.0.1:{silent.getsockname()[1]}")
    assert not isinstance(raised.value, ClusterUnreachable)


def test_one_that_was_answered_once_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace._core.phases.UNREACHABLE_MS", GIVE_UP)
    broker = BrokerThread({"one": 1, "t": 3})
    settings = read_settings(ProducerSettings, {"max_block_ms": 5 * GIVE_UP})
    monkeypatch.setattr("headrace.producer.read_settings", lambda *_: settings)
    with ExitStack() as stack:
        stopping = stack.enter_context(ExitStack())
        stopping.callback(broker.stop)
        producer = stack.enter_context(Producer(broker.address))
        producer.send("one", b"x").result(30)
        stopping.close()
        with pytest.raises(HeadraceError) as raised:
            producer.send("another", b"x")
    assert not isinstance(raised.value, ClusterUnreachable)
