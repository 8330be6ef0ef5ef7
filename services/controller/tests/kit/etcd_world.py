"""
A world in one process for ``etcd_member``: pods with volumes, and etcd as far as members and quorums go.

The real program runs in it; every call into the world stops twice, before it acts and before it returns, and what goes
on next is drawn from a seed. So answers grow old on their way, and a crash can come between any two steps. What etcd
does is modelled with what protects a careless user switched off: only the program's own care counts. It is checked
after every step that no second cluster gets a quorum, that no id votes from two volumes, and that a quorum always has
all that was committed.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final, TypeVar

from headrace_controller.etcd_member.core.etcd_file import Founding
from headrace_controller.etcd_member.core.facts import Facts, Phase, decode, encode
from headrace_controller.etcd_member.core.rendezvous import Site
from headrace_controller.etcd_member.core.roster import Peer
from headrace_controller.etcd_member.core.sights import (
    Member,
    Running,
    Sight,
    Silent,
    decode_report,
    encode_report,
)
from headrace_controller.etcd_member.ports import ClusterUnusable
from headrace_controller.etcd_member.program import EtcdMember, World

T = TypeVar("T")

NAME: Final = "modelled"
_IDLE_TURNS: Final = 7


class Broken(AssertionError):
    """An invariant does not hold."""


@dataclass
class Data:
    """etcd's data on a volume."""

    cluster: int
    id: int
    applied: int
    """Entries of the cluster's log that it holds."""


@dataclass
class Disk:
    """A volume; a lost one is another object."""

    number: int
    facts: bytes | None = None
    data: Data | None = None

    def has_data(self) -> bool:
        """See the port."""
        return self.data is not None

    def load(self) -> Facts | None:
        """See the port."""
        return None if self.facts is None else decode(self.facts)

    def store(self, facts: Facts) -> None:
        """See the port."""
        self.facts = encode(facts)


@dataclass
class Life:
    """One start of the program; a dead one does nothing more."""

    over: bool = False


@dataclass
class Pod:
    """One member: its volume, and what runs."""

    peer: Peer
    """As it was started last, or is to be."""
    disk: Disk
    state: str = "down"
    """down, waiting (the program runs), starting (it ended, etcd is to come up), running."""
    program: EtcdMember | None = None
    task: asyncio.Task[Founding] | None = None
    life: Life | None = None
    founding: Founding | None = None
    replayed: int = 0
    """How much of its data a running etcd has read again: what it lists."""


Entry = tuple[str, Member]
"""add, remove, publish or readdress, and the member as it is then."""


@dataclass
class Cluster:
    """What a quorum has committed."""

    log: list[Entry]
    turn: str | None = None

    def members(self, upto: int) -> dict[int, Member]:
        """By id, after so many entries."""
        found: dict[int, Member] = {}
        for kind, member in self.log[:upto]:
            if kind == "remove":
                found.pop(member.id, None)
            else:
                found[member.id] = member
        return found


