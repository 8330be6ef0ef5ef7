"""
Work groups under everything at once: slow and broken streams, silent members, new processes, coordinators that die.

Honest clients over queues that hypothesis empties in any order, and an outbox that shows nothing before it is
committed. What must hold: no item has two owners, epochs of items never fall, stateful items leave a living member only
for one that has caught up, and once all answer every item that somebody can do is done.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace_common.core.errors import ErrorCode
from headrace_coordinator.core.effects import Answer, CloseStream, Effect, Persist, PersistGroup, Send, WorkStanding
from headrace_coordinator.core.events import (
    Event,
    GroupDeletionAsked,
    Loaded,
    StreamBroke,
    TopicsChanged,
    Woken,
    WorkHeartbeat,
)
from headrace_coordinator.core.records import GroupRecord, WorkRecord, read_group
from headrace_coordinator.core.settings import GroupSettings
from headrace_coordinator.core.shard import Shard
from headrace_coordinator.core.values import Declaration, Moment, WorkItem
from headrace_coordinator.core.work_group import WorkGroup

from .world import WALL, G

E = ErrorCode
OUT = {E.UNKNOWN_MEMBER_ID, E.FENCED_MEMBER_EPOCH, E.FENCED_INSTANCE_ID}
NAMES = ("a", "b", "c", "d")
LAG = 10


def declared(fingerprint: str, *ids: str) -> Declaration:
    """Items in capitals have state."""
    items = {id: WorkItem(id, 1 + (id in "xX"), stateful=id.isupper(), standbys=int(id.isupper())) for id in ids}
    return Declaration(fingerprint, None, items, LAG, 2)


DECLARATIONS = (declared("one", *"xyzXYZ"), declared("two", *"yzwYZW"))


@dataclass
class Client:
    """An honest member: it gives up before it takes, says so, and does only what it was given."""

    name: str
    process: int = 0
    stream: int | None = None
    epoch: int = 0
    joining: bool = False
    desired: dict[str, int] = field(default_factory=dict)
    """Items -> epochs, as it was told."""
    does: dict[str, int] = field(default_factory=dict)
    follows: frozenset[str] = frozenset()
    lags: dict[str, int] = field(default_factory=dict)
    unended: set[str] = field(default_factory=set)
    declaration: Declaration = DECLARATIONS[0]
    refused: dict[str, int] = field(default_factory=dict)
    new_lags: bool = False

    @property
    def member_id(self) -> str:
        return f"{self.name}{self.process}"

    def heartbeat(self, now: Moment, *, full: bool = False, report: bool = False) -> WorkHeartbeat:
        assert self.stream is not None
        joins = self.epoch == 0
        self.joining = joins
        refused, self.refused = self.refused, {}
        lags = self.lags if full or joins or self.new_lags else None
        self.new_lags = False
        return WorkHeartbeat(
            G,
            self.stream,
            now,
            self.member_id,
            self.epoch,
            instance_id=self.name,
            process_id=self.member_id,
            transactional_id=f"t-{self.member_id}",
            declaration=self.declaration if joins or full else None,
            owned=frozenset(self.does) if joins or full or report else None,
            lags=None if lags is None else dict(lags),
            refused=tuple(refused.items()),
            ended=tuple(sorted(self.unended)) if report else (),
            rebalance_timeout_ms=30_000,
        )

    def restart(self) -> None:
        """It is another process from now on, and another member."""
        self.process += 1
        self.does, self.desired, self.lags, self.unended = {}, {}, {}, set()
        self.follows = frozenset()
        self.epoch, self.joining, self.refused = 0, False, {}

    def hear(self, message: WorkStanding) -> bool:
        """Returns whether it has to join again."""
        if message.member_id != self.member_id:
            return False  # about what it was before
        if message.error is not None:
            assert message.error.code in OUT, message.error
            if self.joining:
                return False
            self.restart()
            return True
        if message.member_epoch < 0:
            return False
        self.joining = False
        assert message.member_epoch >= self.epoch
        self.epoch = message.member_epoch
        if message.share is not None:
            given = {one.id: one.epoch for one in message.share.active}
            for item in given.keys() & self.does.keys():
                assert given[item] >= self.does[item], "an epoch fell"
                self.does[item] = given[item]
            self.desired = given
            self.unended = {id for one in message.share.active for id in one.unended}
            assert f"t-{self.member_id}" not in self.unended
            self.follows = frozenset(message.share.standby) | frozenset(message.share.warm_up)
            self.lags = {item: self.lags.get(item, 99) for item in self.follows}
            self.new_lags = True
        return False


class Work(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.settings = GroupSettings()
        self.now_ms = 0.0
        self.log: dict[bytes, bytes | None] = {}
        self.outbox: deque[Effect] = deque()
        self.streams = 0
        self.up: dict[int, deque[WorkHeartbeat]] = {}
        self.down: dict[int, deque[WorkStanding]] = {}
        self.clients = {name: Client(name) for name in NAMES}
        self.checked: dict[bytes, bytes | None] = {}
        """The log that was looked at last."""
        self.owners: dict[str, tuple[str, int]] = {}
        """Who was given each item last, with which epoch."""
        self.refs = 0

    @property
    def at(self) -> Moment:
        return Moment(self.now_ms, WALL + int(self.now_ms))

    @property
    def group(self) -> WorkGroup | None:
        group = self.shard._groups.get(G)
        membership = None if group is None else group.membership
        assert membership is None or isinstance(membership, WorkGroup)
        return membership

    @initialize()
    def load(self) -> None:
        self.shard = Shard(0, self.settings)
        self.shard.replay(self.log.items())
        self.handle(TopicsChanged(self.at, {}, {}))
        self.handle(Loaded(self.at))

    # --- the engine -----------------------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        before = None if self.group is None else durable(self.group.record())
        targets, lags = self.targets(), self.lags()
        living = set() if self.group is None else set(self.group.members)
        effects = self.shard.handle(event)
        after = None if self.group is None else durable(self.group.record())
        if after != before and not isinstance(event, Loaded):
            assert isinstance(effects[0], PersistGroup), "what is durable comes before what is told"
        self.check_moves(targets, lags, living)
        self.outbox.extend(effects)
        self.release()

    def targets(self) -> dict[str, str]:
        members = {} if self.group is None else self.group.members
        return {item: name for name, m in members.items() for item in m.target}

    def lags(self) -> dict[str, dict[str, int]]:
        members = {} if self.group is None else self.group.members
        return {name: dict(m.lags) for name, m in members.items()}

    def check_moves(self, before: dict[str, str], lags: dict[str, dict[str, int]], living: set[str]) -> None:
        """Stateful items leave a living member that may go on with them only for one that has caught up."""
        if self.group is None:
            return
        now = self.lags()
        current = self.group.declarations.get(self.group.current)
        for item, owner in self.targets().items():
            had = before.get(item)
            if had in (None, owner) or not item.isupper() or had not in self.group.members:
                continue
            known = self.group.declarations[self.group.members[had].declaration].items
            if current is not None and item in known and item in current.items:
                assert now[owner].get(item, lags.get(owner, {}).get(item, 99)) <= LAG, (item, had, owner)

    def release(self) -> None:
        while self.outbox and not isinstance(self.outbox[0], Persist | PersistGroup):
            match self.outbox.popleft():
                case Send(stream=stream, message=WorkStanding() as message) if stream in self.down:
                    self.down[stream].append(message)
                case CloseStream(stream=stream):
                    self.down.pop(stream, None)
                    self.up.pop(stream, None)
                case Answer():
                    pass

    @rule(everything=st.booleans())
    def commit_the_log(self, everything: bool) -> None:
        while self.outbox:
            match self.outbox.popleft():
                case Persist(rows=rows):
                    self.log.update(rows)
                case PersistGroup(group_id=group_id):
                    self.log.update(self.shard.group_rows(group_id))
                case other:
                    self.outbox.appendleft(other)
            self.release()
            if not everything:
                return

    @rule(rows=st.integers(0, 3))
    def coordinator_dies(self, rows: int) -> None:
        """An append that was under way may be there, whole or its beginning."""
        if self.outbox and isinstance(self.outbox[0], PersistGroup):
            self.log.update(self.shard.group_rows(self.outbox[0].group_id)[:rows])
        self.outbox.clear()
        self.up.clear()
        self.down.clear()
        for client in self.clients.values():
            client.stream = None
        self.load()

    @rule(ms=st.sampled_from([100, 2_999, 3_001, 20_000, 45_001, 800_000_000]))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        self.handle(Woken(self.at))

    @rule()
    def somebody_deletes_the_group(self) -> None:
        self.refs += 1
        self.handle(GroupDeletionAsked(G, self.refs, self.at))

    @rule(count=st.integers(1, 6), who=st.sets(st.sampled_from(NAMES), min_size=1))
    def some_do_their_work(self, count: int, who: set[str]) -> None:
        """So that there is something to lose."""
        for _ in range(count):
            self.round(who)

    # --- the clients ----------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES))
    def connect(self, name: str) -> None:
        """Also over a stream that is still there: the old one is given up, and what it carries may still arrive."""
        client = self.clients[name]
        if client.stream is not None:
            self.down.pop(client.stream, None)
        self.streams += 1
        client.stream = self.streams
        self.up[self.streams], self.down[self.streams] = deque(), deque()
        client.joining = False
        self.up[self.streams].append(client.heartbeat(self.at, full=True))

    @rule(name=st.sampled_from(NAMES), two=st.booleans())
    def process_dies(self, name: str, two: bool) -> None:
        """Its successor may declare something else."""
        self.clients[name].restart()
        self.clients[name].declaration = DECLARATIONS[two]
        self.connect(name)

    @rule(stream=st.integers(1, 30))
    def stream_breaks(self, stream: int) -> None:
        """The coordinator notices; whoever had it does not yet."""
        if stream in self.up:
            del self.up[stream]
            self.down.pop(stream, None)
            self.handle(StreamBroke(G, stream, self.at))

    @rule(
        name=st.sampled_from(NAMES),
        what=st.sampled_from(["beat", "revoke", "take", "leave", "declare", "catch up", "is refused"]),
    )
    def act(self, name: str, what: str) -> None:
        client = self.clients[name]
        queue = self.up.get(client.stream or 0)
        if client.epoch == 0 or queue is None:
            return
        match what:
            case "beat":
                queue.append(client.heartbeat(self.at))
            case "revoke" if client.does.keys() - client.desired.keys():
                client.does = {item: epoch for item, epoch in client.does.items() if item in client.desired}
                queue.append(client.heartbeat(self.at, report=True))
            case "take" if client.does.keys() < client.desired.keys():
                client.does = dict(client.desired)
                queue.append(client.heartbeat(self.at, report=True))
            case "declare":
                client.declaration = DECLARATIONS[client.declaration is DECLARATIONS[0]]
                queue.append(client.heartbeat(self.at, full=True))
            case "catch up" if client.lags:
                client.lags = {item: lag // 10 for item, lag in client.lags.items()}
                client.new_lags = True
                queue.append(client.heartbeat(self.at))
            case "is refused" if client.does:
                item, epoch = min(client.does.items())
                client.refused = {item: epoch + 1_000_000}
                queue.append(client.heartbeat(self.at))
            case "leave":
                queue.append(WorkHeartbeat(G, client.stream or 0, self.at, client.member_id, -1))
                client.restart()
                client.stream = None

    @rule(stream=st.integers(1, 30), data=st.data())
    def request_arrives(self, stream: int, data: st.DataObject) -> None:
        if not self.up.get(stream):
            stream = data.draw(st.sampled_from(sorted(self.up))) if self.up else 0
        if self.up.get(stream):
            self.request_of(stream)

    def request_of(self, stream: int) -> None:
        self.handle(replace(self.up[stream].popleft(), at=self.at))

    @rule(name=st.sampled_from(NAMES))
    def answer_arrives(self, name: str) -> None:
        client = self.clients[name]
        queue = self.down.get(client.stream or 0)
        if queue and client.hear(queue.popleft()):
            self.connect(name)

    # --- what must hold -------------------------------------------------------------------------------------

    @invariant()
    def no_item_is_done_by_two_members(self) -> None:
        if self.group is None:
            return
        doing: dict[str, str] = {}
        for client in self.clients.values():
            if client.member_id in self.group.members:
                for item in client.does:
                    other = doing.setdefault(item, client.name)
                    assert other == client.name, f"{other} and {client.name} do {item}"

    @invariant()
    def what_members_may_hold_is_disjoint(self) -> None:
        if self.group is None:
            return
        seen: set[str] = set()
        for member in self.group.members.values():
            assert not member.assigned & member.revoking
            assert not member.unconfirmed - member.assigned
            assert not seen & member.held
            assert member.held <= member.epochs.keys()
            seen |= member.held
        assert seen == set(self.group._ownership._owner)

    @invariant()
    def epochs_never_fall(self) -> None:
        """In the log: of who had the item before, in whichever group of this name."""
        if self.log != self.checked:
            self.checked = dict(self.log)
            for item, (member_id, epoch) in self.read_owners().items():
                before = self.owners.get(item, ("", 0))
                assert epoch > before[1] or (member_id, epoch) == before, (item, member_id, epoch, before)
                self.owners[item] = member_id, epoch
        for client in self.clients.values():
            for item, epoch in client.does.items():
                assert epoch <= self.owners[item][1]

    def read_owners(self) -> dict[str, tuple[str, int]]:
        """Who has what, by the log alone."""
        shard = Shard(0, self.settings)
        shard.replay(self.log.items())
        shard.handle(TopicsChanged(self.at, {}, {}))
        shard.handle(Loaded(self.at))
        group = shard._groups.get(G)
        if group is None:
            return {}
        assert isinstance(group.membership, WorkGroup)
        return {item: (m.member_id, m.epochs[item]) for m in group.membership.members.values() for item in m.held}

    @invariant()
    def the_records_are_the_state(self) -> None:
        if self.outbox or self.group is None or not self.shard._groups[G].recorded:
            return
        key, value = self.shard.group_record(G)
        assert value is not None
        assert self.log.get(key) is not None
        assert durable(read_group(self.log[key] or b"")) == durable(read_group(value))

    def teardown(self) -> None:
        """Everybody answers from now on: what somebody can do is done, and what was left open is ended."""
        if not hasattr(self, "shard"):
            return
        for _ in range(60):
            self.round(set(NAMES))
        group = self.group
        assert group is not None
        assert len(group.members) == len(NAMES)
        current = group.declarations[group.current]
        can = {
            item
            for m in group.members.values()
            for item in group.declarations[m.declaration].items.keys() & current.items.keys()
        }
        done = [item for client in self.clients.values() for item in client.does]
        assert sorted(done) == sorted(can)
        for client in self.clients.values():
            member = group.members[client.member_id]
            assert client.epoch == member.epoch == group.group_epoch
            assert client.does.keys() == member.target
        assert not group.awaited
        assert can.isdisjoint(item for items in group.left.values() for item in items)

    def round(self, who: set[str]) -> None:
        for name in sorted(who):
            client = self.clients[name]
            if client.stream is None or client.stream not in self.up:
                self.connect(name)
            elif not client.joining:
                for what in ("revoke", "take", "catch up", "beat"):
                    self.act(name, what)
                if client.unended:
                    self.up[client.stream].append(client.heartbeat(self.at, report=True))
        for stream in sorted(self.clients[name].stream or 0 for name in who):
            while self.up.get(stream):
                self.request_of(stream)
        self.commit_the_log(everything=True)
        for name in sorted(who):
            while self.down.get(self.clients[name].stream or 0):
                self.answer_arrives(name)
            self.no_item_is_done_by_two_members()
        self.epochs_never_fall()
        self.now_ms += 500
        self.handle(Woken(self.at))


def durable(record: GroupRecord) -> WorkRecord:
    """The record without what is only remembered for convenience."""
    assert isinstance(record, WorkRecord)
    return replace(record, members=tuple(replace(m, previous_epoch=0) for m in record.members))


TestWork = Work.TestCase
TestWork.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
