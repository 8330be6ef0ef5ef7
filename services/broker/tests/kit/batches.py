"""Record batches for tests."""

from __future__ import annotations

from collections.abc import Sequence

from headrace_common.core.batch import Codec, RecordColumns, build_batch

NOW_MS = 1_700_000_000_000


def batch_of(
    values: Sequence[bytes] | int,
    *,
    timestamp_ms: int | Sequence[int] = NOW_MS,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    codec: Codec = Codec.NONE,
    transactional: bool = False,
) -> bytes:
    """A batch of these values, or of so many."""
    if isinstance(values, int):
        values = [b"%d" % number for number in range(values)]
    return build_batch(
        RecordColumns(values, timestamps_ms=timestamp_ms),
        codec=codec,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