@dataclass
class EtcdWorld:
    """All pods, all clusters, and the rules of chance. ``step`` is one thing that happens."""

    size: int
    random: Random
    pods: list[Pod] = field(default_factory=list)
    clusters: dict[int, Cluster] = field(default_factory=dict)
    calm: bool = False
    """No more faults."""
    gets_tls: bool = False
    """Once all is well, its pods are started anew with TLS, from the last to the first, as a StatefulSet does it."""
    lost: set[str] = field(default_factory=set)
    """Members that lost a volume that others relied on, until they have caught up again."""

    def __post_init__(self) -> None:
        self._formed: set[int] = set()
        self._voters: dict[tuple[int, int], int] = {}
        self._gates: list[asyncio.Future[None]] = []
        self._made = 0
        self._now = 0.0
        for number in range(self.size):
            name = f"etcd-{number}"
            self.pods.append(Pod(Peer(name, f"http://{name}:2380"), self._new_disk()))

    # --- what happens -----------------------------------------------------------------------------------------------

    async def step(self) -> None:
        """One thing, drawn: mostly somebody goes on."""
        deeds: list[Callable[[], None]] = [self._release] * (8 if self._gates else 0)
        for pod in self.pods:
            deeds += self._deeds_of(pod)
        if self.gets_tls and not self.pods[0].peer.tls and self._is_well:
            deeds += [self._roll] * 4
        deeds.append(self._end_of_a_turn)
        self.random.choice(deeds)()
        for _ in range(_IDLE_TURNS):
            await asyncio.sleep(0)
        self._look_after_programs()
        self._check()

    def _deeds_of(self, pod: Pod) -> list[Callable[[], None]]:
        deeds: list[Callable[[], None]] = []
        match pod.state:
            case "down":
                deeds += [lambda: self._schedule(pod)] * 2
                if not self.calm and self._may_lose(pod):
                    deeds.append(lambda: self._lose(pod))
            case "starting":
                deeds += [lambda: self._start_etcd(pod)] * 2
            case "running":
                deeds.append(lambda: self._catch_up(pod))
        if pod.state != "down" and not self.calm and self.random.random() < 0.4:
            deeds.append(lambda: self._crash(pod))
        return deeds

    @property
    def settled(self) -> bool:
        """All is well, and nothing is to be done."""
        return self._is_well and not (self.gets_tls and not self.pods[0].peer.tls)

    @property
    def _is_well(self) -> bool:
        """One cluster, all run in it, all counted, all have started and are reached where they are."""
        data = [pod.disk.data for pod in self.pods if pod.state == "running" and pod.disk.data]
        if len(data) < self.size or len({d.cluster for d in data}) > 1:
            return False
        log = self.clusters[data[0].cluster].log
        members = self.clusters[data[0].cluster].members(len(log))
        at = {d.id: ((pod.peer.url,), (_client_url(pod.peer),)) for d, pod in zip(data, self.pods, strict=True)}
        return at == {m.id: (m.peer_urls, m.client_urls) for m in members.values()}

    async def close(self) -> None:
        """End what runs."""
        for pod in self.pods:
            if pod.task is not None and pod.life is not None:
                pod.life.over = True
                pod.task.cancel()
        await asyncio.gather(*(p.task for p in self.pods if p.task is not None), return_exceptions=True)

    def _release(self) -> None:
        gate = self._gates.pop(self.random.randrange(len(self._gates)))
        if not gate.done():
            gate.set_result(None)

    def _roll(self) -> None:
        pod = next(p for p in reversed(self.pods) if not p.peer.tls)
        self._crash(pod)
        pod.peer = _with_tls(pod.peer)

    def _schedule(self, pod: Pod) -> None:
        life, tls = Life(), pod.peer.tls
        pod.life = life
        world = World(
            pod.disk,
            Sighting(self, life, tls),
            Ticks(self, life),
            lambda urls: self._cluster_at(life, tls, urls),
            self._volume_id,
        )
        others = (p.peer for p in self.pods if p is not pod)
        site = Site(pod.peer, tuple(_with_tls(p) if tls else p.in_plain for p in others), NAME)
        member = EtcdMember(site, world)
        pod.state, pod.founding = "waiting", member.wake()
        if pod.founding is not None:
            pod.state = "starting"
            return
        if member.has_data:
            pod.task = asyncio.get_running_loop().create_task(member.move())
        else:
            pod.program, pod.task = member, asyncio.get_running_loop().create_task(member.found())

    def _look_after_programs(self) -> None:
        for pod in self.pods:
            if pod.task is not None and pod.task.done():
                founding = pod.task.result()
                pod.state, pod.founding, pod.program, pod.task = "starting", founding, None, None

    def _crash(self, pod: Pod) -> None:
        if pod.task is not None and pod.life is not None:
            pod.life.over = True
            pod.task.cancel()
        pod.state, pod.program, pod.task, pod.founding = "down", None, None, None

    def _may_lose(self, pod: Pod) -> bool:
        """
        Any number of those that agreed to nothing, before anybody starts; of the others a minority at a time. While
        they get TLS only one that has it, and not the last one with data, nor while another one waits to get it: these
        wait for people.
        """
        moved = [p for p in self.pods if p.peer.tls]
        others = [p for p in moved if p is not pod and p.disk.data is not None]
        if moved and not (pod in moved and others and all(_has_moved(p) for p in moved)):
            return False
        return not self._matters(pod) or len(self.lost | {pod.peer.name}) <= (self.size - 1) // 2

    def _lose(self, pod: Pod) -> None:
        if self._matters(pod):
            self.lost.add(pod.peer.name)
        pod.disk = self._new_disk()

    def _matters(self, pod: Pod) -> bool:
        """Others may have started relying on this volume, or may be about to."""
        facts = pod.disk.load()
        return self._begun or (facts is not None and bool(facts.promises))

    @property
    def _begun(self) -> bool:
        return any(p.disk.data is not None or _decided(p.disk) for p in self.pods)

    def _end_of_a_turn(self) -> None:
        for cluster in self.clusters.values():
            cluster.turn = None

    def _new_disk(self) -> Disk:
        self._made += 1
        return Disk(self._made)

    def _volume_id(self) -> str:
        self._made += 1
        return f"volume-{self._made}"

    # --- etcd -------------------------------------------------------------------------------------------------------

    def _start_etcd(self, pod: Pod) -> None:
        """As a container that is started again and again with the same configuration until it comes up."""
        founding = pod.founding
        assert founding is not None, "the program wrote it"
        data = pod.disk.data
        if data is not None:
            pod.state, pod.replayed = "running", self.random.randint(0, data.applied)
            return
        data = self._founded(pod, founding) if founding.state == "new" else self._joined(pod, founding)
        if data is None:
            return
        voter = self._voters.setdefault((data.cluster, data.id), pod.disk.number)
        if voter != pod.disk.number:
            raise Broken(f"{pod.peer.name} votes again under the id {data.id:x}, without what it knew")
        pod.disk.data, pod.state, pod.replayed = data, "running", data.applied

    def _founded(self, pod: Pod, founding: Founding) -> Data:
        ids = {url: _hashed(f"{url}{founding.token}".encode()) for _, url in founding.members}
        cluster_id = _hashed(b"".join(i.to_bytes(8, "big") for i in sorted(ids.values())))
        first = [("add", Member(ids[url], name, (url,))) for name, url in sorted(founding.members)]
        self.clusters.setdefault(cluster_id, Cluster(first))
        return Data(cluster_id, ids[pod.peer.url], len(first))

    def _joined(self, pod: Pod, founding: Founding) -> Data | None:
        """
        etcd asks the others for the members, and gives up if they are not those of its configuration.

        What a member lists here never grows old again, as with etcd 3.6, whose list is on disk; one of 3.5 that has
        just been started lists old members while it reads its log.
        """
        for other in self.pods:
            data = other.disk.data
            if other is pod or other.state != "running" or data is None or (other.peer.tls and not pod.peer.tls):
                continue
            listed = self.clusters[data.cluster].members(data.applied)
            if sorted(url for m in listed.values() for url in m.peer_urls) != sorted(u for _, u in founding.members):
                continue
            (me,) = (m for m in listed.values() if pod.peer.url in m.peer_urls)
            return Data(data.cluster, me.id, 0)
        return None

    def _catch_up(self, pod: Pod) -> None:
        """A member gets entries from a leader, and tells that it has started once it is counted."""
        data = pod.disk.data
        assert data is not None, "it runs"
        cluster = self.clusters[data.cluster]
        pod.replayed = self.random.randint(min(pod.replayed, data.applied), data.applied)
        if not self._has_quorum(data.cluster):
            return
        data.applied = self.random.randint(data.applied, len(cluster.log))
        if data.applied < len(cluster.log):
            return
        self.lost.discard(pod.peer.name)
        me = cluster.members(data.applied).get(data.id)
        if me is not None and me.client_urls != (_client_url(pod.peer),):
            started = Member(me.id, pod.peer.name, me.peer_urls, (_client_url(pod.peer),))
            self._commit(data.cluster, ("publish", started))

    def _of(self, cluster_id: int) -> list[Data]:
        running = [p.disk.data for p in self.pods if p.state == "running" and p.disk.data is not None]
        return [data for data in running if data.cluster == cluster_id]

    def _has_quorum(self, cluster_id: int) -> bool:
        cluster, running = self.clusters[cluster_id], self._of(cluster_id)
        known = max((data.applied for data in running), default=0)
        members = cluster.members(known)
        alive = [p for p in self.pods if p.state == "running" and p.disk.data in running and p.disk.data.id in members]
        # Two exchange messages when one of them can reach the other where it is known to be.
        met = [sum(a is b or _reaches(a, b, members) or _reaches(b, a, members) for b in alive) for a in alive]
        if max(met, default=0) <= len(members) // 2:
            return False
        if known < len(cluster.log):
            raise Broken(f"a quorum of {cluster_id:x} goes on without what was committed")
        return True

    def _commit(self, cluster_id: int, entry: Entry) -> None:
        """On the disks of some quorum, drawn; its leader had all before."""
        cluster = self.clusters[cluster_id]
        before = len(cluster.log)
        cluster.log.append(entry)
        members = cluster.members(before)
        counted = [data for data in self._of(cluster_id) if data.id in members]
        self.random.shuffle(counted)
        counted.sort(key=lambda data: data.applied < before)  # one that has all leads
        for data in counted[: len(members) // 2 + 1]:
            data.applied = len(cluster.log)

    def _check(self) -> None:
        with_quorum = [cluster_id for cluster_id in self.clusters if self._has_quorum(cluster_id)]
        for cluster_id in with_quorum:
            self._formed.add(cluster_id)
        if len(self._formed) > 1:
            raise Broken(f"two clusters: {', '.join(f'{c:x}' for c in self._formed)}")

    # --- what the program sees --------------------------------------------------------------------------------------

    async def gate(self, life: Life, deed: Callable[[], T]) -> T:
        """Do it at some moment, and return at some later one."""
        await self._pass(life)
        done = deed()
        await self._pass(life)
        return done

    async def _pass(self, life: Life) -> None:
        if life.over:
            raise asyncio.CancelledError
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._gates.append(gate)
        try:
            await gate
        finally:
            if gate in self._gates:
                self._gates.remove(gate)
        if life.over:
            raise asyncio.CancelledError

    def seen(self, peer: Peer, tls: bool) -> Sight:
        """What answers at a member's address who has certificates, or has none; through the wire's forms."""
        (pod,) = (p for p in self.pods if p.peer.name == peer.name)
        if pod.peer != peer or (peer.tls and not tls):
            return Silent("it speaks otherwise")
        if not self.calm and self.random.random() < 0.1:
            return Silent("lost on the way")
        if pod.program is not None:
            return decode_report(encode_report(pod.program.report()))
        data = pod.disk.data
        if pod.state != "running" or data is None:
            return Silent("nobody there")
        members = self.clusters[data.cluster].members(min(pod.replayed, data.applied))
        if not any(peer.name == m.name or peer.url in m.peer_urls for m in members.values()):
            return Silent("starting")
        return Running(data.cluster, tuple(members.values()))

    @asynccontextmanager
    async def _cluster_at(self, life: Life, tls: bool, urls: tuple[str, ...]) -> AsyncIterator[ModelledCluster]:
        yield ModelledCluster(self, life, tls, urls)

    def tick(self) -> float:
        """A moment later than any before."""
        self._now += 1_000
        return self._now


@dataclass(frozen=True)
class Sighting:
    """The lookout."""

    world: EtcdWorld
    life: Life
    tls: bool

    async def look(self, peer: Peer) -> Sight:
        """See the port."""
        return await self.world.gate(self.life, lambda: self.world.seen(peer, self.tls))


@dataclass(frozen=True)
class Ticks:
    """The clock."""

    world: EtcdWorld
    life: Life

    def now_ms(self) -> int:
        """Wall clock."""
        return int(self.world.tick())

    def monotonic_ms(self) -> float:
        """Monotonic clock."""
        return self.world.tick()

    async def sleep_ms(self, ms: float) -> None:
        """As long as it takes until it is this one's turn."""
        await self.world.gate(self.life, lambda: None)


@dataclass(frozen=True)
class ModelledCluster:
    """The running cluster behind addresses; a call may fail, also after it was done."""

    world: EtcdWorld
    life: Life
    tls: bool
    urls: tuple[str, ...]

    async def claim(self, name: str) -> str:
        """See the port."""

        def do(_: int, cluster: Cluster) -> str:
            cluster.turn = cluster.turn or name
            return cluster.turn

        return await self._ask(do)

    async def release(self, name: str) -> None:
        """See the port."""

        def do(_: int, cluster: Cluster) -> None:
            cluster.turn = None if cluster.turn == name else cluster.turn

        await self._ask(do)

    async def members(self) -> tuple[Member, ...]:
        """See the port."""
        return await self._ask(lambda _, cluster: tuple(cluster.members(len(cluster.log)).values()))

    async def add(self, peer_url: str) -> tuple[Member, ...]:
        """As etcd with strict-reconfig-check: all members are connected, and those that started suffice."""

        def do(cluster_id: int, cluster: Cluster) -> tuple[Member, ...]:
            members = cluster.members(len(cluster.log))
            alive = {data.id for data in self.world._of(cluster_id)}
            if not members.keys() <= alive or any(peer_url in m.peer_urls for m in members.values()):
                raise ClusterUnusable("unhealthy, or the address is there")
            if sum(bool(m.name) for m in members.values()) < (len(members) + 1) // 2 + 1 != 2:
                raise ClusterUnusable("not enough started members")
            made = _hashed(f"{peer_url}{self.world.tick()}".encode())
            self.world._commit(cluster_id, ("add", Member(made, "", (peer_url,))))
            return tuple(cluster.members(len(cluster.log)).values())

        return await self._ask(do)

    async def readdress(self, member: Member, peer_url: str) -> None:
        """See the port."""

        def do(cluster_id: int, cluster: Cluster) -> None:
            there = cluster.members(len(cluster.log)).get(member.id)
            if there is None:
                raise ClusterUnusable("member not found")
            self.world._commit(cluster_id, ("readdress", replace(there, peer_urls=(peer_url,))))

        await self._ask(do)

    async def remove(self, member: Member) -> None:
        """See the port."""

        def do(cluster_id: int, cluster: Cluster) -> None:
            members = cluster.members(len(cluster.log))
            if member.id not in members:
                raise ClusterUnusable("member not found")
            left = [m for m in members.values() if m.id != member.id]
            if sum(bool(m.name) for m in left) < len(left) // 2 + 1:
                raise ClusterUnusable("not enough started members")
            self.world._commit(cluster_id, ("remove", member))

        await self._ask(do)

    async def _ask(self, do: Callable[[int, Cluster], T]) -> T:
        def at_once() -> T:
            unlucky = self.world.random.random() if not self.world.calm else 1.0
            if unlucky < 0.05:
                raise ClusterUnusable("never arrived")
            for pod in self.world.pods:
                data = pod.disk.data
                asked = _client_url(pod.peer) in self.urls and (self.tls or not pod.peer.tls)
                if asked and pod.state == "running" and data is not None and self.world._has_quorum(data.cluster):
                    done = do(data.cluster, self.world.clusters[data.cluster])
                    if unlucky < 0.1:
                        raise ClusterUnusable("no answer, although it was done")
                    return done
            raise ClusterUnusable("no quorum")

        return await self.world.gate(self.life, at_once)


def _client_url(peer: Peer) -> str:
    return f"{peer.url.removesuffix(':2380')}:2379"


def _with_tls(peer: Peer) -> Peer:
    return Peer(peer.name, f"https://{peer.name}:2380")


def _reaches(one: Pod, other: Pod, members: Mapping[int, Member]) -> bool:
    assert other.disk.data is not None, "it runs"
    return members[other.disk.data.id].peer_urls == (other.peer.url,) and (one.peer.tls or not other.peer.tls)


def _has_moved(pod: Pod) -> bool:
    facts = pod.disk.load()
    return pod.disk.data is None or (facts is not None and facts.tls)


def _decided(disk: Disk) -> bool:
    facts = disk.load()
    return facts is not None and facts.phase is Phase.NEW


def _hashed(what: bytes) -> int:
    return int.from_bytes(hashlib.sha1(what, usedforsecurity=False).digest()[:8], "big")


async def live(
    seed: int, size: int, *, restless: int = 400, patience: int = 20_000, gets_tls: bool = False
) -> EtcdWorld:
    """
    One life: faults for a while, then none until all is well. With ``gets_tls`` that is the beginning: faults again,
    while its members get TLS.

    Raises:
        Broken: an invariant does not hold, or all is not well after ``patience`` quiet steps.
    """
    world = EtcdWorld(size, Random(seed))
    try:
        for world.gets_tls in (False, True) if gets_tls else (False,):
            world.calm = False
            for _ in range(world.random.randrange(restless)):
                await world.step()
            world.calm = True
            for _ in range(patience):
                if world.settled:
                    break
                await world.step()
            else:
                raise Broken(f"no cluster: {_shown(world)}")
        return world
    finally:
        await world.close()


def _shown(world: EtcdWorld) -> Mapping[str, object]:
    return {p.peer.name: (p.state, p.disk, p.founding) for p in world.pods}
