"""
A shard to talk with: events go in by method, what comes out is written as text, so that tests read as dialogues.

``took 100`` a producer id is used up · ``write …`` one append's rows · ``REF: …`` an answer · ``tell …`` markers ·
``over …`` a transaction is complete. ``100@1`` is producer id 100 at epoch 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import PartitionId, TopicId
from headrace_coordinator.core.effects import Row
from headrace_coordinator.core.room import Room
from headrace_coordinator.core.transactions.effects import (
    Answer,
    Completed,
    DecideResult,
    Effect,
    InitResult,
    OwnerResult,
    Persist,
    Result,
    TookProducerId,
    UnitResult,
    WriteMarkers,
)
from headrace_coordinator.core.transactions.events import (
    AbortAsked,
    DecideAsked,
    DescribeAsked,
    EndAsked,
    EnrolAsked,
    Event,
    GaveUp,
    InitAsked,
    Loaded,
    MarkersWritten,
    OwnerInitAsked,
    PrepareAsked,
    UnitAsked,
    Woken,
)
from headrace_coordinator.core.transactions.owner import FREE, NONCE
from headrace_coordinator.core.transactions.records import Kind, read_key, read_owner, read_transaction
from headrace_coordinator.core.transactions.settings import TransactionSettings
from headrace_coordinator.core.transactions.shard import TransactionShard
from headrace_coordinator.core.transactions.values import Producer, Token
from headrace_coordinator.core.values import Moment

TOPIC = TopicId(b"t" * 16)
WALL = 1_700_000_000_000
MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def parts(*numbers: int) -> list[PartitionId]:
    """Partitions of one topic."""
    return [PartitionId(TOPIC, number) for number in numbers]


class World:
    """One shard and its clock. ``rows`` has what it persisted, as a log with the last value of each key would."""

    def __init__(
        self, rows: Iterable[Row] = (), *, now_ms: float = 0.0, room: Room | None = None, **settings: int
    ) -> None:
        self.settings = TransactionSettings(**settings)
        self.now_ms = now_ms
        self.spare = 100
        self.nonce = 1
        self.rows = dict(rows)
        self.effects: list[Effect] = []
        self.shard = TransactionShard(3, self.settings, room)
        self.shard.replay(self.rows.items())
        self.started = self.tell(Loaded(self.at))

    @property
    def at(self) -> Moment:
        return Moment(self.now_ms, WALL + int(self.now_ms))

    def restarted(self, rows: Iterable[Row] | None = None, after_ms: float = 0.0) -> World:
        """Another coordinator that has read ``rows``, or all that was persisted."""
        world = World(self.rows.items() if rows is None else rows, now_ms=self.now_ms + after_ms)
        world.spare, world.nonce = self.spare, self.nonce
        return world

    def tell(self, event: Event) -> list[str]:
        """What the shard makes of ``event``."""
        self.effects = self.shard.handle(event)
        for effect in self.effects:
            if isinstance(effect, Persist):
                self.rows.update(effect.rows)
            elif isinstance(effect, TookProducerId):
                assert effect.producer_id == self.spare, "the spare one is taken"
                self.spare += 1
        return [text(effect) for effect in self.effects]

    # --- events -----------------------------------------------------------------------------------------------

    def init(
        self, name: str = "t", ref: str = "init", *, timeout_ms: int = MINUTE, owner: int | None = None
    ) -> list[str]:
        return self.tell(InitAsked(name, ref, self.at, timeout_ms, owner, self.spare))

    def enrol(self, producer: tuple[int, int], *numbers: int, name: str = "t", ref: str = "enrol") -> list[str]:
        return self.tell(EnrolAsked(name, ref, self.at, *producer, parts(*numbers)))

    def end(self, producer: tuple[int, int], commit: bool, *, name: str = "t", ref: str = "end") -> list[str]:
        return self.tell(EndAsked(name, ref, self.at, *producer, commit, self.spare))

    def commit(self, producer: tuple[int, int], *, name: str = "t", ref: str = "commit") -> list[str]:
        return self.end(producer, True, name=name, ref=ref)

    def abort(self, producer: tuple[int, int], *, name: str = "t", ref: str = "abort") -> list[str]:
        return self.end(producer, False, name=name, ref=ref)

    def prepare(
        self, producer: tuple[int, int], *, name: str = "t", ref: str = "prepare", owner: int | None = None
    ) -> list[str]:
        """Nonces are 1, 2, 3 and so on."""
        self.nonce += 1
        return self.tell(PrepareAsked(name, ref, self.at, *producer, owner, self.nonce - 1))

    def decide(self, token: Token, commit: bool, ref: str = "decide") -> list[str]:
        return self.tell(DecideAsked(token, ref, self.at, commit, self.spare))

    def init_owner(self, owner: str = "o", ref: str = "owner", *, claim: int | None = None) -> list[str]:
        return self.tell(OwnerInitAsked(owner, ref, self.at, claim))

    def unit(
        self, epoch: int, sequence: int, tokens: Sequence[Token], owner: str = "o", ref: str = "unit"
    ) -> list[str]:
        return self.tell(UnitAsked(owner, ref, self.at, epoch, sequence, tokens))

    def refusal(self) -> str:
        """What the last event was refused with."""
        (answer,) = self.effects
        assert isinstance(answer, Answer)
        return str(answer.result)

    def kill(self, name: str = "t", producer: int | None = None, epoch: int | None = None) -> list[str]:
        return self.tell(AbortAsked(name, "kill", self.at, producer, epoch))

    def describe(self, name: str = "t") -> Result | HeadraceError:
        (answer,) = self.shard.handle(DescribeAsked(name, "describe"))
        assert isinstance(answer, Answer)
        return answer.result

    def marked(self, producer: tuple[int, int], *numbers: int, name: str = "t") -> list[str]:
        return self.tell(MarkersWritten(name, self.at, *producer, parts(*numbers)))

    def gave_up(self, ref: str, name: str = "t") -> list[str]:
        return self.tell(GaveUp(name, ref))

    def pass_ms(self, ms: float) -> list[str]:
        """Time passes; the shard is woken whenever it wants to be, as often as it is due."""
        until = self.now_ms + ms
        seen: list[str] = []
        while (due_ms := self.shard.next_wake_ms()) is not None and due_ms <= until:
            self.now_ms = max(self.now_ms, due_ms)
            seen += self.tell(Woken(self.at))
        self.now_ms = until
        return seen

    # --- ways to get somewhere --------------------------------------------------------------------------------

    def open(self, *numbers: int, name: str = "t", owner: int | None = None) -> Producer:
        """A producer with an open transaction."""
        self.init(name, owner=owner)
        producer = self.last_producer()
        assert self.enrol(producer, *(numbers or (0,)), name=name)[-1] == "enrol: ok"
        return producer

    def prepared(self, *numbers: int, name: str = "t", owner: int | None = None) -> Token:
        """A prepared transaction."""
        self.prepare(self.open(*numbers, name=name, owner=owner), name=name, owner=owner)
        answer = self.effects[-1]
        assert isinstance(answer, Answer)
        assert isinstance(answer.result, Token)
        return answer.result

    def last_producer(self) -> Producer:
        """Whom the last event's answer names."""
        answer = next(effect for effect in self.effects if isinstance(effect, Answer))
        assert isinstance(answer.result, InitResult)
        return answer.result.producer


