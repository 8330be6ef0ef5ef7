"""
Transactions in a real cluster under faults, from one seed: who writes, who reads, what goes wrong, and what is judged.

The invariants are looked at all the time (``watch``, ``truth``); here is the life of a world, and its last look.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from random import Random
from unittest.mock import patch

from tests.lab.kind import Outcome
from tests.lab.opening import measure, open_cluster
from tests.lab.transactions.clients import READS, Decider, Open, PlainSender, Reader, Transformer, Writer
from tests.lab.transactions.echoes import Echoes
from tests.lab.transactions.faults import SYNC_MS, Faults
from tests.lab.transactions.owners import Checkpoints, Driver, Owner
from tests.lab.transactions.probes import FollowerReader, Onlooker
from tests.lab.transactions.processes import Process
from tests.lab.transactions.profile import Profile
from tests.lab.transactions.truth import Truth, Txn
from tests.lab.transactions.watch import DATA, Watch

from headrace import aio
from headrace.finding import ClusterAddress
from headrace.transactions import PreparedTransaction
from headrace_broker.engine import replication
from headrace_common.core.ids import PartitionId
from headrace_coordinator.adapters import log_batches
from headrace_coordinator.core.transactions import owner, producers, transaction
from headrace_coordinator.core.transactions.values import Producer
from headrace_coordinator.engine import producer_ids, transactions
from headrace_lab.cluster import Cluster
from headrace_verify.checker_history import F, Micro, Operation, Polled, Type
from headrace_verify.checker_txn import check_exactly_once, check_history

STEPS = 4_000
SPARES = 3
"""Producer ids that a coordinator has at hand: each is a call."""
CHECKPOINT_MS = 50.0
"""How often brokers store their high watermarks, so that a restart finds them between a record and its marker."""
START_S_MAX = 10.0
"""Virtual seconds in which every writer begins its first transaction; then the first fault comes."""
LOOK_S = 0.1
"""How often it is looked whether something was found."""
CALM_S_MAX = 120.0
"""Virtual seconds after the last fault in which everything has to be over."""
TOLD_MAX = 300


class World:
    """Of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.profile = Profile.drawn(self.random, STEPS)
        self.problems: list[str] = []
        self.story: list[str] = []
        self.counts: Counter[str] = Counter()
        self.truth = Truth(self.wrong)
        self.truth.forgetful = self.profile.forgetful
        self.watch = Watch(self.truth, self.counts)
        self.quiet = False
        """Nobody begins anything new."""
        self.history: list[Operation] = []
        self.tokens: dict[PreparedTransaction, None] = {}
        """Prepared and not decided, as far as is known."""
        self.open_of: dict[PreparedTransaction, Open] = {}
        self.opened: list[Open] = []
        self.units: list[list[Open]] = []
        self.checkpoints = Checkpoints()
        self.sources: dict[int, int] = {}
        """Value → the offset of what it was made of."""
        self.processes: list[Process] = []
        self.cluster: Cluster
        self.admin: aio.AdminClient
        self._value = self._process = 0
        self._returned: set[int] = set()

    # --- what the others ask ------------------------------------------------------------------------------------

    @property
    def servers(self) -> ClusterAddress:
        return self.cluster.address

    def wrong(self, text: str) -> None:
        """Something does not hold."""
        self.problems.append(text)

    def tell(self, what: str) -> None:
        """For the story."""
        self.story.append(f"{self.cluster.lab.loop.time():.3f} {what}")
        del self.story[:-TOLD_MAX]

    def wall_ms(self) -> int:
        """As clocks show it."""
        return int(self.cluster.lab.machine.time() * 1_000)

    def next_value(self, txn: Txn | None = None) -> int:
        """A value that nobody sent yet."""
        self._value += 1
        if txn is not None:
            self.truth.txn_of[self._value] = txn
        return self._value

    def new_process(self) -> int:
        """For the history."""
        self._process += 1
        return self._process

    def kill(self, process: Process) -> None:
        """It dies, and is started again some time later."""
        process.kill()
        loop = self.cluster.lab.loop
        pause = 0.005 + self.random.random() * self.random.choice((0.05, 1.0))
        loop.call_later(pause, self._start_again, process, context=loop.test.context)

    def _start_again(self, process: Process) -> None:
        if not process.lives and process in self.processes:
            process.start()

    def stall_answers(self, role: str) -> None:
        """What nodes of a role answer each other is held up, on each connection as long as it comes."""
        network = self.cluster.lab.network
        for connection in list(network.connections):
            if connection.client.name.startswith(role) and connection.server.node.name.startswith(role):
                connection.stall_answers(self.random.choice((0.3, 1.0)) * (0.5 + self.random.random()))

    def read_by_all(self, number: int) -> int:
        """Up to where nobody reads any more, whatever is aborted."""
        positions = [one.position for one in self.processes if isinstance(one, Reader) and one.number == number]
        if number == 0 and self.profile.transformers:
            found = [p.offset for key, p in self.truth.positions.items() if key.partition.partition == 0]
            positions.append(max(found, default=0))
        return min(positions)

    def was_read(self, where: str, number: int, positions: tuple[int, int], points: list[tuple[int, int]]) -> None:
        """A reader of committed records got these between two positions."""
        topic_id = self.watch.topic_id(DATA)
        assert topic_id is not None, "it was read from"
        self.truth.was_read(where, PartitionId(topic_id, number), *positions, points)

    # --- the history --------------------------------------------------------------------------------------------

    def note(self, process: int, type_: Type, f: F, value: tuple[Micro, ...] | tuple[str, ...] = ()) -> None:
        """One entry."""
        now_ns = int(self.cluster.lab.loop.time() * 1e9)
        self.history.append(Operation(len(self.history), process, type_, f, value, now_ns))

    def note_poll(self, process: int, number: int, points: list[tuple[int, int]]) -> None:
        """A whole poll."""
        self.note(process, Type.INVOKE, F.POLL)
        self.note(process, Type.OK, F.POLL, (Polled({str(number): tuple(points)}),))

    def begin(self, transactional_id: str, polled: tuple[Polled, ...] = ()) -> Open:
        """Somebody begins a transaction."""
        txn = Txn(len(self.truth.transactions), transactional_id)
        self.truth.transactions.append(txn)
        self.note(1_000_000 + txn.number, Type.INVOKE, F.TXN)
        self.tell(f"{transactional_id} begins {txn.number}")
        self.opened.append(Open(txn, polled))
        return self.opened[-1]

    def prepared(self, one: Open, token: PreparedTransaction) -> None:
        """A transaction can be decided by its token from now on."""
        self.tokens[token] = None
        self.open_of[token] = one
        self.truth.is_under(one.txn, Producer(token.producer_id, token.producer_epoch), "its token")

    def returns(self, one: Open, verdict: bool | None) -> None:
        """Somebody was told what became of a transaction, or gave up."""
        txn = one.txn
        if verdict is not None and txn.verdict is (not verdict):
            self.wrong(f"verdict-changed: transaction {txn.number}: first {txn.verdict}")
        if verdict is not None and txn.producer is not None:
            self.truth.must_be(txn.producer, verdict, f"the answer to the writer of transaction {txn.number}")
        txn.verdict = txn.verdict if verdict is None else verdict
        self.tell(f"transaction {txn.number} of {txn.transactional_id} is {verdict}")
        if txn.number in self._returned:
            return
        self._returned.add(txn.number)
        self.counts[f"transactions that ended {verdict}"] += 1
        type_ = Type.INFO if verdict is None else Type.OK if verdict else Type.FAIL
        self.note(1_000_000 + txn.number, type_, F.TXN, one.micros())

    # --- running ------------------------------------------------------------------------------------------------

    async def run(self) -> Outcome:
        """The whole life: faults, healing, the last look; it ends early where something does not hold."""
        with ExitStack() as patches:
            patches.enter_context(self.watch.watching())
            patches.enter_context(patch.object(producer_ids, "SPARES", SPARES))
            patches.enter_context(patch.object(replication, "CHECKPOINT_MS", CHECKPOINT_MS))
            patches.enter_context(patch.object(log_batches, "RECORDS_PER_BATCH", self.profile.rows_max))
            for module in (transaction, producers, owner, transactions):
                patches.enter_context(patch.object(module, "EPOCH_LAST", self.profile.epoch_last))
            profile = self.profile
            async with open_cluster(
                self.seed, profile.configs(), brokers=profile.brokers, coordinators=profile.coordinators
            ) as self.cluster:
                life = asyncio.create_task(self._live())
                while not life.done() and not self.problems:
                    await asyncio.wait([life], timeout=LOOK_S)
                if life.done():
                    life.result()
                steps, seconds = measure(self.cluster)
        return Outcome(self.problems[:10], [str(self.profile), *self.story], steps, seconds, self.counts)

    async def _live(self) -> None:
        echoes = Echoes(self.cluster.lab.network, self.random, self.profile.doubled)
        faults = Faults(self)
        with echoes.heard():
            async with self._opened():
                self._start()
                await self._begun()
                befalling = asyncio.create_task(faults.run())
                begin = measure(self.cluster)[0]
                while measure(self.cluster)[0] < begin + self.profile.steps:
                    if befalling.done():
                        befalling.result()
                    await asyncio.sleep(LOOK_S)
                befalling.cancel()
                faults.heal()
                self.quiet, echoes.share = True, 0.0
                self.counts["requests heard twice"] += echoes.count
                await self._calm()
                await self._last_look()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[None]:
        async with self.cluster.admin(default_api_timeout_ms=5_000) as self.admin:
            await self.admin.alter_configs(self.profile.settings())
            for broker in range(1, self.profile.brokers + 1):
                self.cluster.slow_disk(broker, ms=SYNC_MS)
            least = str(min(2, self.profile.brokers))
            await self.cluster.create_topic(DATA, self.profile.partitions, min_insync_replicas=least)
            yield

    def _start(self) -> None:
        profile = self.profile
        found: list[Process] = [Writer(self, f"writer-{n}", f"writer{n}") for n in range(profile.writers)]
        found += [Transformer(self, f"transformer-{n}", f"transformer{n}") for n in range(profile.transformers)]
        found += [(Driver if profile.drivers else Owner)(self, f"owner-{n}", "owner") for n in range(profile.owners)]
        found += [Decider(self, "decider")] if profile.prepares else []
        found += [PlainSender(self, f"plain-{n}") for n in range(profile.plain)]
        found += [Reader(self, f"reader-{n}", n) for n in range(profile.partitions)]
        found += [FollowerReader(self, "follower-reader"), Onlooker(self, "onlooker")]
        self.processes += found
        for process in found:
            process.start()

    async def _begun(self) -> None:
        """Wait until every writer has begun something."""
        loop = asyncio.get_running_loop()
        while loop.time() < START_S_MAX and len({one.txn.transactional_id for one in self.opened}) < self.profile.busy:
            await asyncio.sleep(LOOK_S)

    async def _calm(self) -> None:
        """Until nothing is open anywhere, and every replica shows everything."""
        loop = asyncio.get_running_loop()
        end = loop.time() + CALM_S_MAX
        while why := self._describe_unfinished():
            if loop.time() > end:
                self.wrong(f"liveness: not within {CALM_S_MAX:.0f} s: {why}")
                return
            await asyncio.sleep(LOOK_S)

    def _describe_unfinished(self) -> str:
        """What is not over yet; empty: everything is."""
        for process in self.processes:
            if isinstance(process, Writer) and not process.idle:
                return f"{process.name} is not through"
        if self.tokens:
            return f"{next(iter(self.tokens))} is not decided"
        hangs = self.truth.describe_hanging()
        if hangs:
            return hangs
        for id in self.watch.ids_of(DATA):
            end = self.truth.shown[id].end
            for core in self.watch.cores(id):
                if not core.last_stable == core.high_watermark == core.log_end == end:
                    return f"{id.partition} is shown up to {core.last_stable} of {core.log_end}, not {end}"
        return ""

    async def _last_look(self) -> None:
        """Everybody reads everything, and the checker judges."""
        for one in self.opened:
            self.returns(one, None)
        process = self.new_process()
        ends = {id.partition: self.truth.shown[id] for id in self.watch.ids_of(DATA)}
        async with aio.Consumer(bootstrap_servers=self.servers, **READS) as consumer:
            await consumer.assign([(DATA, number) for number in ends])
            records = await consumer.read_to_end(timeout_ms=60_000)
        for number in ends:
            key = str(number)
            self.note(process, Type.INVOKE, F.ASSIGN, (key,))
            self.note(process, Type.OK, F.ASSIGN, (key,))
            found = [(record.offset, int(record.value or b"")) for record in records if record.partition == number]
            start = max((core.log_start for core in self.watch.cores(self._id(number))), default=0)
            wanted = self.truth.points(self._id(number))
            if [point for point in wanted if point[0] >= start] != [point for point in found if point[0] >= start]:
                self.wrong(f"unseen: {number} has {found} from {start}, committed are {wanted}")
            if wanted:
                self.note_poll(process, number, wanted)
        verdict = check_history(self.history)
        self.counts["values acknowledged"] += verdict.sends_ok
        self.counts["values read"] += verdict.read
        if verdict.anomalies:
            self.wrong(f"{next(iter(verdict.anomalies))}: {verdict.describe()}")
        self._check_units()
        self.checkpoints.check(self.truth)
        self._check_transformed()

    def _id(self, number: int) -> PartitionId:
        topic_id = self.watch.topic_id(DATA)
        assert topic_id is not None, "the topic is there"
        return PartitionId(topic_id, number)

    def _check_units(self) -> None:
        """All transactions of a unit have one verdict; who has none was never decided."""
        for listed in self.units:
            verdicts = {one.txn.number: self.truth.verdicts.get(one.txn.producer) for one in listed}  # type: ignore[arg-type]  # None has none
            if {True, False} <= set(verdicts.values()):
                self.wrong(f"torn-unit: {verdicts}")

    def _check_transformed(self) -> None:
        """What was consumed and what was made of it agree."""
        if not self.profile.transformers:
            return
        inputs = {"0": [offset for offset, _ in self.truth.points(self._id(0))]}
        outputs = [self._id(number) for number in range(1, self.profile.partitions)]
        made = [value for id in outputs for _, value in self.truth.points(id) if value in self.sources]
        found = [("0", one.offset) for key, one in self.truth.positions.items() if key.partition.partition == 0]
        verdict = check_exactly_once(inputs, [("0", self.sources[value]) for value in made], dict(found))
        self.counts["values transformed"] += len(made)
        if verdict.anomalies:
            self.wrong(f"{next(iter(verdict.anomalies))}: {verdict.describe()}")


async def play(seed: int) -> Outcome:
    """One run."""
    return await World(seed).run()
