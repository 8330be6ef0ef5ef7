"""Three real brokers and a real controller in the lab; a broker is killed in the midst of what is sent."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from libs.lab.tests.history import History

import headrace.aio as headrace
from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_broker.adapters.memory_topic_notes import MemoryTopicNotes
from headrace_common.core.errors import HeadraceError
from headrace_common.rpc.calls import CallTo
from headrace_common.rpc.channels import open_channel
from headrace_common.runtime.clock import SystemClock
from headrace_controller.adapters.memory_store import MemoryStore
from headrace_lab.lab import Lab, laboratory
from headrace_lab.loop import LabLoop, Node
from headrace_lab.nodes import address, run_broker, run_controller, run_store
from headrace_proto.v1 import controller_pb2 as pb
from headrace_proto.v1.controller_pb2_grpc import ControllerStub

if TYPE_CHECKING:
    from headrace_proto.v1.controller_pb2_grpc import ControllerAsyncStub

RECORDS = 60
PATIENCE_S = 300.0
"""Virtual ones."""


@dataclass(frozen=True)
class Outcome:
    """Of one run."""

    acknowledged: list[bytes]
    read: list[bytes]
    seconds: float
    steps: int
    messages: int
    digest: str


class Cluster:
    """Its nodes."""

    def __init__(self, lab: Lab, brokers: int) -> None:
        self.lab = lab
        self.stop = asyncio.Event()
        self.nodes: dict[str, Node] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        store = MemoryStore(SystemClock())
        self._start("etcd", run_store(store))
        self._start("controller-1", run_controller(1, store, self.stop))
        for number in range(1, brokers + 1):
            logs, notes = MemoryLogs(), MemoryTopicNotes()
            self._start(f"broker-{number}", run_broker(number, logs, notes, [address("controller-1")], self.stop))

    def _start(self, name: str, work: object) -> None:
        node = self.nodes[name] = self.lab.node(name)
        self.tasks[name] = self.lab.loop.create_task(work, name=name, context=node.context)  # type: ignore[arg-type]  # a coroutine

    def kill(self, name: str) -> None:
        self.lab.network.kill(self.nodes.pop(name))
        del self.tasks[name]

    async def create_topic(self, name: str, partitions: int, replicas: int) -> None:
        async with open_channel(str(address("controller-1"))) as channel:
            stub = ControllerStub(channel)
            topic = pb.NewTopic(name=name, partition_count=partitions, replication_factor=replicas)
            request = pb.CreateTopicsRequest(topics=[topic], timeout_ms=5_000)
            while not await _created(stub, request):
                await asyncio.sleep(0.1)


async def _created(stub: ControllerAsyncStub, request: pb.CreateTopicsRequest) -> bool:
    """Not yet, while there is no active controller, or brokers are missing."""
    try:
        with CallTo("controller-1"):
            answer = await stub.CreateTopics(request, timeout=5)
    except HeadraceError:
        return False
    return not any(topic.error for topic in answer.topics)


async def _play(lab: Lab, records: int, kill: bool) -> tuple[list[bytes], list[bytes]]:
    cluster = Cluster(lab, 3)
    await cluster.create_topic("t", 3, 3)
    servers = [str(address(f"broker-{n}")) for n in (1, 2, 3)]
    sent: dict[bytes, headrace.Delivery] = {}
    read: list[bytes] = []
    async with AsyncExitStack() as stack:
        producer = await stack.enter_async_context(headrace.Producer(servers))
        consumer = await stack.enter_async_context(
            headrace.Consumer("t", bootstrap_servers=servers, auto_offset_reset="earliest")
        )
        for number in range(records):
            value = b"%d" % number
            sent[value] = await producer.send("t", value, partition=number % 3)
            if number % 10 == 9:
                await producer.flush()
            if kill and number == records // 2:
                cluster.kill("broker-2")
        await producer.flush()
        acknowledged = [value for value, delivery in sent.items() if delivery.done() and not delivery.exception()]
        while len(read) < len(acknowledged) and lab.loop.time() < PATIENCE_S:
            read += [record.value or b"" for record in await consumer.poll(timeout_ms=1_000)]
    cluster.stop.set()
    for name, task in cluster.tasks.items():
        if name == "etcd":
            task.cancel()
    await asyncio.wait(list(cluster.tasks.values()))
    return acknowledged, read


def play(seed: int, records: int = RECORDS, *, kill: bool = True) -> Outcome:
    """One run."""
    loop = LabLoop(seed)
    history = History(loop)
    try:
        with laboratory(loop) as lab:
            acknowledged, read = loop.run_until_complete(_play(lab, records, kill))
            return Outcome(acknowledged, read, loop.time(), loop.steps, lab.network.messages, history.digest)
    finally:
        loop.close()