# --- effects as text ------------------------------------------------------------------------------------------


def text(effect: Effect) -> str:
    """One effect in a line."""
    match effect:
        case TookProducerId(producer_id):
            return f"took {producer_id}"
        case Persist(_, rows):
            return "write " + "; ".join(map(_row_text, rows))
        case Answer(_, ref, result):
            return f"{ref}: {_result_text(result)}"
        case WriteMarkers(_, name, producer_id, epoch, commit, partitions):
            numbers = " ".join(str(p.partition) for p in partitions)
            return f"tell {name} {'commit' if commit else 'abort'} {producer_id}@{epoch}: {numbers}"
        case Completed(_, name, commit, cause, _):
            return f"over {name} {'commit' if commit else 'abort'} by {cause.name}"


def _row_text(row: Row) -> str:
    kind, name = read_key(row[0])
    if row[1] is None:
        return f"{name} forgotten"
    if kind is Kind.OWNER:
        owner = read_owner(name, row[1])
        free = "".join(f" {pid}@{epoch}" for pid, epoch in FREE.iter_unpack(owner.free))
        undone = "".join(f" #{nonce}" for (nonce,) in sorted(NONCE.iter_unpack(owner.pack_undone())))
        claim = "" if owner.claim < 0 else f" claim {owner.claim}@{owner.claim_epoch}"
        free = f" free{free}" if free else ""
        return f"owner {name} epoch {owner.epoch}{claim} unit {owner.last_sequence}{undone}{free}"
    txn = read_transaction(name, row[1])
    return f"{name} {txn.state.name} {txn.producer.producer_id}@{txn.producer.epoch}"


def _result_text(result: Result | HeadraceError) -> str:
    match result:
        case None:
            return "ok"
        case HeadraceError():
            return result.code.name
        case Producer(producer_id, epoch):
            return f"{producer_id}@{epoch}"
        case Token(name, producer_id, epoch, nonce):
            return f"token {name} {producer_id}@{epoch} #{nonce}"
        case InitResult(producer, None):
            return f"{producer.producer_id}@{producer.epoch}"
        case InitResult(_, token):
            return _result_text(token)
        case DecideResult(committed, producer):
            return f"{'committed' if committed else 'aborted'}, next {_result_text(producer) if producer else 'none'}"
        case OwnerResult(epoch, sequence):
            return f"epoch {epoch} after unit {sequence}"
        case UnitResult(repeated):
            return "repeated" if repeated else "committed"
    raise AssertionError(result)
