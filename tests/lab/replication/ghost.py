"""What must hold after every step, besides what ``tests.lab.watch`` looks at: tokens, sequences, no batch twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.lab.replication.clients import FIRST_WRITER
from tests.lab.watch import Process, Watch

from headrace_broker.core.fences import token_in
from headrace_broker.core.partition import Partition as Core
from headrace_broker.core.partition_events import BatchArrived, Emptied, Refuse, Truncated
from headrace_broker.core.rows import IndexRow
from headrace_broker.engine.replicas import Replica
from headrace_common.core.batch import BatchHeader, read_header
from headrace_common.core.errors import OutOfOrderSequence
from headrace_common.core.ids import PartitionId


class Ghost(Watch):
    """Of one cluster."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(tell)
        self.fences: dict[PartitionId, list[tuple[int, int]]] = {}
        """Offsets and tokens of the fences that are committed."""
        self.has_gaps = False
        """Whether logs are compacted."""
        self.on_joined: Callable[[Process, PartitionId], None] = lambda process, id: None
        self.on_disorder: Callable[[Process, Core, BatchHeader], None] = lambda process, core, header: None
        self._places: dict[tuple[PartitionId, int, int, int], int] = {}

    def handled(self, core: Core, event: Any, effects: Any) -> None:
        """Told of batches that are refused as out of order, and of logs that are cut."""
        if isinstance(event, Truncated | Emptied):
            self._check_cut(core)
        if not isinstance(event, BatchArrived):
            return
        for effect in effects:
            if isinstance(effect, Refuse) and effect.ref is event.ref and isinstance(effect.error, OutOfOrderSequence):
                process = self.running()
                if process is not None:
                    self.on_disorder(process, core, event.header)

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
        if row.producer_id >= FIRST_WRITER and row.producer_id - FIRST_WRITER != present:
            text = f"{row.base_offset} was written under {row.producer_id - FIRST_WRITER}, not {present}"
            self.wrong("zombie", process, replica.core, text)
        if row.producer_id >= 0 and row.record_count:
            key = (id, row.producer_id, row.producer_epoch, row.base_sequence)
            if self._places.setdefault(key, row.base_offset) != row.base_offset:
                self.wrong("twice", process, replica.core, f"{key[1:]} at {self._places[key]} and {row.base_offset}")

    def checked(self, process: Process, replica: Replica) -> None:
        """Whoever holds a committed fence knows its token."""
        core, fences = replica.core, self.fences.get(replica.id, [])
        if not fences or replica.damage is not None:
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
