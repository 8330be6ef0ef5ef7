"""
Looks into the real brokers and coordinators of a cluster in the lab, and tells ``truth`` what happens there.

Of brokers: each batch that a leader counts as committed, and after every event where each replica's last stable offset
is, and whether it knows what its log says of producers. Of coordinators: what is asked, and what is answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from tests.lab.transactions.truth import Asked, Truth

from headrace_broker.core.partition import Partition as Core
from headrace_broker.core.partition_events import BatchArrived, GroupWritten
from headrace_broker.core.rows import TRANSACTIONAL_BIT, PutBatch
from headrace_broker.engine.replicas import Replicas
from headrace_broker.engine.storage_loop import StorageLoop
from headrace_broker.ports import LogStore
from headrace_common.core.batch import DecodedBatch, decode_batch
from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import NodeId, Offset, PartitionId, TopicId
from headrace_common.core.image import INTERNAL_TOPICS, ShardKind
from headrace_coordinator.core.effects import MarkerOutcomes, OffsetOutcomes, OffsetsFound
from headrace_coordinator.core.events import MarkersAsked, OffsetsAsked, TxnCommitAsked
from headrace_coordinator.core.records import OffsetKey
from headrace_coordinator.core.transactions.effects import (
    Completed,
    DecideResult,
    InitResult,
    OwnerResult,
    TransactionDescription,
    UnitResult,
    WriteMarkers,
)
from headrace_coordinator.core.transactions.events import (
    DecideAsked,
    DescribeAsked,
    EndAsked,
    EnrolAsked,
    InitAsked,
    MarkersWritten,
    OwnerInitAsked,
    UnitAsked,
)
from headrace_coordinator.core.transactions.values import Producer
from headrace_coordinator.engine.host import Host
from headrace_coordinator.engine.shard_host import ShardHost
from headrace_coordinator.engine.transaction_host import TransactionHost
from headrace_lab.loop import NODE, Node

DATA = "t"
"""The topic that transactions write to."""


class Watch:
    """Of one cluster; made before it starts."""

    def __init__(self, truth: Truth, counts: Counter[str]) -> None:
        self._truth = truth
        self.counts = counts
        self._stores: dict[Node, LogStore] = {}
        self._replicas: dict[Node, Replicas] = {}
        self._names: dict[TopicId, str] = {}
        self._ends: dict[PartitionId, int] = {}
        """Up to where each log was committed."""
        self._batches: dict[tuple[PartitionId, int, int], bytes] = {}
        """By partition, base offset and leader epoch."""
        self._tokens: dict[tuple[PartitionId, int, int], tuple[int, bool]] = {}
        """With which token a coordinator appended each of them, and whether it set it."""
        self._cores: dict[int, Core] = {}
        """Those that were seen; kept, so that no other one has its id."""
        self._unsure: dict[int, None] = {}
        """Cores that were opened or cut, and not compared with their log since."""
        self._aborted_unsure: dict[int, None] = {}
        self._asked: dict[object, Asked] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While this runs all brokers and coordinators of this process are looked at."""
        opened, made, handled = StorageLoop.__init__, Replicas.__init__, Core.handle
        recovered = Core.with_transactions
        taken, shown, shown_to_groups = Host._handle, TransactionHost._show, ShardHost._show
        followed = TransactionHost._carry_out_at_once

        def open_loop(loop: StorageLoop, store: LogStore, *rest: Any, **named: Any) -> None:
            self._stores[NODE.get()] = store
            opened(loop, store, *rest, **named)

        def make_replicas(replicas: Replicas, broker_id: NodeId) -> None:
            self._replicas[NODE.get()] = replicas
            made(replicas, broker_id)

        def handle(core: Core, event: Any) -> Any:
            self._first_seen(core)
            before = core.high_watermark, core.last_stable, core.truncations
            effects = handled(core, event)
            self._appended(core, event, effects)
            if before != (core.high_watermark, core.last_stable, core.truncations):
                self._moved(core, cut=core.truncations != before[2])
            if id(core) in self._unsure and isinstance(event, GroupWritten) and core.written_end == core.log_end:
                del self._unsure[id(core)]
                self._compare_open(core)
            return effects

        def recover(core: Core, aborted: Any, ended: Any) -> Core:
            found = recovered(core, aborted, ended)
            if aborted or ended:
                self._check_stable(core)
            return found

        def take(host: Any, event: Any) -> None:
            ref = getattr(event, "ref", None)
            if ref is not None:
                self._asked[ref] = self._ask(event)
            taken(host, event)

        def follow(host: TransactionHost, event: Any, effects: Any) -> Any:
            if isinstance(event, MarkersWritten) and any(isinstance(effect, Completed) for effect in effects):
                self._truth.is_complete(event.transactional_id, Producer(event.producer_id, event.epoch))
            return followed(host, event, effects)

        def show(host: TransactionHost, effect: Any) -> None:
            self._transaction_shown(effect)
            shown(host, effect)

        def show_to_groups(host: ShardHost, effect: Any) -> None:
            self._group_shown(host, effect)
            shown_to_groups(host, effect)

        with ExitStack() as patches:
            for one, name, instead in (
                (StorageLoop, "__init__", open_loop),
                (Replicas, "__init__", make_replicas),
                (Core, "handle", handle),
                (Core, "with_transactions", recover),
                (Host, "_handle", take),
                (TransactionHost, "_carry_out_at_once", follow),
                (TransactionHost, "_show", show),
                (ShardHost, "_show", show_to_groups),
            ):
                patches.enter_context(patch.object(one, name, instead))
            yield

    def ids_of(self, topic: str) -> list[PartitionId]:
        """The partitions of a topic that were seen."""
        return sorted(id for id in self._truth.shown if self._name(id) == topic)

    def topic_id(self, topic: str) -> TopicId | None:
        """None: no broker knows it yet."""
        for replicas in self._replicas.values():
            if (found := replicas.image.topic(topic)) is not None:
                return found.topic_id
        return None

    def cores(self, id: PartitionId) -> list[Core]:
        """Of all brokers that live."""
        found = [replicas.get(id) for node, replicas in self._replicas.items() if node.alive]
        return [replica.core for replica in found if replica is not None]

    # --- brokers ----------------------------------------------------------------------------------------------

    def _name(self, id: PartitionId) -> str:
        name = self._names.get(id.topic_id)
        if name is None:
            found = [replicas.image.topics.get(id.topic_id) for replicas in self._replicas.values()]
            name = next((topic.name for topic in found if topic is not None), "")
            if name:
                self._names[id.topic_id] = name
        return name

    def _first_seen(self, core: Core) -> None:
        if id(core) in self._cores:
            return
        self._cores[id(core)] = core
        self._aborted_unsure[id(core)] = None
        if core.written_end == core.log_end:
            self._compare_open(core)
        self._check_stable(core)

    def _appended(self, core: Core, event: Any, effects: list[Any]) -> None:
        for effect in effects:
            if type(effect) is not PutBatch:
                continue
            at = core.id, effect.row.base_offset, effect.row.leader_epoch
            self._batches[at] = effect.batch
            if type(event) is BatchArrived and (event.fence is not None or event.fencing_token is not None):
                fence = event.fence is not None
                self._tokens[at] = (event.fence if fence else event.fencing_token, fence)  # type: ignore[assignment]  # one of them is set

    def _moved(self, core: Core, *, cut: bool) -> None:
        """A log has other ends than before."""
        if cut:
            self.counts["truncations"] += 1
            self._aborted_unsure[id(core)] = None
            if core.written_end == core.log_end:
                self._compare_open(core)
            else:
                self._unsure[id(core)] = None
        if core.leading is not None and core.high_watermark > self._ends.get(core.id, 0):
            self._committed(core)
        self._check_stable(core)
        if id(core) in self._aborted_unsure and core.high_watermark >= self._ends.get(core.id, 0):
            del self._aborted_unsure[id(core)]
            self._compare_aborted(core)

    def _committed(self, core: Core) -> None:
        """A leader counts more as committed."""
        store, name, begin = self._stores[NODE.get()], self._name(core.id), self._ends.get(core.id, 0)
        self._ends[core.id] = core.high_watermark
        for row in store.index(core.log, Offset(begin), core.high_watermark):
            if row.base_offset < begin or row.next_offset > core.high_watermark:
                continue
            at = core.id, row.base_offset, row.leader_epoch
            if name == DATA:
                values = [] if row.base_sequence < 0 else [int(value or b"") for value in self._decoded(at).values()]
                self._truth.batch_committed(core.id, row, values)
                continue
            if name not in INTERNAL_TOPICS.values():
                continue
            if at in self._tokens:
                token, fence = self._tokens[at]
                self._truth.token_committed(core.id, token, fence=fence)
                if fence:
                    continue
            if row.base_sequence >= 0:
                self._shard_committed(name, at)

    def _shard_committed(self, name: str, at: tuple[PartitionId, int, int]) -> None:
        found = self._decoded(at)
        for key, value in zip(found.keys(), found.values(), strict=True):
            assert key is not None, "records of shards have keys"
            if name == INTERNAL_TOPICS[ShardKind.TRANSACTIONS]:
                self._truth.transaction_record(key, value)
            else:
                self._truth.position_record(key, value)

    def _decoded(self, at: tuple[PartitionId, int, int]) -> DecodedBatch:
        return decode_batch(self._batches[at], verify_crc=False)

    def _check_stable(self, core: Core) -> None:
        if self._name(core.id) != DATA:
            return
        stable = self._truth.shown[core.id].stable
        if core.last_stable > max(stable, core.log_start):
            where = f"{NODE.get()} shows {core.id.partition} up to {core.last_stable}, decided is up to {stable}"
            self._truth.wrong("last-stable", where)

    def _compare_open(self, core: Core) -> None:
        """A log that was opened, or cut, knows which transactions are open in it."""
        open: dict[int, int] = {}
        for row in self._stores[NODE.get()].index(core.log, core.first_batch, core.log_end):
            if row.ends_transaction:
                open.pop(row.producer_id, None)
            elif row.attributes & TRANSACTIONAL_BIT:
                open.setdefault(row.producer_id, row.base_offset)
        known = {who: start for who, start in core.producers.open.items() if start >= core.first_batch}
        if any(known.get(who, start) != start or who not in core.producers.open for who, start in open.items()):
            self._truth.wrong("open-unknown", f"{NODE.get()} {core.id.partition}: {known} are open, by the log {open}")
        if known.keys() - open.keys():
            self._truth.wrong("open-for-ever", f"{NODE.get()} {core.id.partition}: {known} are open, by the log {open}")

    def _compare_aborted(self, core: Core) -> None:
        """A log that was opened, or cut, knows what was aborted in it."""
        known = {(row.producer_id, row.last) for row in core.aborted.rows()}
        shown = self._truth.shown.get(core.id)
        for producer_id, first, marker in () if shown is None else shown.aborted:
            if core.first_batch <= first and marker < core.high_watermark and (producer_id, marker) not in known:
                text = f"{NODE.get()} {core.id.partition}: {producer_id} was aborted from {first} to {marker}"
                self._truth.wrong("aborted-unknown", text)

    # --- coordinators -----------------------------------------------------------------------------------------

    def _ask(self, event: Any) -> Asked:
        truth = self._truth
        match event:
            case EndAsked():
                truth.asked_ends.add((Producer(event.producer_id, event.epoch), event.commit))
            case UnitAsked():
                truth.units[event.owner, event.sequence] = tuple(event.tokens)
            case EnrolAsked():
                ended = Producer(event.producer_id, event.epoch) in truth.verdicts
                return Asked(event, truth.moment, ended=ended)
            case OffsetsAsked():
                positions = {key: one.offset for key, one in truth.positions.items() if key.group_id == event.group_id}
                return Asked(event, truth.moment, positions, dict(truth.pending))
        return Asked(event, truth.moment)

    def _transaction_shown(self, effect: Any) -> None:
        """What it stands on is committed."""
        truth = self._truth
        if isinstance(effect, WriteMarkers):
            ended = Producer(effect.producer_id, effect.epoch - 1)
            truth.must_be(ended, effect.commit, f"markers of {effect.transactional_id}")
        asked = self._asked.get(getattr(effect, "ref", None))
        if asked is None or isinstance(effect.result, HeadraceError):
            return
        event, result = asked.event, effect.result
        match event:
            case OwnerInitAsked():
                assert isinstance(result, OwnerResult), "asked to be the owner"
                if event.claim is not None:
                    truth.is_claimed(event.owner, event.claim, result.owner_epoch)
            case EndAsked():
                ended = Producer(event.producer_id, event.epoch)
                truth.must_be(ended, event.commit, f"end of {event.transactional_id}")
            case DecideAsked(token):
                assert isinstance(result, DecideResult), "a verdict answers who decides"
                truth.must_be(Producer(token.producer_id, token.epoch), result.committed, f"token {token}")
            case UnitAsked():
                assert isinstance(result, UnitResult), "a unit was asked for"
                for token in () if result.repeated_sequence else event.tokens:
                    truth.must_be(Producer(token.producer_id, token.epoch), True, f"unit {event.sequence}")
            case InitAsked():
                assert isinstance(result, InitResult), "asked for an identity"
                if result.prepared is None:
                    truth.is_handed_out(event.transactional_id, result.producer, event.owner_epoch)
            case EnrolAsked():
                truth.must_be_enrolled(asked, Producer(event.producer_id, event.epoch), event.partitions)
            case DescribeAsked():
                assert isinstance(result, TransactionDescription), "asked for a description"
                truth.description_told(asked, result)

    def _group_shown(self, host: ShardHost, effect: Any) -> None:
        truth, asked = self._truth, self._asked.get(getattr(effect, "ref", None))
        topic_id = self.topic_id(INTERNAL_TOPICS[ShardKind.GROUPS])
        if asked is None or topic_id is None or isinstance(effect.result, HeadraceError):
            return
        event, result, here = asked.event, effect.result, PartitionId(topic_id, host.number)
        match event:
            case TxnCommitAsked():
                assert isinstance(result, OffsetOutcomes), "positions were handed over"
                if not result.outcomes[0].error:
                    truth.must_be_enrolled(asked, Producer(event.producer_id, event.producer_epoch), (here,))
            case MarkersAsked():
                assert isinstance(result, MarkerOutcomes), "markers are answered by their outcomes"
                for marker, error in zip(event.markers, result.outcomes, strict=True):
                    if error is None:
                        truth.has_ended_here(here, marker.producer_id, marker.producer_epoch)
            case OffsetsAsked():
                assert isinstance(result, OffsetsFound), "asked for positions"
                for one in result.offsets:
                    topic = self.topic_id(one.topic)
                    if one.error is None and topic is not None:
                        key = OffsetKey(event.group_id, PartitionId(topic, one.partition))
                        offset = -1 if one.committed is None else one.committed.offset
                        truth.position_told(asked, key, offset, stable=event.require_stable)
