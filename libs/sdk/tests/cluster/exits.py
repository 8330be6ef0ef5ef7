"""
Ends in some way while clients are in some state: ``python exits.py STATE ENDING BOOTSTRAP TOPIC``.

Started by ``test_exits.py``, many times. What the state needs is ready when the ending begins; nothing is closed.
"""

from __future__ import annotations

import asyncio
import faulthandler
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
