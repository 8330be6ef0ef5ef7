"""
A small cluster whose metadata is lost: brokers with logs and notes, and what was acknowledged. Naive on purpose.

Random histories: appends, copies, ISR changes, clean elections, moves, damage, topics made, deleted, made again under
the same name, and grown. In the middle a backup is taken; at the end it is restored with every broker present.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from headrace_common.core.ids import NO_NODE, Endpoint, NodeId, PartitionId, TopicId
from headrace_common.core.image import ClusterImage, Node, NodeKey, Partition, Role, Topic, TopicDeletion
from headrace_controller.core import election, records, restoring
from headrace_controller.core.backup_file import Backup, Row
from headrace_controller.core.election import Brokers, Rules
from headrace_controller.core.held import HeldLog, HeldTopic, Inventories, Inventory
from headrace_controller.core.mirror import Mirror
from headrace_controller.core.records import Cluster
from headrace_controller.core.restored import restore_metadata
from headrace_controller.core.store import KeyValue, Listing

OLD, NEW, NEWER = b"o" * 16, b"n" * 16, b"m" * 16
BROKERS = [NodeId(n) for n in range(5)]
NAMES = ("a", "b", "c")

Record = tuple[int, int]
"""Leader epoch and a value that no other record has."""


@dataclass
class Log:
    records: list[Record] = field(default_factory=list)
    known: int = -1
    damaged: bool = False

    def held(self) -> HeldLog:
        last = self.records[-1][0] if self.records else -1
        return HeldLog(last, len(self.records), self.damaged, self.known)


@dataclass
class Cell:
    """One partition as it truly is."""

    replicas: list[NodeId]
    isr: list[NodeId]
    leader: NodeId
    epoch: int = 0
    target: list[NodeId] = field(default_factory=list)
    high: int = 0
    acked: list[Record] = field(default_factory=list)


@dataclass
class Fact:
    topic: Topic
    cells: list[Cell]
    wanted: int
    min_isr: int


class World:
    """The cluster before its metadata is lost."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.revision = 10
        self.values = 0
        self.facts: dict[str, Fact] = {}
        self.deletions: dict[TopicId, TopicDeletion] = {}
        self.logs: dict[NodeId, dict[PartitionId, Log]] = {b: {} for b in BROKERS}
        self.notes: dict[NodeId, dict[TopicId, HeldTopic]] = {b: {} for b in BROKERS}
        self.away: set[NodeId] = set()

    # --- what happens -------------------------------------------------------------------------------------

    def step(self) -> None:
        self.revision += 1
        kinds: list[tuple[int, Callable[[], None]]] = [
            (3, self.create),
            (1, self.delete),
            (1, self.grow),
            (1, self.configure),
            (30, self.append),
            (40, self.copy),
            (8, self.shrink),
            (14, self.expand),
            (8, self.elect),
            (5, self.move),
            (5, self.go_away),
            (7, self.come_back),
            (2, self.damage),
        ]
        self.chance.choices([k for _, k in kinds], [w for w, _ in kinds])[0]()
        self.commit()

    def create(self) -> None:
        name, up = self.chance.choice(NAMES), self.up()
        if name in self.facts or len(up) < 3:
            return
        topic = Topic(name, TopicId(self.chance.randbytes(16)), self.chance.randint(1, 2), {"n": str(self.revision)})
        wanted = self.chance.choice((1, 2, 3, 3))
        self.facts[name] = fact = Fact(topic, [], wanted, min(2, wanted))
        for _ in range(topic.partition_count):
            self.place(fact)
        self.note()

    def place(self, fact: Fact) -> None:
        replicas = self.chance.sample(self.up(), fact.wanted)
        fact.cells.append(Cell(replicas, list(replicas), replicas[0]))
        for b in replicas:
            self.logs[b][PartitionId(fact.topic.topic_id, len(fact.cells) - 1)] = Log()
        self.lead(fact, len(fact.cells) - 1, replicas[0])

    def delete(self) -> None:
        if not self.facts:
            return
        fact = self.facts.pop(self.chance.choice(sorted(self.facts)))
        pending = {b for b in BROKERS for i in self.logs[b] if i.topic_id == fact.topic.topic_id}
        for b in list(pending):
            if b not in self.away:
                self.drop(b, fact.topic.topic_id)
                pending.discard(b)
        if pending:
            self.deletions[fact.topic.topic_id] = TopicDeletion(fact.topic.topic_id, "x", tuple(sorted(pending)))

    def drop(self, broker: NodeId, topic_id: TopicId) -> None:
        self.logs[broker] = {i: log for i, log in self.logs[broker].items() if i.topic_id != topic_id}
        self.notes[broker].pop(topic_id, None)

    def grow(self) -> None:
        fact = self.any_fact()
        if fact is not None and len(self.up()) >= fact.wanted and len(fact.cells) < 4:
            fact.topic = replace(fact.topic, partition_count=len(fact.cells) + 1)
            self.place(fact)
            self.note()

    def configure(self) -> None:
        fact = self.any_fact()
        if fact is not None:
            fact.topic = replace(fact.topic, configs={"n": str(self.revision)})
            self.note()

    def append(self) -> None:
        for fact, n, cell in self.some_cells():
            if cell.leader != NO_NODE:
                log = self.log(cell.leader, fact, n)
                for _ in range(self.chance.randint(1, 4)):
                    self.values += 1
                    log.records.append((cell.epoch, self.values))

    def copy(self) -> None:
        for fact, n, cell in self.some_cells():
            for b in cell.replicas:
                if cell.leader in {NO_NODE, b} or b in self.away or self.chance.random() < 0.3:
                    continue
                theirs, own = self.log(cell.leader, fact, n), self.log(b, fact, n)
                if own.damaged:
                    self.logs[b][PartitionId(fact.topic.topic_id, n)] = own = Log()
                same = next(
                    (i for i, (x, y) in enumerate(zip(theirs.records, own.records, strict=False)) if x != y),
                    min(len(theirs.records), len(own.records)),
                )
                del own.records[same:]
                own.records += theirs.records[same : same + self.chance.randint(0, 6)]
                own.known = max([e for e, _ in own.records], default=-1)

    def commit(self) -> None:
        for fact in self.facts.values():
            for n, cell in enumerate(fact.cells):
                if cell.leader == NO_NODE or len(cell.isr) < min(fact.min_isr, len(cell.replicas)):
                    continue
                log = self.log(cell.leader, fact, n).records
                least = min(len(self.common(log, self.log(b, fact, n).records)) for b in cell.isr)
                if least > cell.high:
                    cell.acked += log[cell.high : least]
                    cell.high = least

    @staticmethod
    def common(one: list[Record], other: list[Record]) -> list[Record]:
        same = next((i for i, (x, y) in enumerate(zip(one, other, strict=False)) if x != y), min(len(one), len(other)))
        return one[:same]

    def shrink(self) -> None:
        for _, _, cell in self.some_cells():
            others = [b for b in cell.isr if b != cell.leader]
            if others and cell.leader != NO_NODE:
                cell.isr.remove(self.chance.choice(others))

    def expand(self) -> None:
        for fact, n, cell in self.some_cells():
            if cell.leader == NO_NODE:
                continue
            log = self.log(cell.leader, fact, n)
            for b in cell.replicas:
                own = self.log(b, fact, n)
                ready = len(self.common(log.records, own.records)) == len(own.records) >= cell.high
                started = next((i for i, (e, _) in enumerate(log.records) if e == cell.epoch), len(log.records))
                if (
                    b not in cell.isr
                    and b not in self.away
                    and not own.damaged
                    and ready
                    and len(own.records) >= started
                ):
                    cell.isr.append(b)
            if cell.target and set(cell.target) <= set(cell.isr):
                self.arrive(fact, n, cell)

    def arrive(self, fact: Fact, n: int, cell: Cell) -> None:
        left = [b for b in cell.replicas if b not in cell.target]
        cell.replicas, cell.target = cell.target, []
        cell.isr = [b for b in cell.isr if b in cell.replicas]
        if cell.leader not in cell.replicas:
            self.lead(fact, n, cell.isr[0])
        else:
            self.lead(fact, n, cell.leader)
        for b in left:
            if b not in self.away and self.chance.random() < 0.7:  # else its log is still there when all is lost
                self.logs[b].pop(PartitionId(fact.topic.topic_id, n), None)

    def elect(self) -> None:
        for fact, n, cell in self.some_cells():
            others = [b for b in cell.isr if b != cell.leader and b not in self.away]
            if others:
                self.lead(fact, n, self.chance.choice(others))

    def lead(self, fact: Fact, n: int, broker: NodeId) -> None:
        cell = fact.cells[n]
        cell.epoch += 1
        cell.leader = broker
        self.log(broker, fact, n).known = cell.epoch

    def move(self) -> None:
        for fact, n, cell in self.some_cells():
            if cell.target or cell.leader == NO_NODE or len(self.up()) < fact.wanted:
                continue
            cell.target = self.chance.sample(self.up(), fact.wanted)
            for b in cell.target:
                if b not in cell.replicas:
                    cell.replicas.append(b)
                    self.logs[b].setdefault(PartitionId(fact.topic.topic_id, n), Log())
        self.note()

    def go_away(self) -> None:
        broker = self.chance.choice(BROKERS)
        cells = [(f, n, c) for f in self.facts.values() for n, c in enumerate(f.cells)]
        if broker in self.away or any(c.isr == [broker] for _, _, c in cells):
            return
        self.away.add(broker)
        for fact, n, cell in cells:
            if broker in cell.isr:
                cell.isr.remove(broker)
                if cell.leader == broker:
                    self.lead(fact, n, self.chance.choice(cell.isr))

    def come_back(self) -> None:
        for broker in sorted(self.away):
            if self.chance.random() < 0.6:
                self.away.discard(broker)
                for topic_id, order in list(self.deletions.items()):
                    if broker in order.pending:
                        self.drop(broker, topic_id)
                        rest = tuple(b for b in order.pending if b != broker)
                        self.deletions[topic_id] = replace(order, pending=rest)
                        if not rest:
                            del self.deletions[topic_id]
        self.note()

    def damage(self) -> None:
        for fact, n, cell in self.some_cells():
            broker = self.chance.choice(cell.replicas)
            log = self.log(broker, fact, n)
            whole = [b for b in cell.isr if b != broker and not self.log(b, fact, n).damaged]
            if whole and not any(self.log(b, fact, n).damaged for b in cell.replicas):
                del log.records[self.chance.randint(0, len(log.records)) :]
                log.damaged = True
                cell.isr = [b for b in cell.isr if b != broker]
                if cell.leader == broker:
                    self.lead(fact, n, cell.isr[0])

    # --- small things -------------------------------------------------------------------------------------

    def up(self) -> list[NodeId]:
        return [b for b in BROKERS if b not in self.away]

    def any_fact(self) -> Fact | None:
        return self.facts[self.chance.choice(sorted(self.facts))] if self.facts else None

    def some_cells(self) -> list[tuple[Fact, int, Cell]]:
        fact = self.any_fact()
        found = [] if fact is None else [(fact, n, c) for n, c in enumerate(fact.cells)]
        return [one for one in found if self.chance.random() < 0.7]

    def log(self, broker: NodeId, fact: Fact, n: int) -> Log:
        return self.logs[broker].setdefault(PartitionId(fact.topic.topic_id, n), Log())

    def note(self) -> None:
        """Brokers that are here note what they hear of the topics that they have logs of."""
        for broker in self.up():
            held = {i.topic_id for i in self.logs[broker]}
            notes = {i: note for i, note in self.notes[broker].items() if i in held}
            for fact in self.facts.values():
                known = notes.get(fact.topic.topic_id)
                if fact.topic.topic_id in held and (known is None or known.topic != fact.topic):
                    notes[fact.topic.topic_id] = HeldTopic(fact.topic, OLD, self.revision)
            self.notes[broker] = notes

    # --- backup and restore -------------------------------------------------------------------------------

    def backup(self) -> Backup:
        rows = {
            "format": b"1",
            "cluster": records.encode(Cluster("id", OLD)),
            "ids/epoch": b"50",
            **{f"nodes/broker/{b}": records.encode(_node(b, 40)) for b in BROKERS},
            **{records.deletion_key(i): records.encode(d) for i, d in self.deletions.items()},
        }
        for fact in self.facts.values():
            rows[records.topic_key(fact.topic.name)] = records.encode(fact.topic)
            for n, cell in enumerate(fact.cells):
                partition = self.as_metadata(fact, n, cell)
                rows[records.partition_key(partition.id)] = records.encode(partition)
        return Backup("c", self.revision, 0, tuple(Row(k, v) for k, v in rows.items()))

    @staticmethod
    def as_metadata(fact: Fact, n: int, cell: Cell) -> Partition:
        moving = bool(cell.target)
        return Partition(
            id=PartitionId(fact.topic.topic_id, n),
            replicas=tuple(cell.replicas),
            isr=tuple(cell.isr),
            leader=cell.leader,
            leader_epoch=cell.epoch,
            partition_epoch=cell.epoch,
            adding=tuple(b for b in cell.target if b not in cell.isr)[: 1 if moving else 0],
            removing=tuple(b for b in cell.replicas if b not in cell.target) if moving else (),
        )

    def inventories(self, image: ClusterImage) -> Inventories:
        """What brokers say once they have seen the restored image, which makes them create the logs that it names."""
        for partition in image.partitions.values():
            for b in partition.replicas:
                self.logs[b].setdefault(partition.id, Log())
        for topic_id in image.deletions:
            for b in image.deletions[topic_id].pending:
                self.drop(b, topic_id)
        return {
            b: Inventory(tuple(self.notes[b].values()), {i: log.held() for i, log in self.logs[b].items()})
            for b in BROKERS
        }


