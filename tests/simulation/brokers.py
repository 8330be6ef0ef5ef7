"""
Brokers: the partition cores on simulated disks, driven as the engine's storage loop, copiers and sessions drive them.

One step of the schedule is one thing that the loop does; what it writes is in the page cache at once and synced later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.simulation.controllers import Joining, _bytes
from tests.simulation.disk import Disk
from tests.simulation.store import Snapshot
from tests.simulation.writers import Fencing

from headrace_broker.core.copying import continue_log
from headrace_broker.core.leadership import Assignment, Proposal, as_it_is
from headrace_broker.core.local_log import Parted
from headrace_broker.core.partition import Partition
from headrace_broker.core.partition_events import (
    Answer,
    BatchArrived,
    BatchesCopied,
    Compacted,
    Deposed,
    Elected,
    Emptied,
    Event,
    Followed,
    FollowerFetched,
    FollowersChecked,
    ForgetBelow,
    GroupWritten,
    PeersChanged,
    ProposalRefused,
    ProposeIsr,
    Reassigned,
    Refuse,
    ShowUpTo,
    Truncated,
)
from headrace_broker.core.roles import choose_role, find_changed
from headrace_broker.core.rows import DropLog, LogWrite, PutBatch
from headrace_broker.engine.image_applier import restore
from headrace_broker.engine.rebuilding import find_batch_boundary, prepare_trim, rebuild
from headrace_common.core.batch import read_header
from headrace_common.core.errors import (
    CorruptBatch,
    HeadraceError,
    IneligibleReplica,
    NotLeader,
    OffsetOutOfRange,
)
from headrace_common.core.ids import NodeId, Offset, PartitionId
from headrace_common.core.image import Partition as PartitionMetadata
from headrace_controller.core import isr_changes

if TYPE_CHECKING:
    from tests.simulation.clients import Producer, Request
    from tests.simulation.world import World
    from tests.simulation.writers import Writer

TICK_MS = 150.0
LAG_MS_MAX = 900.0
SILENCE_MS_MAX = 600.0
ASK_AGAIN_MS = 250.0
STARVED_MS = 2_000.0
PROPOSE_AGAIN_MS = 250.0
STOP_MS_MAX = 3_000.0
BATCHES_PER_ANSWER = 4
MOVED = NotLeader("the partition moved; refresh metadata")


@dataclass
class Session:
    """What a leader keeps of one follower's last word on one partition."""

    number: int
    leader_epoch: int
    log_end: Offset
    wants: bool
    last_epoch: int = -1
    forgotten_to: Offset = Offset(0)
    told: tuple[int, int, int] = (-1, -1, -1)


@dataclass
class Copying:
    """A follower's dealings with one leader."""

    number: int
    leader: NodeId
    epoch: int
    heard_ms: float
    fed_ms: float
    """When batches came last, or it began."""
    wants: bool = True


@dataclass
class Replica:
    """One log and who is concerned with it."""

    core: Partition
    damaged: bool = False
    sessions: dict[NodeId, Session] = field(default_factory=dict)
    copying: Copying | None = None
    asked: tuple[Proposal, float, int] | None = None
    """The proposal under way, when it was sent last, and how often."""
    verified: tuple[int, int] = (-1, 0)
    """The invariants' note: truncations, and up to where the log is known to be what was committed."""
    missing: tuple[int, frozenset[int]] = (-1, frozenset())
    """The same: truncations, and the offsets of which nothing was left."""


@dataclass(frozen=True)
class Position:
    """A follower's word."""

    id: PartitionId
    broker: NodeId
    broker_epoch: int
    session: int
    leader_epoch: int
    last_epoch: int
    log_end: Offset
    written_end: Offset
    wants: bool
    forgotten_to: Offset


@dataclass(frozen=True)
class Copied:
    """A leader's answer."""

    id: PartitionId
    session: int
    leader_epoch: int
    high_watermark: Offset
    log_start: Offset
    batches: tuple[bytes, ...] = ()
    parted: Parted | None = None
    error: HeadraceError | None = None
    fencing_token: int = -1
    forgotten_to: Offset = Offset(0)


