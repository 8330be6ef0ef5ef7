"""
Controllers: the pure cores of elections, ISR changes, reassignments and sessions, driven as the engine drives them.

Each operation is a generator that yields decisions; a decision is made on the mirror, reaches the store some time
later, and is made again when the store has moved on. A controller that was paused meanwhile goes on with what it
believed; only the store's compare of its term stops it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.simulation.store import Decision, Key, Snapshot

from headrace_common.core.errors import HeadraceError, MetadataUnavailable, NotController, StaleBrokerEpoch
from headrace_common.core.ids import NO_NODE, NodeId, PartitionId
from headrace_common.core.image import Node, NodeKey, Partition, Role
from headrace_controller.core import election, isr_changes, leadership, reassign
from headrace_controller.core.election import LogEnd
from headrace_controller.core.sessions import Heartbeat, Sessions, may_be_unfenced

if TYPE_CHECKING:
    from tests.simulation.world import World

LEASE_MS = 900.0
SESSION_MS = 900
TICK_MS = 200.0
TRIES_MAX = 8

Decide = Callable[[Snapshot], Decision | None]
Operation = Generator[Decide, bool, None]
Reply = Callable[[object], None]
Step = Callable[[Partition, Snapshot], Partition]


@dataclass(frozen=True)
class Joining:
    """What a broker brings when it registers."""

    broker: NodeId
    incarnation: int
    previous_epoch: int | None
    damaged: tuple[PartitionId, ...]
    wiped: bool = False


class Controller:
    """One controller process."""

    def __init__(self, id: int, world: World) -> None:
        self.id = id
        self.up = True
        self.paused = False
        self.incarnation = 0
        self.inbox: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self.term: int | None = None
        self.mirror: Snapshot = world.store.snapshot
        self._world = world
        self._sure_until_ms = 0.0
        self._sessions = Sessions(SESSION_MS)
        self._queue: deque[tuple[str, Operation]] = deque()
        self._under_way: tuple[str, Operation] | None = None
        self._decide: Decide | None = None
        self._tries = 0
        self._unsettled = True
        self._looks = 0

    # --- life ---------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Keep or win the election, hear the brokers' heartbeats, fence who is silent."""
        world = self._world
        world.schedule.after(TICK_MS * (0.9 + 0.2 * world.rng.random()), self.tick)
        if not self.up or self.paused:
            return
        now = world.schedule.now
        if world.network.both_ways(self.id, world.store_id):
            if self.term is not None and self.term == world.store.term:
                world.store.lease_until_ms = now + LEASE_MS
                self._sure_until_ms = now + LEASE_MS * 0.9
            elif self.term is not None:
                self._resign()
            elif now > world.store.lease_until_ms:
                self._elected(now)
        if self.term is not None and now < self._sure_until_ms:
            self._hear()
            self._looks += 1
            if self._unsettled or self._looks % 5 == 0:
                self._start("settle", self._settle())

    def crash(self) -> None:
        """The process is gone and comes back; its election ends with its lease."""
        self._resign()
        self.incarnation += 1
        self.inbox.clear()

    def _elected(self, now: float) -> None:
        world = self._world
        world.store.term += 1
        world.store.lease_until_ms = now + LEASE_MS
        self.term, self.mirror = world.store.term, world.store.snapshot
        self._sure_until_ms = now + LEASE_MS * 0.9
        self._sessions = Sessions(SESSION_MS)
        for node in self.mirror.nodes.values():
            self._sessions.open(node.key, node.epoch, now)
        self._unsettled = True
        world.schedule.say("controller", self.id, "is active in term", self.term)

    def _resign(self) -> None:
        if self.term is not None:
            self._world.schedule.say("controller", self.id, "is not active any more")
        self.term = None
        self._queue.clear()
        self._under_way = None
        self._decide = None

    def _hear(self) -> None:
        world, now = self._world, self._world.schedule.now
        for node in list(self.mirror.nodes.values()):
            broker = world.brokers[node.key.id]
            if not (broker.up and not broker.paused and world.network.both_ways(self.id, broker.id)):
                continue
            if broker.broker_epoch != node.epoch:
                if broker.broker_epoch >= 0:  # its heartbeat is refused, and it registers again
                    world.network.send(self.id, broker, broker.stale, broker.broker_epoch)
                continue
            heartbeat = Heartbeat(node.key, node.epoch, broker.image.revision, want_shutdown=broker.leaving)
            self._sessions.renew(heartbeat, now)
            if may_be_unfenced(node, heartbeat, self.mirror.mods.get(("node", node.key.id), 0)):
                self._start(f"unfence {node.key.id}", self._change(node.key.id, node.epoch, leaving=False))
            elif broker.leaving and not node.fenced and not node.in_controlled_shutdown:
                self._start(f"leave {node.key.id}", self._change(node.key.id, node.epoch, leaving=True))
            elif broker.leaving and self._nothing_depends_on(node):
                world.network.send(self.id, broker, broker.may_stop)
        for key in self._sessions.list_expired(now):
            found = self.mirror.nodes.get(key.id)
            if found is not None and not found.fenced:
                self._start(f"fence {key.id}", self.fence(key.id, found.epoch))

    def _nothing_depends_on(self, node: Node) -> bool:
        if node.fenced:
            return True
        if not node.in_controlled_shutdown or self._unsettled or self._queue or self._under_way:
            return False
        me = node.key.id
        if any(p.leader == me for p in self.mirror.partitions.values()):
            return False
        mods = self.mirror.mods
        moved = [p.id for p in self.mirror.partitions.values() if me in p.replicas and p.leader != NO_NODE]
        moved_at = max((mods.get(("partition", id), 0) for id in moved), default=0)
        others = [n for n in self.mirror.nodes.values() if not n.fenced and not n.in_controlled_shutdown]
        return all(self._sessions.image_revision(n.key) >= moved_at for n in others)

    # --- operations ---------------------------------------------------------------------------------------

    def _start(self, name: str, operation: Operation) -> None:
        if any(queued == name for queued, _ in self._queue):
            operation.close()
            return
        self._queue.append((name, operation))
        if self._under_way is None:
            self._next()

    def call(self, name: str, operation: Callable[[Controller, Reply], Operation], reply: Reply) -> None:
        """An RPC; refused unless this controller believes to be active."""
        if self.term is None:
            reply(NotController("another controller is active; ask it"))
        elif self._world.schedule.now >= self._sure_until_ms:
            reply(MetadataUnavailable("this controller does not reach the store; ask again later"))
        else:
            self._start(name, operation(self, reply))

    def _next(self) -> None:
        while self._under_way is None and self._queue:
            self._under_way = self._queue.popleft()
            self._resume(None)

    def _resume(self, sent: bool | None) -> None:
        assert self._under_way is not None
        try:
            operation = self._under_way[1]
            self._decide = next(operation) if sent is None else operation.send(sent)
        except StopIteration:
            self._under_way = None
            self._next()
            return
        self._tries = 0
        self._commit()

    def _commit(self) -> None:
        """Decide on the mirror; what is decided reaches the store a little later, whatever becomes of this process."""
        world = self._world
        assert self._decide is not None
        assert self._under_way is not None
        decision = self._decide(self.mirror)
        if decision is None or not decision.puts:
            self._resume(False)
            return
        if self.term is None or world.schedule.now >= self._sure_until_ms:
            self._drop()
            return
        delay = world.rng.random() * 4.0
        if world.rng.random() < 0.05:
            delay += world.rng.random() * 2 * LEASE_MS
        world.schedule.after(delay, self._at_store, self.term, self._under_way, decision)

    def _at_store(self, term: int, operation: tuple[str, Operation], decision: Decision) -> None:
        world = self._world
        outcome = world.store.commit(term, decision)
        if outcome == "lost":
            world.counts["stale terms refused"] += 1
        world.schedule.say("store:", operation[0], "of term", term, outcome, _Shown(decision))
        if self._under_way is not operation:
            return
        if self.paused:
            self.inbox.append((self._answered, (operation, outcome, world.store.snapshot)))
        else:
            self._answered(operation, outcome, world.store.snapshot)

    def _answered(self, operation: tuple[str, Operation], outcome: str, snapshot: Snapshot) -> None:
        if self._under_way is not operation:
            return
        if outcome == "lost":  # who waits for a turn has passed the check already, and acts on this mirror
            self.term = None
            self._drop()
            return
        if snapshot.revision > self.mirror.revision:
            if snapshot.nodes is not self.mirror.nodes:
                self._unsettled = True
            self.mirror = snapshot
        if outcome == "committed":
            self._resume(True)
            return
        self._tries += 1
        if self._tries >= TRIES_MAX:
            self._drop()
        else:
            self._commit()

    def _drop(self) -> None:
        """Nothing is answered: whoever asked asks again."""
        self._under_way = None
        self._unsettled = True
        self._next()

    def _bring(self, step: Step, ids: list[PartitionId] | None = None) -> Decide:
        def decide(mirror: Snapshot) -> Decision | None:
            puts: list[tuple[Key, object]] = []
            for old in mirror.partitions.values():
                if ids is not None and old.id not in ids:
                    continue
                new = step(old, mirror)
                if new is old:
                    continue
                puts.append((("partition", old.id), new))
                if old.replicas != new.replicas:
                    before = mirror.removals.get(old.id, ())
                    pending = reassign.to_delete(old, new, before)
                    if pending != before:
                        puts.append((("removal", old.id), pending))
            return Decision(mirror, tuple(puts))

        return decide

    def _settle(self) -> Operation:
        self._unsettled = False
        ends: dict[PartitionId, dict[NodeId, LogEnd | None]] = {}
        for partition in self.mirror.partitions.values():
            asked = election.to_ask(partition, self.mirror.brokers())
            if asked:
                ends[partition.id] = self._log_ends(partition.id, asked)
        brokers_of = _brokers_once()
        yield self._bring(lambda p, m: election.settle(p, brokers_of(m), self._world.rules_of(p), ends.get(p.id)))
        if any(election.to_ask(p, self.mirror.brokers()) for p in self.mirror.partitions.values()):
            self._unsettled = True

    def _log_ends(self, id: PartitionId, asked: tuple[NodeId, ...]) -> dict[NodeId, LogEnd | None]:
        world = self._world
        found: dict[NodeId, LogEnd | None] = {}
        for member in asked:
            broker = world.brokers[member]
            if not (broker.up and not broker.paused and world.network.both_ways(self.id, member)):
                continue
            if broker.broker_epoch != self.mirror.nodes[member].epoch:
                continue
            found[member] = broker.log_end(id)
        world.schedule.say("controller", self.id, "compares", id.partition, tuple(found.items()))
        return found

    def _change(self, id: NodeId, epoch: int, *, leaving: bool) -> Operation:
        def decide(mirror: Snapshot) -> Decision | None:
            node = mirror.nodes[id]
            new = replace(node, fenced=False, in_controlled_shutdown=leaving)
            return None if node.epoch != epoch or new == node else Decision(mirror, ((("node", id), new),))

        yield decide
        self._unsettled = True
        self._start("settle", self._settle())

    def fence(self, id: NodeId, epoch: int) -> Operation:
        """Take a broker out of service; its partitions follow."""

        def decide(mirror: Snapshot) -> Decision | None:
            node = mirror.nodes[id]
            if node.fenced or node.epoch != epoch:
                return None
            new = replace(node, fenced=True, in_controlled_shutdown=False)
            return Decision(mirror, ((("node", id), new),))

        yield decide
        self._unsettled = True
        self._start("settle", self._settle())

    def death_noticed(self, id: NodeId, incarnation: int) -> None:
        """The fast path: the process is surely gone."""
        node = self.mirror.nodes.get(id)
        if self.term is not None and node is not None and node.incarnation == _bytes(incarnation):
            self._start(f"fence {id}", self.fence(id, node.epoch))

    def register(self, joining: Joining, reply: Reply) -> Operation:
        """As ``engine.nodes``: fence the old one, take out what is not proven, write the new registration."""
        id = joining.broker
        old = self.mirror.nodes.get(id)
        clean = old is not None and joining.previous_epoch == old.epoch
        if old is not None:
            yield from self.fence(id, old.epoch)
        damaged = frozenset(joining.damaged)

        def unsettled(partition: Partition, mirror: Snapshot) -> Partition:
            if id not in partition.replicas:
                return partition
            rules, hurt = self._world.rules_of(partition), joining.wiped or partition.id in damaged
            return election.apply_registration(partition, id, mirror.brokers(), rules, clean=clean, damaged=hurt)

        yield self._bring(unsettled)

        def registration(mirror: Snapshot) -> Decision:
            epoch = max(mirror.epoch, joining.previous_epoch or 0) + 1
            before = mirror.nodes.get(id)
            node = Node(
                NodeKey(Role.BROKER, id),
                ("sim", id),
                _bytes(joining.incarnation),
                epoch,
                fenced=True,
                drained=before is not None and before.drained,
            )
            return Decision(mirror, ((("node", id), node), (("epoch", None), epoch)))

        yield registration
        node = self.mirror.nodes[id]
        self._sessions.open(node.key, node.epoch, self._world.schedule.now)
        reply(node.epoch)

    def alter(self, sender: NodeId, epoch: int, proposal: isr_changes.Proposal, reply: Reply) -> Operation:
        """As ``engine.isr_changes``, for one partition."""
        node = self.mirror.nodes.get(sender)
        if node is None or node.epoch != epoch:
            reply(StaleBrokerEpoch("there is a newer registration"))
            return
        refused: list[HeadraceError] = []

        def step(partition: Partition, mirror: Snapshot) -> Partition:
            refused.clear()
            try:
                return isr_changes.apply_proposal(
                    partition, proposal, sender, mirror.brokers(), self._world.rules_of(partition)
                )
            except HeadraceError as error:
                refused.append(error)
                return partition

        yield self._bring(step, [proposal.id])
        reply(refused[0] if refused else self.mirror.partitions[proposal.id])
        self._unsettled = True

    def reassign(self, id: PartitionId, target: tuple[NodeId, ...] | None) -> Operation:
        """Start moving a partition, or cancel it; refusals are forgotten."""

        def step(partition: Partition, mirror: Snapshot) -> Partition:
            brokers, min_isr = mirror.brokers(), self._world.rules_of(partition).min_isr
            try:
                if target is None:
                    wanted = reassign.cancel(partition, min_isr)
                else:
                    reassign.check_target(target, list(mirror.nodes), brokers.unfenced)
                    wanted = reassign.start(partition, target, min_isr)
            except HeadraceError:
                return partition
            if wanted is partition:
                return partition
            return election.settle_change(partition, wanted, brokers, self._world.rules_of(partition))

        yield self._bring(step, [id])

    def prefer(self, id: PartitionId) -> Operation:
        """Elect the preferred leader, where that can be."""

        def step(partition: Partition, mirror: Snapshot) -> Partition:
            try:
                return leadership.elect_preferred(partition, mirror.brokers(), self._world.rules_of(partition))
            except HeadraceError:
                return partition

        yield self._bring(step, [id])

    def deleted(self, broker: NodeId, id: PartitionId) -> Operation:
        """A broker has deleted a log by order."""

        def decide(mirror: Snapshot) -> Decision | None:
            pending = mirror.removals.get(id, ())
            if broker not in pending:
                return None
            return Decision(mirror, ((("removal", id), tuple(b for b in pending if b != broker)),))

        yield decide

    def command(self, name: str, operation: Operation) -> None:
        """An operator's command."""
        self._start(name, operation)


def _brokers_once() -> Callable[[Snapshot], election.Brokers]:
    last: list[tuple[Snapshot, election.Brokers]] = []

    def brokers_of(mirror: Snapshot) -> election.Brokers:
        if not last or last[0][0] is not mirror:
            last[:] = [(mirror, mirror.brokers())]
        return last[0][1]

    return brokers_of


def _bytes(incarnation: int) -> bytes:
    return incarnation.to_bytes(16, "big")


class _Shown:
    """A decision in words, made when somebody reads them."""

    __slots__ = ("_decision",)

    def __init__(self, decision: Decision) -> None:
        self._decision = decision

    def __str__(self) -> str:
        return _words(self._decision)


def _words(decision: Decision) -> str:
    words = []
    for key, value in decision.puts:
        if isinstance(value, Partition):
            words.append(
                f"p{value.id.partition} leader={value.leader} e={value.leader_epoch} pe={value.partition_epoch}"
                f" isr={value.isr} elr={value.elr} lk={value.last_known_elr} r={value.replicas}"
            )
        elif isinstance(value, Node):
            words.append(f"broker {value.key.id} epoch={value.epoch} fenced={value.fenced}")
        else:
            words.append(f"{key[0]} {value}")
    return "; ".join(words)
