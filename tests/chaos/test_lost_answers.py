"""
Connections are cut after the broker has appended and before its answer arrives; afterwards nothing is there twice.

Clients reach the brokers through a proxy that ends connections after a few bytes of answers, swallows answers, or slows
requests down. One broker is killed meanwhile. The checker must find nothing.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from tests.chaos.guard import GUARDED, guarded

from headrace import TopicPartition, aio
from headrace._transport.grpc import GrpcTransport
from headrace_cli.local import LocalCluster
from headrace_common.core.errors import HeadraceError
from headrace_verify.checker import Assign, Operation, Outcome, Poll, Send, check

TOPIC = "cut"
PARTITIONS = 4
SECONDS = int(os.environ.get("CHAOS_CUT_SECONDS", "12"))
SEED = int(os.environ.get("CHAOS_SEED", "20261121"))


class Connection:
    """One connection through the proxy and what is to happen to it."""

    def __init__(self, client: asyncio.StreamWriter, broker: asyncio.StreamWriter) -> None:
        self._ends = (client, broker)
        self.answer_bytes_left: int | None = None
        self.swallows = False
        self.request_delay = 0.0

    def cut(self) -> None:
        """Reset both sides."""
        for end in self._ends:
            end.transport.abort()


class Proxy:
    """In front of one broker."""

    def __init__(self, address: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self.address = ""
        self.open: set[Connection] = set()
        self.cuts = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Proxy]:
        """Listen until the end of the block."""
        server = await asyncio.start_server(self._start, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for connection in self.open:
                connection.cut()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._carry(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answers, requests = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        connection = Connection(writer, requests)
        self.open.add(connection)
        try:
            with suppress(OSError):
                await asyncio.gather(
                    self._requests(connection, reader, requests), self._answers(connection, answers, writer)
                )
        finally:
            self.open.discard(connection)
            connection.cut()

    async def _requests(self, own: Connection, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            await asyncio.sleep(own.request_delay)
            to.write(data)
            await to.drain()
        raise ConnectionResetError("the client is gone")

    async def _answers(self, own: Connection, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            if own.swallows:
                continue
            if own.answer_bytes_left is not None:
                data, rest = data[: own.answer_bytes_left], data[own.answer_bytes_left :]
                own.answer_bytes_left -= len(data)
                if rest or not own.answer_bytes_left:
                    to.write(data)
                    self.cuts += 1
                    break
            to.write(data)
            await to.drain()
        raise ConnectionResetError("cut")

    def disturb(self, chance: random.Random) -> None:
        """Choose what happens to each open connection."""
        for connection in self.open:
            kind = chance.random()
            if kind < 0.6:
                connection.answer_bytes_left = chance.choice([1, 5, 9, 13, 40, 200])
            elif kind < 0.7:
                connection.swallows = True
                asyncio.get_running_loop().call_later(chance.choice([0.5, 3]), connection.cut)
            elif kind < 0.8:
                connection.request_delay = 0.05

    def leave_alone(self) -> None:
        """No more faults."""
        for connection in self.open:
            connection.answer_bytes_left, connection.request_delay = None, 0.0


async def produce(bootstrap: str, history: list[Operation], chance: random.Random, stop: asyncio.Event) -> None:
    """Send numbered values to every partition until told to stop."""

    async def note(partition: int, value: int, delivery: aio.Delivery) -> None:
        key = f"{TOPIC}-{partition}"
        try:
            history.append(Send(1, Outcome.OK, key, value, (await delivery).offset))
        except HeadraceError:
            history.append(Send(1, Outcome.INFO, key, value))

    value, notes = 0, list[asyncio.Future[None]]()
    async with aio.Producer(bootstrap, linger_ms=0, request_timeout_ms=2_000, delivery_timeout_ms=60_000) as producer:
        while not stop.is_set():
            for partition in range(PARTITIONS):
                value += 1
                delivery = await producer.send(TOPIC, b"%d" % value, partition=partition)
                notes.append(asyncio.ensure_future(note(partition, value, delivery)))
            await asyncio.sleep(chance.choice([0, 0.001, 0.004]))
        await asyncio.gather(*notes)


async def read_everything(bootstrap: str, history: list[Operation]) -> None:
    """From the beginning to the end of each partition."""
    history.append(Assign(9))
    partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    async with (
        asyncio.timeout(60),
        aio.Consumer(TOPIC, bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        ends = await consumer.end_offsets(partitions)
        while any([await consumer.position(one) < ends[one] for one in partitions]):
            records = await consumer.poll(timeout_ms=300)
            points = tuple((f"{one.topic}-{one.partition}", one.offset, int(one.value)) for one in records)
            history.append(Poll(9, points))


@pytest.mark.chaos
@pytest.mark.timeout(SECONDS + 180)
async def test_an_answer_that_got_lost_doubles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(SEED)
    history: list[Operation] = []
    with (
        LocalCluster(tmp_path / "data", brokers=2, restart_delay_ms=200, tls=GUARDED) as cluster,
        guarded(cluster, TOPIC),
    ):
        brokers, bootstrap = cluster.bootstrap_servers, ",".join(cluster.bootstrap_servers)
        async with aio.AdminClient(bootstrap) as admin:
            await admin.create_topic(TOPIC, PARTITIONS, 1)
        async with Proxy(brokers[0]).serve() as first, Proxy(brokers[1]).serve() as second:
            through = {brokers[0]: first.address, brokers[1]: second.address}
            # The key of this directory is shown to the addresses that it names, which proxies have not.
            if not GUARDED:
                monkeypatch.setenv("HEADRACE_API_KEY", cluster.authorization["Authorization"].removeprefix("Bearer "))
            direct = GrpcTransport._channel
            monkeypatch.setattr(
                GrpcTransport, "_channel", lambda own, address: direct(own, through.get(address, address))
            )
            stop = asyncio.Event()
            producing = asyncio.ensure_future(produce(bootstrap, history, chance, stop))
            async with asyncio.timeout(SECONDS + 90):
                for turn in range(SECONDS * 4):
                    await asyncio.sleep(0.25)
                    first.disturb(chance)
                    second.disturb(chance)
                    if turn == SECONDS * 2:
                        await asyncio.to_thread(cluster.kill, "broker-1")
                first.leave_alone()
                second.leave_alone()
                stop.set()
                await producing
            monkeypatch.undo()
            cuts = first.cuts + second.cuts
        await read_everything(bootstrap, history)
    verdict = check(history)
    assert cuts > SECONDS // 2, "answers were lost"
    assert verdict.sends_ok > 1000, f"seed {SEED}: only {verdict.sends_ok} sends were acknowledged"
    assert verdict.counts == {}, f"seed {SEED}\n{verdict.describe()}"
