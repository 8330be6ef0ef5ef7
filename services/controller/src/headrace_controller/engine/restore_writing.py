"""
Writes restored metadata into the store, so that a crash at any point leaves either no cluster or the whole one.

First the key ``restoring``, which keeps controllers from being elected and from making a new cluster; then, in
chunks, what was there is deleted and the rows are written; last, in one transaction, what makes it a cluster, and
``restoring`` goes. Repeated after a crash it begins anew. Called by the program ``restore``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from headrace_common.core.errors import Conflict
from headrace_controller.core import records
from headrace_controller.core.backup_file import Row
from headrace_controller.core.restore_record import RESTORING_KEY
from headrace_controller.core.restored import Restored
from headrace_controller.core.store import (
    Committed,
    Compare,
    CreatedAt,
    Delete,
    Listing,
    Operation,
    Put,
    Transaction,
    Unchanged,
)
from headrace_controller.ports import MetadataStore, StoreOutcomeUnknown

CHUNK: Final = 100
_CHUNK_BYTES: Final = 500_000


class ControllersRun(Conflict):
    """A controller is active on this metadata; stop all controllers, brokers, coordinators and admins first."""


async def is_active(store: MetadataStore) -> bool:
    """Whether a controller holds the election key; raises as ``MetadataStore.get``."""
    return await store.get(records.CONTROLLER_KEY) is not None


async def write(store: MetadataStore, restored: Restored, *, replace: bool) -> int:
    """
    Write it; the revision at which the cluster is there again.

    Raises:
        ControllersRun: somebody holds the election key.
        Conflict: the store holds a cluster and ``replace`` is false, or another restore runs side by side.
        StoreUnavailable, StoreOutcomeUnknown: some of it may be written; repeat the whole.
    """
    ours = await _begin(store, await store.list_all(), restored, replace=replace)
    left = [item.key for item in (await store.list_all()).items if item.key != RESTORING_KEY]
    left.sort(key=lambda key: key != records.CLUSTER_KEY)  # without it nothing that is left looks like a cluster
    for start in range(0, len(left), CHUNK):
        await _commit(store, tuple(Delete(key) for key in left[start : start + CHUNK]), (ours,))
    for piece in _pieces(restored.rows):
        await _commit(store, tuple(Put(row.key, row.value) for row in piece), (ours,))
    return await _finish(store, restored, ours)


async def _begin(store: MetadataStore, listing: Listing, restored: Restored, *, replace: bool) -> Unchanged:
    found = {item.key: item for item in listing.items}
    if records.CONTROLLER_KEY in found:
        raise ControllersRun
    half_done = RESTORING_KEY in found and records.CLUSTER_KEY not in found
    if found and not half_done and not replace:
        raise Conflict(
            f"the store holds a cluster already ({len(found)} keys); restore into an empty store, or give --replace to "
            "put the backup in its place"
        )
    compares: tuple[Compare, ...] = (
        CreatedAt(records.CONTROLLER_KEY, 0),
        *(
            Unchanged(key, found[key].mod_revision if key in found else 0)
            for key in (RESTORING_KEY, records.CLUSTER_KEY)
        ),
    )
    revision = await _commit(store, (Put(RESTORING_KEY, restored.last[0].value),), compares)
    return Unchanged(RESTORING_KEY, revision)


async def _finish(store: MetadataStore, restored: Restored, ours: Unchanged) -> int:
    operations: list[Operation] = [Put(row.key, row.value) for row in restored.last]
    operations.append(Delete(RESTORING_KEY))
    cluster = restored.last[-1]
    assert cluster.key == records.CLUSTER_KEY, "that it is a cluster is said last"
    try:
        return await _commit(store, operations, (ours, CreatedAt(records.CLUSTER_KEY, 0)))
    except StoreOutcomeUnknown:
        found = await store.get(records.CLUSTER_KEY)
        if found is None or found.value != cluster.value:
            raise
        return found.mod_revision


async def _commit(store: MetadataStore, operations: Sequence[Operation], compares: Sequence[Compare]) -> int:
    outcome = await store.commit(Transaction(tuple(compares), tuple(operations)))
    if isinstance(outcome, Committed):
        return outcome.revision
    if records.CONTROLLER_KEY in outcome.found:
        raise ControllersRun
    raise Conflict("another program is changing this store; make sure that no other restore runs, then run this again")


def _pieces(rows: Sequence[Row]) -> Iterator[list[Row]]:
    piece: list[Row] = []
    size = 0
    for row in rows:
        own = len(row.key) + len(row.value)
        if piece and (len(piece) == CHUNK or size + own > _CHUNK_BYTES):
            yield piece
            piece, size = [], 0
        piece.append(row)
        size += own
    if piece:
        yield piece
