"""
``python -m headrace_controller.breakglass``: a key of a super user for one hour, written into etcd.

For who is locked out: it needs no credential and no controller, only what controllers have of etcd. Prints one line of
JSON, with the key this once. ``--end`` takes it back. ``--mode permissive`` opens a closed cluster again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from headrace_common.core.access.principal import BREAKGLASS
from headrace_common.core.access.rows import Mode, Reader, read_state
from headrace_common.core.errors import Conflict, NotFound, UnsupportedVersion
from headrace_common.core.features import ACCESS, say_too_low
from headrace_common.runtime.clock import Clock, SystemClock
from headrace_common.runtime.entropy import new_api_key, new_uuid
from headrace_controller import store_access
from headrace_controller.core import breakglass, records
from headrace_controller.core.restore_record import RESTORING_KEY
from headrace_controller.core.store import Committed, Listing, Transaction, Unchanged
from headrace_controller.ports import MetadataStore

_TRIES_MAX: Final = 8

Rows = Mapping[str, bytes]
Plan = Callable[[Rows], Rows]


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments, or the end of the process with a usage text."""
    parser = store_access.arguments(
        "breakglass",
        f"Write a key of {BREAKGLASS}, who may do everything, into etcd; it lasts an hour and is printed once.",
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--end", action="store_true", help="delete its keys and take the role back")
    instead.add_argument(
        "--mode",
        choices=(Mode.PERMISSIVE.name.lower(),),
        help="make the cluster permissive again: everybody may do everything, and what rules refuse is counted",
    )
    return parser.parse_args(argv)


async def act(given: argparse.Namespace, store: MetadataStore, now_ms: int) -> dict[str, object]:
    """
    Do what is asked for; what is to be said of it.

    Raises:
        NotFound: there is no cluster.
        UnsupportedVersion: it is below the feature level of access.
        Conflict: a restore is being written, there is nothing to lower, or others change access at the same time.
        Rejected: a newer version wrote the row with the mode.
        StoreUnavailable, StoreOutcomeUnknown: as the store.
    """
    if given.end:
        rows = await _write(store, lambda rows: breakglass.end(rows, new_uuid()))
        return {"ended": str(BREAKGLASS), **_facts(rows)}
    if given.mode:
        rows = await _write(store, lambda rows: breakglass.lower(rows, Mode[given.mode.upper()], new_uuid()))
        note = "a controller whose access_mode is closed closes it again: start them with --access-mode permissive"
        return {**_facts(rows), "note": note}
    key = new_api_key()
    rows = await _write(store, lambda rows: breakglass.begin(rows, key, now_ms, new_uuid()))
    until = datetime.fromtimestamp((now_ms + breakglass.LIFETIME_MS) / 1_000, UTC).isoformat(timespec="seconds")
    note = "show it as HEADRACE_API_KEY; take it back with --end"
    return {"principal": str(BREAKGLASS), "key": key, "until": until, **_facts(rows), "note": note}


async def break_glass(given: argparse.Namespace, clock: Clock) -> int:
    """Do what is asked for in etcd; the exit code."""
    async with store_access.open_store(given) as store:
        await store_access.once_it_answers(store, clock, given.wait)
        said = await act(given, store, round(clock.now_ms()))
    sys.stdout.write(json.dumps(said) + "\n")
    return 0


async def _write(store: MetadataStore, plan: Plan) -> Rows:
    """Write what ``plan`` says of the rows that are there, in one step; the rows afterwards."""
    for _ in range(_TRIES_MAX):
        listing = await store.list_all()
        _check_cluster(listing)
        rows = {
            item.key.removeprefix(records.ACCESS_PREFIX): item.value
            for item in listing.items
            if item.key.startswith(records.ACCESS_PREFIX)
        }
        due = plan(rows)
        if not due:
            return rows
        compared = {records.CLUSTER_KEY, *map(records.access_key, due)}
        revisions = {item.key: item.mod_revision for item in listing.items}
        compares = tuple(Unchanged(key, revisions.get(key, 0)) for key in sorted(compared))
        outcome = await store.commit(Transaction(compares, records.access_operations(due)))
        if isinstance(outcome, Committed):
            return {name: row for name, row in {**rows, **due}.items() if row}
    raise Conflict("access is being changed all the time; nothing was changed, try again")


def _check_cluster(listing: Listing) -> None:
    found = {item.key: item.value for item in listing.items}
    if RESTORING_KEY in found:
        raise Conflict("a restore is being written, or was not finished; finish it first")
    if records.CLUSTER_KEY not in found:
        raise NotFound("there is no such cluster; give --cluster NAME")
    cluster = records.decode(records.CLUSTER_KEY, found[records.CLUSTER_KEY])
    assert isinstance(cluster, records.Cluster), "that is what the key holds"
    if cluster.feature_level < ACCESS.level:
        raise UnsupportedVersion(say_too_low("break-glass", ACCESS, cluster.feature_level))


def _facts(rows: Rows) -> dict[str, object]:
    mode, generation = read_state(rows)
    faults = Reader().read(rows).faults
    facts: dict[str, object] = {"mode": mode.name.lower(), "generation": generation}
    return {**facts, "not_readable_by_this_version": faults} if faults else facts


if __name__ == "__main__":
    sys.exit(store_access.run(break_glass(parse_arguments(sys.argv[1:]), SystemClock())))