def _node(broker: NodeId, epoch: int) -> Node:
    return Node(NodeKey(Role.BROKER, broker), Endpoint("h", 1), bytes([broker]) * 16, epoch, fenced=False)


def mirrored(backup: Backup, *, twice: bool = False) -> Mirror:
    """
    A mirror of the store after the restore, which all brokers have joined.

    Args:
        twice: the restore was not finished when it was backed up, and that was restored.
    """
    made = restore_metadata(backup, BROKERS, 1, NEW)
    rows = {row.key: row.value for row in (*made.rows, *made.last)}
    if twice:
        second = Backup("c", 5, 2, tuple(Row(k, v) for k, v in rows.items()))
        made = restore_metadata(second, BROKERS, 3, NEWER)
        rows = {row.key: row.value for row in (*made.rows, *made.last)}
    rows.update({f"nodes/broker/{b}": records.encode(_node(b, made.restore.epoch_floor + 1 + b)) for b in BROKERS})
    mirror = Mirror()
    mirror.load(Listing(100, tuple(KeyValue(k, v, 100, 100) for k, v in rows.items())))
    return mirror


@dataclass
class Outcome:
    """The metadata once the restore is finished, and who leads."""

    topics: dict[str, Topic]
    partitions: dict[PartitionId, Partition]
    plan: restoring.Plan


