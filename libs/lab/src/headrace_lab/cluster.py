"""A cluster in the lab: its nodes, what befalls them, and clients of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, Unpack

from headrace import aio
from headrace.errors import HeadraceError
from headrace.finding import ClusterAddress
from headrace.securing import security_of
from headrace_common.core.access.api_keys import ID_BYTES, SECRET_BYTES, format_key, verifier_of
from headrace_common.core.errors import Rejected
from headrace_common.core.secret import Secret
from headrace_common.rpc.channels import Security
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.token_file import make_file
from headrace_controller.adapters.memory_store import MemoryStore
from headrace_lab.disk import LabDisk
from headrace_lab.lab import Lab
from headrace_lab.loop import Node
from headrace_lab.nodes import Configs, Nodes, address, run_store

if TYPE_CHECKING:
    from headrace.setting_types import AdminSettingsDict, ConsumerSettingsDict, ProducerSettingsDict

WAIT_S_MAX: Final = 120.0
"""Virtual seconds in which a cluster has to be complete, or a node to leave."""
LOOK_S: Final = 0.05
REPLICAS: Final = 3
"""Of a topic, where there are so many brokers."""

Run = Callable[[asyncio.Event], Coroutine[Any, Any, None]]

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Process:
    """A node while it runs."""

    node: Node
    stop: asyncio.Event
    task: asyncio.Task[None]


class Cluster:
    """
    Made by ``running``. Nodes are called ``broker-1``, ``controller-1``, ``coordinator-1``, ``admin-1``, ``etcd``, and
    ``test``, where the clients are; a bare number is a broker's.
    """

    def __init__(
        self,
        lab: Lab,
        *,
        brokers: int,
        controllers: int,
        coordinators: int,
        admins: int = 1,
        configs: Configs | None = None,
        closed: bool = False,
    ) -> None:
        self.lab = lab
        self.bootstrap_servers = [str(address(f"broker-{n}")) for n in range(1, brokers + 1)]
        """Their addresses alone."""
        self._files = TemporaryDirectory(prefix="headrace-lab-")
        self.token = Path(self._files.name) / "node-token"
        """File of the node token, for who is to pass for a node."""
        make_file(self.token)
        self.store = MemoryStore(SystemClock())
        """The metadata: it can be made to lose answers, and to be out of reach."""
        at = [address(f"controller-{n}") for n in range(1, controllers + 1)]
        self.key = (
            Secret(format_key(b"lab".ljust(ID_BYTES, b"."), b"lab".ljust(SECRET_BYTES, b"."))) if closed else None
        )
        """What clients of a closed cluster show; the administrator's."""
        configs = configs or Configs()
        if self.key is not None:
            file = Path(self._files.name) / "admin-keys"
            file.write_text(f"{verifier_of(self.key.reveal())}\n")
            before = configs.controller
            server = replace(before.server, node_token_file=self.token)
            closing = replace(before, server=server, access_mode="closed", admin_key_file=file)
            configs = replace(configs, controller=closing)
        nodes = Nodes(configs, tuple(at), self.token)
        self._disks = {f"broker-{n}": LabDisk(lab.loop.random) for n in range(1, brokers + 1)}
        self._runs: dict[str, Run] = {"etcd": partial(run_store, self.store)}
        numbers = range(1, controllers + 1)
        self._runs |= {f"controller-{n}": partial(nodes.run_controller, n, self.store) for n in numbers}
        self._runs |= {name: partial(nodes.run_broker, int(name[7:]), disk) for name, disk in self._disks.items()}
        self._runs |= {f"coordinator-{n}": partial(nodes.run_coordinator, n) for n in range(1, coordinators + 1)}
        self._runs |= {f"admin-{n}": partial(nodes.run_admin, n) for n in range(1, admins + 1)}
        self._processes: dict[str, _Process] = {}
        self.on_crash: Callable[[str, BaseException], None] = lambda name, error: None
        """Told of a node that has ended with an error."""

    # --- clients ----------------------------------------------------------------------------------------------

    def producer(self, **settings: Unpack[ProducerSettingsDict]) -> aio.Producer:
        """A producer on this cluster, for the test to close."""
        return aio.Producer(self.address, **settings)

    def consumer(self, *topics: str, **settings: Unpack[ConsumerSettingsDict]) -> aio.Consumer:
        """A consumer, for the test to close; it reads from the beginning unless told otherwise."""
        settings.setdefault("auto_offset_reset", "earliest")
        return aio.Consumer(*topics, bootstrap_servers=self.address, **settings)

    def admin(self, **settings: Unpack[AdminSettingsDict]) -> aio.AdminClient:
        """An admin client, for the test to close."""
        return aio.AdminClient(self.address, **settings)

    @property
    def address(self) -> ClusterAddress:
        """For clients that the test makes itself: where the brokers are, and what to show there."""
        return ClusterAddress(tuple(self.bootstrap_servers), "the lab", api_key=self.key)

    @property
    def security(self) -> Security:
        """For connections of the test's own to one node."""
        return security_of(self.address)

    async def create_topic(
        self, name: str, partitions: int = 1, *, replication_factor: int | None = None, **configs: str
    ) -> None:
        """A topic; its settings are given with underscores: ``retention_ms="1000"``."""
        replicas = replication_factor or min(REPLICAS, len(self.bootstrap_servers))
        async with self.admin() as admin:
            settings = {key.replace("_", "."): value for key, value in configs.items()}
            await admin.create_topic(name, partitions, replicas, configs=settings)

    # --- what befalls nodes -----------------------------------------------------------------------------------

    async def pass_time(
        self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0, ms: float = 0
    ) -> None:
        """
        Let so much virtual time pass, with all that happens in it: heartbeats above all, so ten minutes of three idle
        brokers take about a second. For days there is ``jump_clocks``.
        """
        await asyncio.sleep(_seconds(days, hours, minutes) + seconds + ms / 1_000)

    def jump_clocks(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """
        All wall clocks go ahead by so much, and no time passes. Offsets and transactional ids that are old now go at
        the next look at them, within ten minutes; records only an hour later, as brokers doubt a clock that jumps.
        """
        self.lab.machine.ahead_s += _seconds(days, hours, minutes) + seconds

    def kill(self, broker: int | None = None, *, power: bool = False, **role: int) -> None:
        """
        A node stops in its midst: ``kill(broker=1)``, ``kill(coordinator=1)``. With ``power`` its machine does, and a
        broker loses what it had not synced.
        """
        name = _name_node(broker, role)
        self._kill(name, self._process(name), power=power)

    async def stop(self, broker: int | None = None, **role: int) -> None:
        """A node is told to end, as by SIGTERM; returns when it has left the cluster and ended."""
        process = self._process(_name_node(broker, role))
        process.stop.set()
        await asyncio.wait([process.task], timeout=WAIT_S_MAX)

    def restart(self, broker: int | None = None, **role: int) -> None:
        """Start a node again, a broker on the disk that it had; one that runs is killed before."""
        name = self._name(_name_node(broker, role))
        if name in self._processes:
            self._kill(name, self._processes[name])
        self._start(name)

    def runs(self, broker: int | None = None, **role: int) -> bool:
        """Whether it does: it was not killed, and has not ended."""
        return self._name(_name_node(broker, role)) in self._processes

    def pause(self, broker: int | None = None, **role: int) -> None:
        """A node does nothing until ``resume``, as after SIGSTOP or in a long pause of its machine."""
        self.lab.loop.pause(self._process(_name_node(broker, role)).node)

    def resume(self, broker: int | None = None, **role: int) -> None:
        """It goes on."""
        self.lab.loop.resume(self._process(_name_node(broker, role)).node)

    def cut(self, source: int | str, target: int | str, *, one_way: bool = False) -> None:
        """What the two send to each other does not arrive until ``heal``; ``one_way``: what goes to ``target``."""
        one, other = self._name(source), self._name(target)
        self.lab.network.cut(one, other)
        if not one_way:
            self.lab.network.cut(other, one)

    def isolate(self, who: int | str) -> None:
        """Cut a node off from all others, and from the test's clients."""
        for other in [*self._runs, "test"]:
            if other != self._name(who):
                self.cut(who, other)

    def heal(self) -> None:
        """All that was cut is whole again."""
        self.lab.network.heal()

    def reset(self, one: int | str, other: int | str) -> None:
        """The connections between the two break; what was on its way is lost."""
        self.lab.network.reset(self._name(one), self._name(other))

    def delay(self, one: int | str, other: int | str, *, ms: tuple[float, float]) -> None:
        """Messages between the two take from so long to so long, drawn for each."""
        for source, target in ((one, other), (other, one)):
            self.lab.network.between(self._name(source), self._name(target)).delay_s = (ms[0] / 1_000, ms[1] / 1_000)

    def slow_disk(self, broker: int, *, ms: tuple[float, float] = (100, 1_000)) -> None:
        """A broker's syncs take from so long to so long, drawn for each."""
        self.disk(broker).slow(ms[0] / 1_000, ms[1] / 1_000)

    def fill_disk(self, broker: int) -> None:
        """Nothing is free on a broker's disk until ``free_disk``."""
        self.disk(broker).fill()

    def free_disk(self, broker: int) -> None:
        """There is room again."""
        self.disk(broker).free()

    def break_disk(self, broker: int) -> None:
        """A broker's next sync fails, which ends its process."""
        self.disk(broker).logs.fail_sync = "the disk failed"

    # --- nodes ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start all nodes; return when the cluster is complete. Raises TimeoutError."""
        self.begin()
        async with asyncio.timeout(WAIT_S_MAX), self.admin() as admin:
            while not await _is_complete(admin, len(self.bootstrap_servers)):  # noqa: ASYNC110 - many tell of it
                await asyncio.sleep(LOOK_S)

    def begin(self) -> None:
        """Start all nodes."""
        for name in self._runs:
            self._start(name)

    async def end(self) -> None:
        """Kill all nodes: nothing outlives the lab."""
        for name, process in list(self._processes.items()):
            self._kill(name, process)
        self.lab.loop.kill_all()
        await self.lab.loop.bury()
        self._files.cleanup()

    def _start(self, name: str) -> None:
        node, stop = self.lab.node(name), asyncio.Event()
        task = self.lab.loop.create_task(self._runs[name](stop), name=name, context=node.context.copy())
        self._processes[name] = process = _Process(node, stop, task)
        task.add_done_callback(partial(self._ended, name, process))

    def _ended(self, name: str, process: _Process, task: asyncio.Task[None]) -> None:
        """A process that ended, by itself or as it was told, leaves nothing behind."""
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("%s has ended with an error", name, exc_info=error)
            self.on_crash(name, error)
        if self._processes.get(name) is process:
            self._kill(name, process)

    def _kill(self, name: str, process: _Process, *, power: bool = False) -> None:
        del self._processes[name]
        if name in self._disks:
            self._disks[name].crash(power=power)
        self.lab.network.kill(process.node)

    def _process(self, name: str) -> _Process:
        if self._name(name) not in self._processes:
            raise Rejected(f"{name} does not run; start it with cluster.restart")
        return self._processes[name]

    def disk(self, broker: int) -> LabDisk:
        """That of a broker."""
        return self._disks[self._name(broker)]

    def _name(self, who: int | str) -> str:
        name = f"broker-{who}" if isinstance(who, int) else who
        if name not in self._runs and name != "test":
            raise Rejected(f"there is no node {name}; there are {', '.join(self._runs)}, and test")
        return name


def _seconds(days: float, hours: float, minutes: float) -> float:
    return ((days * 24 + hours) * 60 + minutes) * 60


def _name_node(broker: int | None, role: dict[str, int]) -> str:
    """The one node that a caller has named."""
    named = [f"{role}-{number}" for role, number in {**role, "broker": broker}.items() if number is not None]
    if len(named) != 1:
        raise Rejected(f"name one node, such as broker=1 or coordinator=1, not {', '.join(named) or 'none'}")
    return named[0]


async def _is_complete(admin: aio.AdminClient, brokers: int) -> bool:
    try:
        cluster = await admin.describe_cluster()
    except HeadraceError:
        return False
    return len([node for node in cluster.brokers if not node.fenced]) == brokers
