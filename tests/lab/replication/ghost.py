"""
What must hold after every step, besides what ``tests.lab.watch`` looks at: tokens, sequences, no batch twice, and that
transactions are decided whole, whatever fences lie within them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.lab.replication.clients import FIRST_WRITER
from tests.lab.watch import Process, Watch

from headrace_broker.core.fences import token_in
from headrace_broker.core.partition import Partition as Core
from headrace_broker.core.partition_events import BatchArrived, Emptied, Refuse, Truncated
from headrace_broker.core.rows import COMMITS_BIT, TRANSACTIONAL_BIT, IndexRow
from headrace_broker.engine.replicas import Replica
from headrace_common.core.batch import BatchHeader, read_header
from headrace_common.core.errors import FencedWriter, OutOfOrderSequence
from headrace_common.core.ids import PartitionId


@dataclass
class Written:
    """A transaction's committed records in one partition."""

    first: int
    marker: int = -1
    """-1: it has none that is committed."""
    commit: bool = False


class Ghost(Watch):
    """Of one cluster."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(tell)
        self.fences: dict[PartitionId, list[tuple[int, int]]] = {}
        """Offsets and tokens of the fences that are committed."""
        self.holders: dict[int, int] = {}
        """Whose each token is: the producer id of its writer."""
        self.required = False
        """Whether nobody may write without a token."""
        self.transactions: dict[PartitionId, dict[tuple[int, int], Written]] = {}
        """By producer and epoch."""
        self.verdict_of: Callable[[int, int], bool | None] = lambda producer, epoch: None
        self.has_gaps = False
        """Whether logs are compacted."""
        self.on_joined: Callable[[Process, PartitionId], None] = lambda process, id: None
        self.on_disorder: Callable[[Process, Core, BatchHeader], None] = lambda process, core, header: None
        self.on_fenced: Callable[[Process, Core, BatchHeader, int], None] = lambda process, core, header, place: None
        """Told of a refusal for its token of a batch that is committed."""
        self._places: dict[tuple[PartitionId, int, int, int], int] = {}

    def handled(self, core: Core, event: Any, effects: Any) -> None:
        """Told of batches that are refused as out of order or for their token, and of logs that are cut."""
        if isinstance(event, Truncated | Emptied):
            self._check_cut(core)
        if not isinstance(event, BatchArrived):
            return
        for effect in effects:
            if isinstance(effect, Refuse) and effect.ref is event.ref:
                process = self.running()
                if process is not None and isinstance(effect.error, OutOfOrderSequence):
                    self.on_disorder(process, core, event.header)
                if process is not None and isinstance(effect.error, FencedWriter):
                    self._check_fenced(process, core, event.header)

    def _check_fenced(self, process: Process, core: Core, header: BatchHeader) -> None:
        """Of a transaction that was decided a leader may have forgotten what it has."""
        producer, epoch = header.producer_id, header.producer_epoch
        place = self._places.get((core.id, producer, epoch, header.base_sequence), -1)
        if core.log_start <= place < core.high_watermark and self.verdict_of(producer, epoch) is None:
            self.on_fenced(process, core, header, place)

    def _check_cut(self, core: Core) -> None:
        """Of what was cut nothing is known any more: neither producers' batches, nor tokens."""
        process = self.running()
        known = [batch.base_offset for row in core.producers.snapshot() for batch in row.batches]
        known += [row.offset for row in core.fences.rows()]
        if process is not None and max(known, default=-1) >= core.log_end:
            self.wrong("cut and known", process, core, f"it ends at {core.log_end} and knows of {max(known)}")

    def took(self, process: Process, replica: Replica, row: IndexRow) -> None:
        """Tokens of fences grow, and between two fences only the writer of the first one writes."""
        id = replica.id
        fences = self.fences.setdefault(id, [])
        present = fences[-1][1] if fences else -1
        batch = batch_at(process, replica, row)
        token = token_in(read_header(batch), batch)
        if token is not None:
            if token <= present:
                self.wrong("token", process, replica.core, f"{row.base_offset} sets {token} after {present}")
            fences.append((row.base_offset, token))
            return
        if row.ends_transaction:
            self._take_marker(process, replica, row)
            return
        if (row.producer_id >= FIRST_WRITER or self.required) and self.holders.get(present) != row.producer_id:
            text = f"{row.base_offset} was written by {row.producer_id}, not by {self.holders.get(present)}"
            self.wrong("zombie", process, replica.core, text)
        if row.attributes & TRANSACTIONAL_BIT:
            self._take_records(process, replica, row)
        if row.producer_id >= 0 and row.record_count:
            key = (id, row.producer_id, row.producer_epoch, row.base_sequence)
            if self._places.setdefault(key, row.base_offset) != row.base_offset:
                self.wrong("twice", process, replica.core, f"{key[1:]} at {self._places[key]} and {row.base_offset}")

    def _take_records(self, process: Process, replica: Replica, row: IndexRow) -> None:
        written = self.transactions.setdefault(replica.id, {}).setdefault(
            (row.producer_id, row.producer_epoch), Written(row.base_offset)
        )
        if written.marker >= 0:
            self.wrong("late", process, replica.core, f"{row.base_offset} is behind its marker, {written.marker}")

    def _take_marker(self, process: Process, replica: Replica, row: IndexRow) -> None:
        """It says what was decided; its transaction may have no records here, for it was fenced meanwhile."""
        key, commit = (row.producer_id, row.producer_epoch - 1), bool(row.attributes & COMMITS_BIT)
        if self.verdict_of(*key) is not commit:
            text = f"{row.base_offset} says {commit} of {key}, and {self.verdict_of(*key)} was decided"
            self.wrong("verdict", process, replica.core, text)
        written = self.transactions.get(replica.id, {}).get(key)
        if written is not None and written.marker < 0:
            written.marker, written.commit = row.base_offset, commit

    def checked(self, process: Process, replica: Replica) -> None:
        """What a log that is sound knows of its fences and of its transactions."""
        if replica.damage is None:
            self._check_token(process, replica)
            self._check_decided(process, replica)

    def _check_decided(self, process: Process, replica: Replica) -> None:
        """No reader of decided records is shown an undecided one, and readers know of all that is aborted."""
        core, aborted = replica.core, set[tuple[int, int, int]]()
        before = set[int]()
        for (producer, _), written in self.transactions.get(replica.id, {}).items():
            if written.first < core.log_start:
                before.add(written.marker)
            elif not 0 <= written.marker < core.high_watermark:
                if written.first < core.last_stable:
                    text = f"{core.last_stable}, and the transaction of {producer} at {written.first} has no marker"
                    self.wrong("last stable", process, core, text)
            elif not written.commit:
                aborted.add((producer, written.first, written.marker))
        rows = [row for row in core.aborted.rows() if row.last < core.high_watermark and row.last not in before]
        found = {(row.producer_id, int(row.first), int(row.last)) for row in rows if row.first >= core.log_start}
        if found != aborted:
            self.wrong("aborted", process, core, f"it knows of {sorted(found)}, aborted are {sorted(aborted)}")

    def _check_token(self, process: Process, replica: Replica) -> None:
        """Whoever holds a committed fence knows its token."""
        core, fences = replica.core, self.fences.get(replica.id, [])
        if not fences:
            return
        committed = next((token for offset, token in reversed(fences) if offset < core.high_watermark), -1)
        superseded = self.has_gaps and fences[-1][0] >= core.log_end  # fences go where newer ones are, to be copied yet
        if core.fences.token < committed and not superseded:
            self.wrong("token lost", process, core, f"it has {core.fences.token}, not {committed}")

    def joined(self, process: Process, id: PartitionId) -> None:
        """See ``Watch``."""
        self.on_joined(process, id)


def batch_at(process: Process, replica: Replica, row: IndexRow) -> bytes:
    """The bytes that are stored for a row."""
    batch: bytes = process.store._live[replica.core.log].batches[row.base_offset]  # type: ignore[attr-defined]
    return batch