class Broker:
    """One broker process and its disk."""

    def __init__(self, id: NodeId, world: World) -> None:
        self.id = id
        self.up = True
        self.paused = False
        self.leaving = False
        self.incarnation = 1
        self.inbox: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self.disk = Disk(None)
        self.replicas: dict[PartitionId, Replica] = {}
        self.image: Snapshot = world.store.snapshot
        self.broker_epoch = -1
        """-1: this process is not registered yet."""
        self.stays_down = False
        self.wiped = False
        """The directory is new: no registration has told it its cluster."""
        self.hurt: dict[PartitionId, None] = {}
        """Damaged logs, which stay so until they were copied anew."""
        self.unsound: set[PartitionId] = set()
        """Logs that may lack what was committed: nobody may lead with them before they were copied anew."""
        self._world = world
        self._skew_ms = world.rng.random() * 1e6
        self._rate = 0.85 + 0.3 * world.rng.random()
        self._joining: Joining | None = None
        self._may_lead = False
        self._session_number = 0
        self._next_wake = 0

    # --- life ---------------------------------------------------------------------------------------------

    @property
    def clock(self) -> float:
        """This machine's monotonic clock: it has its own zero and its own speed."""
        return self._skew_ms + self._world.schedule.now * self._rate

    def tick(self) -> None:
        """What the engine does by the clock."""
        world = self._world
        world.schedule.after(TICK_MS * (0.9 + 0.2 * world.rng.random()), self.tick)
        if not self.up or self.paused:
            return
        if self.broker_epoch < 0:
            self._register()
        world.offer_image(self)
        now = world.schedule.now
        for id, replica in list(self.replicas.items()):
            if replica.core.leading is not None:
                if not replica.core.leading.at_rest:
                    self.handle(id, FollowersChecked(self.clock, LAG_MS_MAX, SILENCE_MS_MAX))
                self._propose_again(id, replica, now)
            elif replica.copying is not None and self._is_broken(replica.core, replica.copying, now):
                self._open(id, replica)

    def _is_broken(self, core: Partition, copying: Copying, now: float) -> bool:
        """Nothing comes, or only news and none of the batches: a request was swallowed, with which a stream breaks."""
        starved = core.copies.leader_high_watermark > core.log_end and now - copying.fed_ms > STARVED_MS
        return starved or now - copying.heard_ms > ASK_AGAIN_MS

    def start(self, previous_epoch: int | None) -> None:
        """A new process finds the disk as it is."""
        wiped, damaged = self.wiped, tuple(self.hurt)
        self.incarnation += 1
        self.up, self.paused, self.leaving = True, False, False
        self.inbox.clear()
        self.broker_epoch = -1
        self._may_lead = False
        self.image = self._world.first_image
        self.replicas = {}
        for found in self.disk.list_recovered():
            core = restore(self.disk, found, self._world.config_of(self.id), int(self.clock))
            self.replicas[core.id] = Replica(core, damaged=core.id in damaged)
        self._joining = Joining(self.id, self.incarnation, previous_epoch, damaged, wiped)
        ends = tuple(r.core.log_end for r in self.replicas.values())
        how = ("token", previous_epoch, "damaged", tuple(id.partition for id in damaged), "wiped", wiped)
        self._world.schedule.say("broker", self.id, "starts", self.incarnation, "ends", ends, *how)

    def crash(self, *, power: bool) -> None:
        """The process dies; with ``power`` what was not synced is lost as well."""
        self._world.schedule.say("broker", self.id, "loses power" if power else "is killed")
        self.up = False
        self.disk = self.disk.after_crash(self._world.rng if power else None)
        self.replicas = {}

    def stop_cleanly(self) -> None:
        """Begin a controlled shutdown."""
        self.leaving = True
        self._world.schedule.after(STOP_MS_MAX, self._stop_anyway, self.incarnation)

    def _stop_anyway(self, incarnation: int) -> None:
        """Nobody said in time that nothing depends on it."""
        if self.up and self.incarnation == incarnation and not self.stays_down:
            self.crash(power=False)
            self._world.restart_later(self, None)

    def may_stop(self) -> None:
        """The controller says that nothing depends on this broker: flush and go."""
        if not self.leaving or self.broker_epoch < 0:
            return
        self._world.schedule.say("broker", self.id, "stops cleanly")
        self.up = False
        self.disk.left_token(self.broker_epoch)
        self.disk = self.disk.after_crash(None)
        self.replicas = {}
        self._world.restart_later(self, self.broker_epoch)

    def go_on(self) -> None:
        """Continue after a pause, with what came meanwhile."""
        self.paused = False
        inbox, self.inbox = self.inbox, []
        for action, args in inbox:
            if self.up and not self.paused:
                action(*args)

    def _register(self) -> None:
        world, joining = self._world, self._joining
        assert joining is not None
        active = world.active_for(self)
        if active is None:
            return

        def reply(result: object) -> None:
            world.network.send(active.id, self, self._registered, joining, result)

        world.network.send(
            self.id, active, active.call, f"register {self.id}", lambda c, r: c.register(joining, r), reply
        )

    def _registered(self, joining: Joining, result: object) -> None:
        if joining is self._joining and isinstance(result, int) and result > self.broker_epoch:
            self._world.schedule.say("broker", self.id, "is registered with epoch", result)
            self.broker_epoch = result
            self.wiped = False
            self.take(self.image)

    def stale(self, epoch: int) -> None:
        """The controller knows another registration: the same process registers again, for what it has."""
        if self.broker_epoch == epoch:
            self._joining = Joining(self.id, self.incarnation, epoch, tuple(self.hurt), self.wiped)
            self.broker_epoch = -1
            self._may_lead = False

    # --- the image ----------------------------------------------------------------------------------------

    def take(self, image: Snapshot) -> None:
        """Do what the image says; an older one than the last changes nothing."""
        if image.revision < self.image.revision:
            return
        old, self.image = self.image, image
        node = image.nodes.get(self.id)
        may_lead = (
            node is not None
            and not node.fenced
            and node.incarnation == _bytes(self.incarnation)
            and self.broker_epoch >= 0
        )
        unlocked, self._may_lead = may_lead and not self._may_lead, may_lead
        for id in find_changed({} if unlocked else old.partitions, image.partitions):
            partition = image.partitions[id]
            if self.id in partition.replicas:
                self._host(id, partition)
            elif (replica := self.replicas.get(id)) is not None:
                self._set_aside(id, replica, image)
        if image.nodes is not old.nodes:
            peers = {n.key.id: n.epoch for n in image.nodes.values() if not n.fenced and not n.in_controlled_shutdown}
            for id in list(self.replicas):
                self.handle(id, PeersChanged(peers, self.clock))

    def _host(self, id: PartitionId, partition: PartitionMetadata) -> None:
        replica = self.replicas.get(id)
        if replica is None:
            config = self._world.config_of(self.id)
            core, writes = Partition.create(id, self.disk.new_log_id(), config, int(self.clock))
            self.disk.write(writes)
            replica = self.replicas[id] = Replica(core)
        assignment = Assignment(
            self.id,
            partition.leader_epoch,
            partition.partition_epoch,
            partition.replicas,
            partition.isr,
            self._world.rules_of(partition).min_isr,
        )
        core, sound = replica.core, not replica.damaged
        event = choose_role(core, partition, assignment, self.clock, sound=sound, may_lead=self._may_lead)
        if event is None:
            return
        if not isinstance(event, Reassigned):
            self._drop_sessions(replica)
            replica.copying = None
        self.handle(id, event)
        if isinstance(event, Followed):
            self._open(id, replica)
        elif isinstance(event, Elected) and core.leader_epoch == partition.leader_epoch:
            self._world.schedule.say(
                "broker", self.id, "leads", id.partition, "in epoch", core.leader_epoch, "from", core.log_end
            )
            self._world.invariants.elected(self, id)

    def _set_aside(self, id: PartitionId, replica: Replica, image: Snapshot) -> None:
        self._drop_sessions(replica)
        replica.copying = None
        if replica.core.known_epoch is not None:
            self.handle(id, Deposed(MOVED))
        if self.id not in image.removals.get(id, ()):
            return
        self._world.schedule.say("broker", self.id, "deletes", id.partition)
        self.disk.lower(replica.core.log, Offset(0))
        self.disk.write([DropLog(replica.core.log)])
        del self.replicas[id]
        self.unsound.discard(id)
        self.hurt.pop(id, None)
        active = self._world.active_for(self)
        if active is not None:
            me = self.id
            self._world.network.send(
                me, active, active.call, f"deleted {me} {id.partition}", lambda c, _r: c.deleted(me, id), _forget
            )

    def _drop_sessions(self, replica: Replica) -> None:
        replica.sessions = {}
        replica.asked = None

    def log_end(self, id: PartitionId) -> tuple[int, int] | None:
        """What is on disk, for the comparison of last known ELR members; None: no whole log."""
        replica = self.replicas.get(id)
        if replica is None or replica.damaged:
            return None
        core = replica.core
        return core.epochs.epoch_at(Offset(core.written_end - 1)) if core.written_end else -1, core.written_end

    # --- the storage loop ---------------------------------------------------------------------------------

    def handle(self, id: PartitionId, event: Event) -> None:
        """Let the core take the event in and do what it says."""
        replica = self.replicas[id]
        self._do(id, replica, replica.core.handle(event))

    def _do(self, id: PartitionId, replica: Replica, effects: list[object]) -> None:
        core, world = replica.core, self._world
        writes: list[LogWrite] = []
        appended = shown = False
        for effect in effects:
            kind = type(effect)
            if kind is Answer or kind is Refuse:
                self._reply(effect)
            elif kind is ShowUpTo:
                shown = True
            elif kind is ProposeIsr:
                self._propose(id, replica, effect.proposal)
            elif kind is ForgetBelow:
                shown = True
            else:
                appended = appended or kind is PutBatch
                writes.append(effect)
        if writes:
            self.disk.write(writes)
        if shown and core.leading is not None:
            world.invariants.committed(self, id)
        world.invariants.touched(self, id)
        if appended:
            if world.profile.flush_os:
                self._confirm(id, replica, core.log_end, core.truncations)
            elif replica.copying is not None:
                self._say(id, replica)
        if writes and not world.profile.flush_os:
            self._sync_soon()
        if shown:
            self._tell_all(id, replica)

    def rewrite(self, id: PartitionId, event: Compacted) -> None:
        """One step of a compaction: it writes, and no end moves."""
        replica = self.replicas[id]
        writes = replica.core.handle(event)
        self.disk.write([write for write in writes if isinstance(write, LogWrite)])
        self._world.invariants.rewritten(self, id)
        if not self._world.profile.flush_os:
            self._sync_soon()

    def _sync_soon(self) -> None:
        rng = self._world.rng
        if not self.disk.begin_sync():
            return
        ends = [(id, replica, r.log_end, r.truncations) for id, replica in self.replicas.items() if (r := replica.core)]
        delay = rng.random() * 3.0
        if rng.random() < 0.03:
            delay += rng.random() * 400.0
        self._world.schedule.after(delay, self._synced, self.disk, self.incarnation, ends)

    def _synced(self, disk: Disk, incarnation: int, ends: list[tuple[PartitionId, Replica, Offset, int]]) -> None:
        if self.disk is not disk or self.incarnation != incarnation or not self.up:
            return
        if self.paused:
            self.inbox.append((self._synced, (disk, incarnation, ends)))
            return
        disk.end_sync()
        for id, replica, end, truncations in ends:
            if self.replicas.get(id) is replica and replica.core.truncations == truncations:
                if end > replica.core.log_start:
                    disk.note_synced(replica.core.log, end, replica.core.epochs.epoch_at(Offset(end - 1)))
                if end > replica.core.written_end:
                    self._confirm(id, replica, end, truncations)
        self._sync_soon()

    def _confirm(self, id: PartitionId, replica: Replica, end: Offset, truncations: int) -> None:
        if replica.core.truncations != truncations or end <= replica.core.written_end:
            return
        self.handle(id, GroupWritten(end, self.clock))
        self._tell_all(id, replica)
        if replica.copying is not None:
            self._say(id, replica)

    def _reply(self, effect: Answer | Refuse) -> None:
        request: Request = effect.ref
        client = self._client(request)
        if isinstance(effect, Answer):
            self._world.network.send(self.id, client, client.answered, request, effect.base_offset, channel=self.id)
        else:
            self._world.invariants.refused(self, request, effect.error)
            self._world.network.send(self.id, client, client.refused, request, effect.error, channel=self.id)

    def _client(self, request: Request) -> Producer | Writer:
        world = self._world
        return world.producers.get(request.producer) or world.writers[request.producer]

    # --- clients ------------------------------------------------------------------------------------------

    def produce(self, request: Request) -> None:
        """A producer's batch."""
        replica = self.replicas.get(request.id)
        if replica is None or replica.damaged or self.broker_epoch < 0:
            client = self._client(request)
            self._world.network.send(self.id, client, client.refused, request, MOVED, channel=self.id)
            return
        now = int(self.clock)
        token, fence = (request.token, request.fence) if isinstance(request, Fencing) else (None, None)
        event = BatchArrived(
            read_header(request.batch), request.batch, request.acks, now, request.leader_epoch, request, token, fence
        )
        self.handle(request.id, event)

    def trim(self, id: PartitionId) -> None:
        """Delete some records that are committed, on an operator's word."""
        replica = self.replicas.get(id)
        if replica is None or replica.core.leading is None:
            return
        core = replica.core
        if core.high_watermark <= core.log_start:
            return
        offset = Offset(self._world.rng.randint(core.log_start, core.high_watermark))
        self._world.schedule.say("broker", self.id, "trims", id.partition, "to", offset)
        self.handle(id, prepare_trim(self.disk, core, offset, int(self.clock)))

    # --- the leader's end of copying ----------------------------------------------------------------------

    def position(self, said: Position) -> None:
        """A follower says how far it is."""
        replica = self.replicas.get(said.id)
        world = self._world
        answer = None
        if replica is None or replica.damaged:
            answer = Copied(said.id, said.session, said.leader_epoch, Offset(0), Offset(0), error=MOVED)
        else:
            core = replica.core
            error = core.check_epoch(said.leader_epoch)
            if error is not None:
                answer = Copied(said.id, said.session, said.leader_epoch, Offset(0), Offset(0), error=error)
            else:
                try:
                    parted = core.compare(said.last_epoch, said.log_end, said.forgotten_to)
                except OffsetOutOfRange as wrong:
                    answer = self._copied(said.id, core, said, error=wrong)
                else:
                    if parted is not None:
                        answer = self._copied(said.id, core, said, parted=parted)
        if answer is not None:
            if replica is not None:
                replica.sessions.pop(said.broker, None)
            follower = world.brokers[said.broker]
            world.network.send(self.id, follower, follower.copied, answer, channel=said.session)
            return
        assert replica is not None
        self._in_step(said, replica)

    def _in_step(self, said: Position, replica: Replica) -> None:
        session = replica.sessions.get(said.broker)
        if session is None or session.number < said.session:
            session = Session(said.session, said.leader_epoch, said.log_end, said.wants)
            replica.sessions[said.broker] = session
        if session.number == said.session:
            session.log_end = said.log_end
            session.last_epoch, session.forgotten_to = said.last_epoch, said.forgotten_to
            session.wants = session.wants or said.wants
        node = self.image.nodes.get(said.broker)
        may_join = (
            node is not None and not node.fenced and not node.in_controlled_shutdown and node.epoch == said.broker_epoch
        )
        event = FollowerFetched(said.broker, said.broker_epoch, said.log_end, said.written_end, may_join, self.clock)
        self.handle(said.id, event)
        self._tell(said.id, replica, said.broker, session)

    def _copied(
        self,
        id: PartitionId,
        core: Partition,
        said: Position,
        parted: Parted | None = None,
        error: HeadraceError | None = None,
    ) -> Copied:
        token = core.fences.token_below(core.log_start)
        start = core.high_watermark, core.log_start
        return Copied(id, said.session, said.leader_epoch, *start, parted=parted, error=error, fencing_token=token)

    def _tell_all(self, id: PartitionId, replica: Replica) -> None:
        for broker, session in replica.sessions.items():
            self._tell(id, replica, broker, session)

    def _tell(self, id: PartitionId, replica: Replica, broker: NodeId, session: Session) -> None:
        core, world = replica.core, self._world
        batches: tuple[bytes, ...] = ()
        if session.wants and core.written_end > session.log_end >= core.log_start:
            try:
                core.compare(session.last_epoch, session.log_end, session.forgotten_to)
            except OffsetOutOfRange:
                return  # deletions have gone meanwhile; its next stream is told so
            batches = self._read(core, session.log_end)
        now = core.high_watermark, core.log_start, core.forgotten_to
        if not batches and session.told == now:
            return
        if batches:
            session.wants = False
        session.told = now
        answer = Copied(id, session.number, session.leader_epoch, *now[:2], batches, forgotten_to=core.forgotten_to)
        world.network.send(self.id, world.brokers[broker], world.brokers[broker].copied, answer, channel=session.number)

    def _read(self, core: Partition, start: Offset) -> tuple[bytes, ...]:
        log = self.disk._live[core.log]
        holder = self.disk.floor(core.log, start)
        base = start if holder is None else holder.base_offset
        found = []
        for row in self.disk.index(core.log, base, core.written_end):
            if row.next_offset > core.written_end or len(found) == BATCHES_PER_ANSWER:
                break
            found.append(log.batches[row.base_offset])
        return tuple(continue_log(found, start))

    # --- the follower's end -------------------------------------------------------------------------------

    def _open(self, id: PartitionId, replica: Replica) -> None:
        """A new stream to the leader; what an older one still says is not heard."""
        following = replica.core.following
        times = self._world.schedule.now, self._world.schedule.now
        if following is None or self.broker_epoch < 0:
            replica.copying = None
            if following is not None:
                replica.copying = Copying(-1, following.leader, following.epoch, *times)
            return
        self._session_number += 1
        number = self.id * 1_000_000 + self.incarnation * 10_000 + self._session_number
        replica.copying = Copying(number, following.leader, following.epoch, *times)
        self._say(id, replica)

    def _say(self, id: PartitionId, replica: Replica) -> None:
        copying, core = replica.copying, replica.core
        if copying is None or copying.number < 0 or core.following != (copying.leader, copying.epoch):
            return
        last, end, written = core.epochs.latest, core.log_end, core.written_end
        if replica.damaged:
            last, end, written = -1, Offset(-1), Offset(-1)
        said = Position(
            id,
            self.id,
            self.broker_epoch,
            copying.number,
            copying.epoch,
            last,
            end,
            written,
            copying.wants,
            core.forgotten_to,
        )
        copying.wants = False
        leader = self._world.brokers[copying.leader]
        self._world.network.send(self.id, leader, leader.position, said, channel=copying.number)

    def copied(self, answer: Copied) -> None:
        """The leader says something."""
        replica = self.replicas.get(answer.id)
        if replica is None or replica.copying is None or replica.copying.number != answer.session:
            return
        copying, core, id = replica.copying, replica.core, answer.id
        if core.following != (copying.leader, copying.epoch) or answer.leader_epoch != copying.epoch:
            return
        copying.heard_ms = self._world.schedule.now
        if answer.error is not None and not isinstance(answer.error, OffsetOutOfRange):
            self._world.schedule.after(20 + 60 * self._world.rng.random(), self._ask_again, id, replica, copying)
            return
        if answer.error is not None or answer.parted is not None:
            self._reconcile(id, replica, answer)
            return
        batches = tuple((read_header(batch), batch) for batch in answer.batches)
        if batches:
            copying.wants, copying.fed_ms = True, self._world.schedule.now
        event = BatchesCopied(answer.leader_epoch, batches, answer.high_watermark, int(self.clock), answer.forgotten_to)
        try:
            self.handle(id, event)
        except CorruptBatch as error:
            self._world.schedule.say("broker", self.id, "refuses a batch", str(error))
            self._world.counts["batches refused"] += 1
            self._world.schedule.after(30.0, self._ask_again, id, replica, copying)
            return
        self._follow_trim(id, replica, answer.log_start)

    def _follow_trim(self, id: PartitionId, replica: Replica, log_start: Offset) -> None:
        core = replica.core
        start = Offset(min(log_start, core.high_watermark))
        if start > core.log_start:
            self.handle(id, prepare_trim(self.disk, core, start, int(self.clock)))

    def _ask_again(self, id: PartitionId, replica: Replica, copying: Copying) -> None:
        if self.up and not self.paused and self.replicas.get(id) is replica and replica.copying is copying:
            copying.wants = True
            self._say(id, replica)

    def _reconcile(self, id: PartitionId, replica: Replica, answer: Copied) -> None:
        core, world = replica.core, self._world
        point = None if answer.parted is None else core.truncation_point(*answer.parted)
        if point is not None:
            point = find_batch_boundary(self.disk, core, point)
        before = core.log_end
        self.disk.lower(core.log, Offset(0) if point is None else point)
        if point is None:
            self.handle(id, Emptied(answer.leader_epoch, answer.log_start, int(self.clock), answer.fencing_token))
            replica.damaged = False
            self.hurt.pop(id, None)
        else:
            self.handle(id, Truncated(answer.leader_epoch, point, rebuild(self.disk, core, point, int(self.clock))))
        world.counts["truncations"] += 1
        world.schedule.say("broker", self.id, "cuts", id.partition, "from", before, "to", core.log_end, answer.parted)
        assert replica.copying is not None
        replica.copying.wants = True
        self._say(id, replica)

    # --- ISR changes --------------------------------------------------------------------------------------

    def _propose(self, id: PartitionId, replica: Replica, proposal: Proposal) -> None:
        replica.asked = (proposal, self._world.schedule.now, 0)
        self._world.schedule.say(
            "broker", self.id, "proposes", id.partition, proposal.isr, "pe", proposal.partition_epoch
        )
        self._send_proposal(id, replica)

    def _propose_again(self, id: PartitionId, replica: Replica, now: float) -> None:
        leading, asked = replica.core.leading, replica.asked
        if leading is None or leading.pending is None:
            replica.asked = None
        elif asked is None or asked[0] != leading.pending:
            replica.asked = (leading.pending, now, 0)
            self._send_proposal(id, replica)
        elif now - asked[1] > PROPOSE_AGAIN_MS:
            replica.asked = (asked[0], now, asked[2] + 1)
            self._send_proposal(id, replica)

    def _send_proposal(self, id: PartitionId, replica: Replica) -> None:
        assert replica.asked is not None
        proposal, _, tries = replica.asked
        active = self._world.active_for(self)
        if active is None:
            return
        world, incarnation = self._world, self.incarnation
        wanted = isr_changes.Proposal(id, proposal.leader_epoch, proposal.partition_epoch, dict(proposal.isr))
        me, epoch = self.id, self.broker_epoch

        def reply(result: object) -> None:
            if self.incarnation == incarnation:
                world.network.send(active.id, self, self._proposal_answered, id, proposal, tries, result)

        name = f"alter {me} {id.partition} {proposal.partition_epoch} {tries}"
        world.network.send(me, active, active.call, name, lambda c, r: c.alter(me, epoch, wanted, r), reply)

    def resign(self, id: PartitionId) -> bool:
        """Ask once that another member of the ISR leads; what comes of it is seen in the image."""
        active, replica = self._world.active_for(self), self.replicas.get(id)
        leading = None if replica is None else replica.core.leading
        if active is None or leading is None or not self.up or self.paused:
            return False
        asked = as_it_is(leading.assignment, resign=True)
        wanted = isr_changes.Proposal(id, asked.leader_epoch, asked.partition_epoch, dict(asked.isr), resign=True)
        me, epoch = self.id, self.broker_epoch
        self._world.schedule.say("broker", me, "resigns", id.partition)
        name = f"resign {me} {id.partition} {asked.leader_epoch} {asked.partition_epoch}"
        self._world.network.send(me, active, active.call, name, lambda c, r: c.alter(me, epoch, wanted, r), _forget)
        return True

    def _proposal_answered(self, id: PartitionId, proposal: Proposal, tries: int, result: object) -> None:
        replica = self.replicas.get(id)
        if replica is None or replica.asked is None or replica.asked[0] != proposal or replica.asked[2] != tries:
            return  # the call was given up
        self._world.schedule.say(
            "broker", self.id, "hears of", id.partition, proposal.partition_epoch, type(result).__name__
        )
        if isinstance(result, IneligibleReplica):
            self.handle(id, ProposalRefused(proposal, self.clock))
        elif isinstance(result, PartitionMetadata) and self.image.revision >= 0:
            self._hear_of(id, result)

    def _hear_of(self, id: PartitionId, now: PartitionMetadata) -> None:
        """An answer is as good as an image that says the same."""
        core = self.replicas[id].core
        if now.leader != self.id or core.leader_epoch != now.leader_epoch or core.leading is None:
            return
        if now.partition_epoch > core.leading.assignment.partition_epoch:
            min_isr = self._world.rules_of(now).min_isr
            assignment = Assignment(self.id, now.leader_epoch, now.partition_epoch, now.replicas, now.isr, min_isr)
            self.handle(id, Reassigned(assignment, self.clock))


def _forget(_result: object) -> None:
    """Deletions are confirmed again when the image still asks for them."""