def finished(mirror: Mirror, inventories: Inventories) -> Outcome:
    """All decisions, then one ordinary pass of elections."""
    image, restore = mirror.image, mirror.restore
    assert restore is not None, "it was restored"
    plan = restoring.plan_topics(image, restore, inventories)
    topics = {t.name: t for t in image.topics.values()}
    partitions = dict(image.partitions)
    for one in plan.topics:
        topics[one.topic.name] = one.topic
        partitions.update({p.id: p for p in one.new})
    shown = {t.topic_id for t in topics.values()}
    partitions = {i: p for i, p in partitions.items() if i.topic_id in shown}
    asked = sorted(inventories)
    everybody = Brokers(unfenced=frozenset(BROKERS))
    for id, partition in partitions.items():
        new = restoring.decide_leaders(partition, plan.logs.get(id, {}), asked)
        assert restoring.decide_leaders(new, plan.logs.get(id, {}), asked) is new, "what was decided stays"
        partitions[id] = election.settle(new, everybody, Rules(2))
    return Outcome(topics, partitions, plan)


def lost(world: World, outcome: Outcome) -> list[str]:
    """Every promise that does not hold."""
    wrong: list[str] = []
    for name, fact in world.facts.items():
        shown = outcome.topics.get(name)
        if shown is None or shown.topic_id != fact.topic.topic_id:
            wrong.append(f"topic {name} is not there")
            continue
        if shown.partition_count < len(fact.cells):
            wrong.append(f"topic {name} has {shown.partition_count} of {len(fact.cells)} partitions")
            continue
        for n, cell in enumerate(fact.cells):
            id = PartitionId(fact.topic.topic_id, n)
            partition = outcome.partitions[id]
            if partition.leader == NO_NODE:
                wrong.append(f"{id} is not led")
                continue
            log = world.logs[partition.leader].get(id, Log())
            if log.damaged:
                wrong.append(f"{id} is led from a damaged log")
            if log.records[: len(cell.acked)] != cell.acked:
                wrong.append(f"{id} lost records")
            if any(partition.leader_epoch <= logs.get(id, Log()).known for logs in world.logs.values()):
                wrong.append(f"{id} has a leader epoch that a log knows")
    return wrong
