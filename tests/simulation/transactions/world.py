"""
Transactions in one process, from one seed: brokers, coordinators, their logs, writers, readers, what goes wrong.

``Profile`` says how many of everything there are and which faults; it is drawn from the seed, few kinds of faults at a
time.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from unittest.mock import patch

from tests.simulation.brokers import Broker
from tests.simulation.invariants import Violation
from tests.simulation.schedule import Network, Schedule
from tests.simulation.transactions.brokers import LogBroker
from tests.simulation.transactions.callers import Caller
from tests.simulation.transactions.clients import Decider, PlainSender, Reader, Txn, Writer
from tests.simulation.transactions.coordinators import TxnNode
from tests.simulation.transactions.drivers import Checkpoints, Driver
from tests.simulation.transactions.elections import Elections
from tests.simulation.transactions.faults import Faults
from tests.simulation.transactions.invariants import Invariants
from tests.simulation.transactions.owners import Owner
from tests.simulation.transactions.processes import Process, Promise
from tests.simulation.transactions.shard_controller import Controller, _topic
from tests.simulation.transactions.shard_log import Brokers as Logs
from tests.simulation.transactions.shard_log import Entry, ShardLog
from tests.simulation.world import MODES, Result

from headrace_broker.core.rows import IndexRow
from headrace_common.core.configs import TopicConfig
from headrace_common.core.errors import CoordinatorNotAvailable
from headrace_common.core.ids import NO_NODE, NodeId, PartitionId, TopicId
from headrace_common.core.image import Partition
from headrace_common.core.murmur2 import partition_for
from headrace_controller.core.election import Rules
from headrace_coordinator.core.settings import GroupSettings
from headrace_coordinator.core.transactions import owner, producers, transaction
from headrace_coordinator.core.transactions.settings import TransactionSettings
from headrace_coordinator.core.transactions.values import Producer, Token, key_of
from headrace_verify.checker_history import F, Micro, Operation, Polled, Type
from headrace_verify.checker_txn import check_exactly_once, check_history

FAULTS = (
    "kill_broker",
    "power_broker",
    "power_all",
    "pause_broker",
    "isolate_broker",
    "move_leader",
    "trim",
    "expire_producers",
    "kill_coordinator",
    "pause_coordinator",
    "drain_coordinator",
    "jump_clock",
    "cut_controller",
    "cut_logs",
    "cut_marker",
    "change_log_leader",
    "stall_log",
    "kill_writer",
    "kill_at_end",
    "pause_writer",
    "twin_writer",
    "cut_writer",
    "abort_by_operator",
    "lossy",
)
OF_EMPHASIS = {
    "positions": (
        "abort_by_operator",
        "kill_writer",
        "kill_at_end",
        "kill_coordinator",
        "stall_log",
        "change_log_leader",
    ),
    "units": ("kill_writer", "twin_writer", "pause_writer", "change_log_leader"),
    "writers": ("twin_writer", "pause_writer", "abort_by_operator", "kill_coordinator", "kill_broker"),
}
CALM_MS_MAX = 120_000.0
REPLICAS = 3
OFFSETS_TOPIC = TopicId(b"__consumer_offse")


@dataclass(frozen=True)
class Profile:
    """What one world is like."""

    partitions: int
    coordinators: int
    transaction_shards: int
    writers: int
    transformers: int
    owners: int
    plain: int
    """Producers without transactions; none where brokers forget their sequences while they may yet repeat."""
    epoch_last: int
    """After how many transactions the epochs of a producer run out."""
    faults: tuple[str, ...]
    fault_every_ms: float
    doubled: float
    """Share of requests that are heard twice."""
    prepares: float
    """Share of transactions that are prepared."""
    think_ms: float
    successors: bool
    """Whether a transformer that died is replaced by one with another transactional id."""
    rivals: bool
    """Whether two processes own the same units all the time."""
    lags: float
    """Share of answers and of markers that wait in the process that is to take them up, or to send them."""
    slow_one_in: int
    slow_ms: float
    controller_session_ms: float
    clock_error: float
    steps: int
    writers_max: int = 9
    flush_os: bool = False
    image_slow_ms: float = 1_500.0
    topics: tuple[int, ...] = ()

    @property
    def shards(self) -> int:
        """Of transactions, and behind them the one of groups."""
        return self.transaction_shards + 1

    @staticmethod
    def drawn(rng: Random, steps: int) -> Profile:
        """From the seed. Some worlds have much of one thing, for what goes wrong where it meets itself."""
        emphasis = rng.choice(("all", "all", "positions", "units", "writers"))
        faults = tuple(rng.sample(FAULTS, rng.randint(3, 9)))
        partitions = 2 if emphasis == "positions" else rng.choice((2, 3, 3))
        return Profile(
            partitions=partitions,
            coordinators=rng.choice((2, 2, 3)),
            transaction_shards=rng.choice((1, 2)),
            writers=1 if emphasis in ("positions", "units") else rng.choice((1, 2, 3)),
            transformers={"positions": 1, "units": 0}.get(emphasis, rng.choice((0, 1))),
            owners={"units": 1, "all": rng.choice((0, 1))}.get(emphasis, 0),
            plain=rng.choice((0, 1)) if emphasis == "all" and "expire_producers" not in faults else 0,
            epoch_last=rng.choice((32_766, 32_766, 4)),
            faults=faults + OF_EMPHASIS.get(emphasis, ()),
            fault_every_ms=rng.choice((500.0, 1_500.0, 4_000.0)),
            doubled=rng.choice((0.0, 0.1, 0.3)),
            prepares=rng.choice((0.0, 0.2, 0.5)),
            think_ms=rng.choice((10.0, 60.0)),
            successors=rng.random() < 0.5,
            rivals=emphasis == "units" and rng.random() < 0.7,
            lags=rng.choice((0.0, 0.1, 0.3)),
            slow_one_in=rng.choice((15, 60)),
            slow_ms=rng.choice((150.0, 500.0)),
            controller_session_ms=rng.choice((1_500.0, 4_000.0)),
            clock_error=rng.choice((0.0, 0.02)),
            steps=steps,
            topics=(partitions,),
        )


class Shards(Controller):
    """Who has which shard; they are numbered through, those of transactions first."""

    def find_shard(self, answer: Promise, number: int) -> None:
        """FindCoordinator, as some broker knows."""
        owner = self._hearsay().shards[number].owner
        found = next((node for node in self.world.coordinators if node.id == owner), None)
        if found is None:
            answer.settle(error=CoordinatorNotAvailable("nobody has the shard now"))
        else:
            answer.settle(found)


class CutLog(ShardLog):
    """An append is several batches now and then, and may be cut between them."""

    def _append(self, entry: Entry, answer: Promise) -> None:
        rng, rows = self.world.rng, entry.rows
        if len(rows) > 1 and rng.random() < 0.4 and not self.world.calm:
            cut = rng.randrange(1, len(rows))
            super()._append(Entry(entry.token, entry.sequence - 0.5, rows[:cut]), Promise())
            entry = Entry(entry.token, entry.sequence, rows[cut:])
        super()._append(entry, answer)


class World:
    """Everything; ``run`` runs it."""

    store_id = 100

    def __init__(self, seed: int, steps: int = 4_000, profile: Profile | None = None, mode: str = "both") -> None:
        assert mode in MODES, f"MODE is one of {MODES}"
        self.seed, self.mode = seed, mode
        self.schedule = Schedule(seed)
        self.rng = self.schedule.rng
        self.profile = profile or Profile.drawn(self.rng, steps)
        self.owner_type = Random(seed).choice((Owner, Driver))  # of its own chance: it came later than many seeds
        self.network = Network(self.schedule)
        self.network.slow_one_in, self.network.slow_ms = self.profile.slow_one_in, self.profile.slow_ms
        self.counts: Counter[str] = Counter()
        self.calm = self.quiet = False
        self.lossy_until = 0.0
        self.config = TopicConfig.effective({"segment.bytes": "1048576"}, {})
        self.settings_of_transactions = TransactionSettings(unit_prepared_timeout_ms=15_000)
        self.settings_of_groups = GroupSettings()
        self._spare, self._value, self._process = 0, 0, 0
        self.history: list[Operation] = []
        self.transactions: list[Txn] = []
        self.by_producer: dict[Producer, Txn] = {}
        self.tokens: list[Token] = []
        self.nonces: dict[int, Producer] = {}
        self.units: list[list[Txn]] = []
        self.checkpoints = Checkpoints()
        self.sources: dict[int, int] = {}
        self.topic = "t0"
        self.keyed = None  # nothing compacts here
        self.offsets_topic = OFFSETS_TOPIC
        self.offsets_shard = self.profile.transaction_shards
        self._make_logs()
        self._make_nodes()
        self._make_clients()

    def _make_logs(self) -> None:
        ids = [NodeId(n) for n in range(1, REPLICAS + 1)]
        topic = _topic(self.topic, self.profile.partitions).topic_id
        self.data = [PartitionId(topic, number) for number in range(self.profile.partitions)]
        self.input, self.outputs = self.data[0], self.data[1:]
        replicas = {id: tuple((ids + ids)[n % 3 : n % 3 + REPLICAS]) for n, id in enumerate(self.data)}
        partitions = {id: Partition(id, of, of, NO_NODE, 0, 0) for id, of in replicas.items()}
        self.elections = self.store = Elections(101, self, partitions)
        self.first_image = self.elections.snapshot
        self.brokers: dict[NodeId, LogBroker] = {}
        self.invariants = Invariants(self)
        self.brokers = {id: LogBroker(id, self) for id in ids}
        self.logs = Logs(500, self)
        self.logs.logs = {number: CutLog(number, self) for number in range(self.profile.shards)}

    def _make_nodes(self) -> None:
        self.coordinators: list[TxnNode] = []
        self.controller = Shards(400, self)
        self.coordinators += [TxnNode(300 + n, self) for n in range(self.profile.coordinators)]
        self.operator = Caller(600, self)
        self.operator.up = True
        for broker in self.brokers.values():
            broker.start(None)
            self.schedule.after(self.rng.random() * 100, broker.tick)
        self.schedule.after(150.0, self.elections.tick)
        self.schedule.after(200.0, self.controller.tick)
        for node in self.coordinators:
            node.start()

    def _make_clients(self) -> None:
        profile = self.profile
        self.writers: list[Writer] = []
        for number in range(profile.writers):
            self.writers.append(Writer(700 + number, self, f"writer{number}", consumes=False))
        for number in range(min(1, profile.transformers) if self.outputs else 0):
            self.writers.append(Writer(740 + number, self, f"transformer{number}", consumes=True))
        for number in range(profile.owners * (2 if profile.rivals else 1)):
            self.writers.append(self.owner_type(760 + number, self, "owner"))
        self._clients: list[Decider | PlainSender] = [Decider(780, self)]
        self._clients += [PlainSender(790 + n, self) for n in range(profile.plain)]
        self._numbers = 800
        self.readers = [Reader(self._next_id(), self, id) for id in self.data]
        for client in (*self.writers, *self._clients):
            self.schedule.after(600.0 + self.rng.random() * 300.0, client.start)

    # --- what the others ask ------------------------------------------------------------------------------------

    def say(self, *words: object) -> None:
        """For the story."""
        self.schedule.say(*words)

    def _next_id(self) -> int:
        self._numbers += 1
        return self._numbers

    def config_of(self, broker: NodeId) -> TopicConfig:
        """The topics' settings, the same for all brokers."""
        del broker
        return self.config

    def next_value(self) -> int:
        """A value that nobody sent yet."""
        self._value += 1
        return self._value

    def new_process(self) -> int:
        """For the history."""
        self._process += 1
        return self._process

    def spare_producer_id(self) -> int:
        """One that nobody has."""
        self._spare += 1
        return self._spare

    def next_nonce(self) -> int:
        """As good as random."""
        return self.rng.getrandbits(48) + 1

    def shard_of(self, transactional_id: str) -> int:
        """Where an id, or an owner, is kept."""
        return partition_for(key_of(transactional_id).encode(), self.profile.transaction_shards)

    def owner_of(self, number: int) -> TxnNode | None:
        """Who has a shard, in truth."""
        owner = self.controller.image.shards[number].owner
        return next((node for node in self.coordinators if node.id == owner), None)

    def leader_by_hearsay(self, id: PartitionId) -> NodeId:
        """As some broker knows."""
        broker = self.brokers[NodeId(self.rng.randint(1, REPLICAS))]
        partition = broker.image.partitions.get(id) if broker.up and not self.calm else None
        return (partition or self.store.snapshot.partitions[id]).leader

    def lag(self) -> float:
        """How long a process takes to come to something, ms."""
        if self.calm or self.rng.random() >= self.profile.lags:
            return 0.0
        return self.rng.random() * self.rng.choice((100.0, 1_500.0))

    def lossy(self) -> bool:
        """Whether the connection breaks now."""
        return self.schedule.now < self.lossy_until and self.rng.random() < 0.1

    def delay(self) -> float:
        """Of one message."""
        delay = self.rng.random() * self.network.delay_ms
        if not self.calm and self.rng.random() * self.network.slow_one_in < 1:
            delay += self.rng.random() * self.network.slow_ms
        return delay

    def send(self, source: Process, to: Process, action: Callable[..., None], *, channel: int) -> None:
        """One message of a call; calls overtake each other."""
        self.network.send(source.id, to, action, channel=channel + 10 * self.rng.randrange(4))

    def active_for(self, _broker: Broker) -> Elections:
        """Whom a broker asks."""
        return self.elections

    def offer_image(self, broker: LogBroker) -> None:
        """What is missing to a broker's image is on its way."""
        self.elections.offer(broker)

    def rules_of(self, _partition: Partition) -> Rules:
        """Min ISR is 2 everywhere."""
        return Rules(2)

    def restart_later(self, broker: Broker, _token: int | None) -> None:
        """Start a broker that is down some time from now."""
        pause = 50.0 + self.rng.random() * self.rng.choice((300.0, 1_500.0))
        self.schedule.after(pause, self._restart, broker, broker.incarnation)

    @staticmethod
    def _restart(broker: Broker, incarnation: int) -> None:
        if not broker.up and broker.incarnation == incarnation:
            broker.start(None)

    def twin_of(self, writer: Writer) -> Writer:
        """A process with the same transactional id, or the same owner's name."""
        if isinstance(writer, Owner):
            twin: Writer = type(writer)(self._next_id(), self, writer.transactional_id)
        else:
            twin = Writer(self._next_id(), self, writer.transactional_id, consumes=writer.consumes)
        self.writers.append(twin)
        return twin

    # --- the history --------------------------------------------------------------------------------------------

    def key(self, id: PartitionId) -> str:
        """The checker's name of a partition."""
        return str(id.partition)

    def note(self, process: int, type_: Type, f: F, value: tuple[Micro, ...] | tuple[str, ...] = ()) -> None:
        """One entry."""
        self.history.append(Operation(len(self.history), process, type_, f, value, int(self.schedule.now * 1e6)))

    def note_poll(self, process: int, id: PartitionId, points: list[tuple[int, int]]) -> None:
        """A whole poll."""
        self.note(process, Type.INVOKE, F.POLL)
        self.note(process, Type.OK, F.POLL, (Polled({self.key(id): tuple(points)}),))

    def new_transaction(self, transactional_id: str, producer: Producer) -> Txn:
        """Somebody begins one."""
        txn = Txn(len(self.transactions), transactional_id, producer)
        self.transactions.append(txn)
        self.by_producer[producer] = txn
        self.note(1_000_000 + txn.number, Type.INVOKE, F.TXN)
        return txn

    def transaction_of(self, producer_id: int, epoch: int) -> Txn:
        """Which was written under an identity."""
        return self.by_producer[Producer(producer_id, epoch)]

    def returns(self, txn: Txn, verdict: bool | None) -> None:
        """Somebody was told what became of a transaction, or gave up."""
        if verdict is not None and txn.verdict is (not verdict):
            raise Violation("verdict-changed", f"transaction {txn.number} {tuple(txn.producer)}: first {txn.verdict}")
        txn.verdict = txn.verdict if verdict is None else verdict
        self.say("transaction", txn.number, "is", verdict)
        if txn.returned:
            return
        txn.returned = True
        self.counts[f"transactions that ended {verdict}"] += 1
        type_ = Type.INFO if verdict is None else Type.OK if verdict else Type.FAIL
        self.note(1_000_000 + txn.number, type_, F.TXN, tuple(txn.micros))

    def read_by_all(self, id: PartitionId) -> int:
        """Up to where nobody reads any more, whatever is aborted."""
        positions = [reader.position for reader in self.readers if reader.partition == id]
        if id == self.input and self.profile.transformers:
            found = [p.offset for key, p in self.invariants.positions.items() if key.partition == id]
            positions += found or [0]
        return min(positions)

    def points_of(self, id: PartitionId, row: IndexRow) -> list[tuple[int, int]]:
        """Offsets and values of a batch."""
        return list(enumerate(self.invariants.values_at(id, row), row.base_offset))

    # --- running ------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        """The whole life: a quiet start, faults, healing, the last look."""
        result = Result(self.seed, 0)
        try:
            with ExitStack() as patches:
                for module in (transaction, producers, owner):
                    patches.enter_context(patch.object(module, "EPOCH_LAST", self.profile.epoch_last))
                self._run()
        except Violation as violation:
            result.anomaly, result.text = violation.name, str(violation)
        except Exception as error:  # noqa: BLE001  # whatever breaks in a core is a find, and needs its seed
            result.anomaly = type(error).__name__
            result.text = f"{error}\n{traceback.format_exc(limit=-6)}"
        if result.anomaly is not None:
            result.story = f"{self.profile}\n{self.schedule.story()}"
        result.steps = self.schedule.steps
        result.counts = self.counts
        return result

    def _run(self) -> None:
        faults = Faults(self)
        self.until(self._unready, 20_000.0, "start")
        self.schedule.after(self.profile.fault_every_ms, faults.tick)
        share = {"both": 1.0, "safety": 2.0, "liveness": 0.4}[self.mode]
        stop = self.schedule.steps + int(self.profile.steps * share)
        while self.schedule.steps < stop and self.step():
            pass
        if self.mode != "safety":
            faults.heal()
            self.calm = self.quiet = True
            self.until(self.why, CALM_MS_MAX, "liveness")
        self.last_look()

    def step(self) -> bool:
        """One event and all checks."""
        if not self.schedule.step():
            return False
        self.invariants.check()
        return True

    def until(self, why: Callable[[], str], ms_max: float, name: str) -> None:
        """Step until nothing is missing; it is looked at every few steps."""
        end = self.schedule.now + ms_max
        while self.schedule.steps % 32 or why():
            if self.schedule.now > end or not self.step():
                raise Violation(name, f"not within {ms_max:.0f} ms: {why()}")

    def _unready(self) -> str:
        led = all(p.leader != NO_NODE for p in self.store.snapshot.partitions.values())
        return "" if led and self.counts["shards loaded"] >= self.profile.shards else "not everything is served"

    def why(self) -> str:
        """What is not over yet; empty: nothing is open anywhere, and every replica shows everything."""
        for writer in self.writers:
            if not writer.idle:
                return f"writer {writer.id} {writer.transactional_id} is not through"
        if self.tokens:
            return f"{self.tokens[0]} is not decided"
        hangs = self.invariants.what_hangs()
        if hangs:
            return hangs
        for id, partition in self.store.snapshot.partitions.items():
            if len(partition.isr) < REPLICAS or partition.leader == NO_NODE:
                return f"not all are in sync: {partition}"
            for broker in self.brokers.values():
                core = broker.replicas[id].core
                end = self.invariants.end[id]
                if not core.last_stable == core.high_watermark == end or (core.leading and core.log_end != end):
                    return f"broker {broker.id} shows {id.partition} up to {core.last_stable}, not {end}"
        return ""

    def last_look(self) -> None:
        """Everybody reads everything, and the checker judges."""
        for txn in self.transactions:
            if not txn.returned:
                self.returns(txn, None)
        process = self.new_process()
        for id in self.data:
            self.note(process, Type.INVOKE, F.ASSIGN, (self.key(id),))
            self.note(process, Type.OK, F.ASSIGN, (self.key(id),))
            points = self.invariants.points(id)
            if points:
                self.note_poll(process, id, points)
        if self.mode != "safety":
            self._read_all()
        verdict = check_history(self.history)
        self.counts["values acknowledged"] += verdict.sends_ok
        self.counts["values read"] += verdict.read
        if verdict.anomalies:
            raise Violation(next(iter(verdict.anomalies)), verdict.describe())
        self.invariants.units_whole()
        self.invariants.batches_once(self.checkpoints)
        self._check_transformed()

    def _read_all(self) -> None:
        """From every replica, from the beginning."""
        for broker in self.brokers.values():
            for id in self.data:
                position, before = int(broker.replicas[id].core.log_start), -1
                while position != before:
                    before = position
                    found = broker.read(id, position)
                    assert found is not None, "everybody knows everything"
                    position = found[0]
                if position != self.invariants.end[id]:
                    raise Violation("unseen", f"broker {broker.id} shows {id.partition} up to {position}")

    def _check_transformed(self) -> None:
        """What was consumed and what was made of it agree."""
        key = self.key(self.input)
        inputs = {key: [offset for offset, _ in self.invariants.points(self.input)]}
        made = [value for id in self.outputs for _, value in self.invariants.points(id) if value in self.sources]
        found = [p for k, p in self.invariants.positions.items() if k.partition == self.input]
        committed = {key: found[0].offset} if found else {}
        verdict = check_exactly_once(inputs, [(key, self.sources[value]) for value in made], committed)
        self.counts["values transformed"] += len(made)
        if verdict.anomalies and self.mode != "safety":
            raise Violation(next(iter(verdict.anomalies)), verdict.describe())
