"""
Ends in some way while clients are in some state: ``python exits.py STATE ENDING BOOTSTRAP TOPIC``.

Started by ``test_exits.py``, many times. What the state needs is ready when the ending begins; nothing is closed.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

import headrace
from headrace import aio

_held: list[Any] = []
"""Clients that nobody closes and nobody collects."""


def hold(client: Any) -> Any:
    _held.append(client)
    return client


def in_thread(work: Callable[[], None]) -> None:
    def quietly() -> None:
        try:
            work()
        except BaseException:  # noqa: BLE001  # the process ends under it
            return

    threading.Thread(target=quietly, daemon=True).start()


def busy_producer(bootstrap: str, topic: str) -> None:
    producer = hold(headrace.Producer(bootstrap))
    producer.send(topic, b"first").result(20)

    def send() -> None:
        while True:
            producer.send(topic, b"x" * 100).add_done_callback(lambda _: None)

    in_thread(send)


def idle_producer(bootstrap: str, topic: str) -> None:
    hold(headrace.Producer(bootstrap, linger_ms=10_000)).send(topic, b"lingers")


def polling_consumer(bootstrap: str, topic: str) -> None:
    consumer = hold(headrace.Consumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest"))
    consumer.poll(timeout_ms=2_000)

    def poll() -> None:
        while True:
            consumer.poll(timeout_ms=100)

    in_thread(poll)


def member(bootstrap: str, topic: str) -> None:
    consumer = hold(headrace.Consumer(topic, bootstrap_servers=bootstrap, group_id="exits"))
    consumer.poll(timeout_ms=500)


def transaction(bootstrap: str, topic: str) -> None:
    producer = hold(headrace.Producer(bootstrap, transactional_id=f"exits-{threading.get_native_id()}"))
    producer.begin_transaction()
    producer.send(topic, b"in a transaction")


def admin(bootstrap: str, topic: str) -> None:
    hold(headrace.AdminClient(bootstrap)).list_topics()


async def _produce(bootstrap: str, topic: str) -> None:
    producer = hold(aio.Producer(bootstrap))
    await (await producer.send(topic, b"x"))
    consumer = hold(aio.Consumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest"))
    await consumer.poll(timeout_ms=100)
    await producer.send(topic, b"y")


def aio_ended(bootstrap: str, topic: str) -> None:
    asyncio.run(_produce(bootstrap, topic))


def aio_in_thread(bootstrap: str, topic: str) -> None:
    ready = threading.Event()

    async def go_on() -> None:
        await _produce(bootstrap, topic)
        ready.set()
        while True:
            await asyncio.sleep(0.001)

    def run(coro: Coroutine[Any, Any, None]) -> None:
        asyncio.run(coro)

    in_thread(lambda: run(go_on()))
    ready.wait(20)


def connecting(bootstrap: str, topic: str) -> None:
    """Nobody listens, and nobody has yet."""
    producer = hold(headrace.Producer("127.0.0.1:1", max_block_ms=60_000))
    in_thread(lambda: producer.send(topic, b"x").result(60))
    consumer = hold(headrace.Consumer(topic, bootstrap_servers="127.0.0.1:1"))
    in_thread(lambda: consumer.poll(timeout_ms=60_000))


def calling_back(bootstrap: str, topic: str) -> None:
    """A callback of the application runs, and does not end."""
    producer = hold(headrace.Producer(bootstrap))
    runs = threading.Event()

    def work(_: object) -> None:
        runs.set()
        while True:
            sum(range(1_000))

    producer.send(topic, b"x").add_done_callback(work)
    runs.wait(20)


def tables(bootstrap: str, topic: str) -> None:
    """Arrow's threads and numpy's are there too."""
    import pyarrow as pa

    producer = hold(headrace.Producer(bootstrap, compression_type="zstd"))
    table = pa.table({"value": [b"x" * 100] * 10_000})
    producer.send_table(topic, table).result(20)
    consumer = hold(headrace.Consumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest"))

    def send() -> None:
        while True:
            producer.send_table(topic, table).result(20)

    def poll() -> None:
        while True:
            consumer.poll_table(timeout_ms=100)

    in_thread(send)
    in_thread(poll)


def many_clients(bootstrap: str, topic: str) -> None:
    """Made, used and closed in several threads while the process ends."""

    def come_and_go() -> None:
        while True:
            with headrace.Producer(bootstrap) as producer:
                producer.send(topic, b"x").result(20)

    for _ in range(3):
        in_thread(come_and_go)
    idle_producer(bootstrap, topic)


def forked(bootstrap: str, topic: str) -> None:
    """The child of a process that has clients goes on, with its own; its parent ends as it does."""
    producer = hold(headrace.Producer(bootstrap))
    producer.send(topic, b"of the parent").result(20)
    faulthandler.cancel_dump_traceback_later()  # a child of its thread never ends
    child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code < 0:
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code)
    faulthandler.dump_traceback_later(100)
    busy_producer(bootstrap, topic)


STATES = {
    state.__name__: state
    for state in (
        busy_producer,
        idle_producer,
        polling_consumer,
        member,
        transaction,
        admin,
        aio_ended,
        aio_in_thread,
        connecting,
        calling_back,
        tables,
        many_clients,
        forked,
    )
}
ENDINGS = {"return": 0, "exit": 3, "raise": 1, "interrupt": -signal.SIGINT}
"""With the exit code of each."""


def end(ending: str) -> None:
    if ending == "exit":
        sys.exit(3)
    if ending == "raise":
        raise RuntimeError("the program's own")
    if ending == "interrupt":
        signal.raise_signal(signal.SIGINT)


if __name__ == "__main__":
    _, state, ending, bootstrap, topic = sys.argv
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as at a terminal, also where a parent ignores Ctrl+C
    warnings.simplefilter("ignore")
    faulthandler.dump_traceback_later(100)  # who hangs says where
    STATES[state](bootstrap, topic)
    print("ready", flush=True)
    sys.stdin.readline()  # the test may pause the brokers meanwhile
    end(ending)
