"""Heartbeats of work groups' members, into events of the core; what no client may send is refused here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from headrace_common.core.errors import Rejected
from headrace_coordinator.core.events import WorkHeartbeat
from headrace_coordinator.core.values import Declaration, Moment, WorkItem
from headrace_coordinator.engine.streams import MemberStream
from headrace_coordinator.rpc.checks import check_count, check_name
from headrace_coordinator.rpc.transaction_decode import transactional_id
from headrace_proto.v1 import coordinator_pb2 as pb

ITEMS_MAX: Final = 20_000
"""Of one declaration, and of each list of items."""
ITEM_ID_CHARACTERS_MAX: Final = 249
WEIGHT_MAX: Final = 1_000_000
STANDBYS_MAX: Final = 16
WARMUP_MAX: Final = ITEMS_MAX
TERMS_MAX: Final = 1_000
TERM_NAME_CHARACTERS_MAX: Final = 249
TERM_CHARACTERS_MAX: Final = 255
TOKEN_MAX: Final = 2**62 - 1
"""Above it there is little left to pass a token by."""


def heartbeat(beat: pb.WorkHeartbeat, instance_id: str | None, stream: MemberStream, at: Moment) -> WorkHeartbeat:
    """
    What a member says.

    Raises:
        Rejected: nothing that a client may say.
    """
    if not beat.member_id:
        raise Rejected("member_id is empty; choose a UUID, anew for each join")
    if beat.member_epoch < -1:
        raise Rejected(f"member_epoch is {beat.member_epoch}; it is -1 or more")
    timeout = beat.rebalance_timeout_ms if beat.HasField("rebalance_timeout_ms") else None
    if timeout is not None and timeout < 1:
        raise Rejected(f"rebalance_timeout_ms is {timeout}; it is 1 or more")
    check_count(len(beat.refused), ITEMS_MAX, "refused items")
    check_count(len(beat.ended), ITEMS_MAX, "ended transactional ids")
    return WorkHeartbeat(
        stream.group_id,
        stream.number,
        at,
        check_name(beat.member_id, "member_id"),
        beat.member_epoch,
        instance_id=instance_id,
        process_id=check_name(beat.process_id, "process_id"),
        endpoint=check_name(beat.endpoint, "endpoint"),
        zone=check_name(beat.zone, "zone"),
        transactional_id=transactional_id(beat.transactional_id) if beat.transactional_id else "",
        rebalance_timeout_ms=timeout,
        declaration=_declaration(beat.declaration) if beat.HasField("declaration") else None,
        owned=frozenset(_ids(beat.owned.ids)) if beat.HasField("owned") else None,
        lags=_lags(beat.lags.items) if beat.HasField("lags") else None,
        refused=tuple((one.id, _token(one)) for one in beat.refused),
        ended=tuple(beat.ended),
        client_id=check_name(beat.client_id, "client_id"),
        client_address=stream.address,
    )


def _token(one: pb.RefusedItem) -> int:
    if not 0 <= one.token <= TOKEN_MAX:
        raise Rejected(f"token {one.token} of {one.id[:60]!r} cannot be passed; 0 to 2^62 - 1 are allowed")
    return one.token


def _ids(said: Iterable[str]) -> list[str]:
    ids = list(said)
    check_count(len(ids), ITEMS_MAX, "items")
    for id in ids:
        if not 1 <= len(id) <= ITEM_ID_CHARACTERS_MAX:
            raise Rejected(f"an item's id has 1 to {ITEM_ID_CHARACTERS_MAX} characters, not {len(id)}")
    return ids


def _lags(said: Iterable[pb.ItemLag]) -> dict[str, int]:
    lags = {one.id: one.lag for one in said}
    _ids(lags)
    below = next((id for id, lag in lags.items() if lag < 0), None)
    if below is not None:
        raise Rejected(f"the lag of item {below!r} is {lags[below]}; it is 0 or more")
    return lags


def _declaration(said: pb.WorkDeclaration) -> Declaration:
    if not check_name(said.fingerprint, "fingerprint"):
        raise Rejected("the declaration has no fingerprint; give equal ones the same and others another")
    version = said.version if said.HasField("version") else None
    if version is not None and version < 1:
        raise Rejected(f"the declaration has version {version}; it is 1 or more")
    if said.acceptable_recovery_lag < 0:
        raise Rejected(f"acceptable_recovery_lag is {said.acceptable_recovery_lag}; it is 0 or more")
    if not 1 <= said.max_warmup <= WARMUP_MAX:
        raise Rejected(f"max_warmup is {said.max_warmup}; it is 1 to {WARMUP_MAX}")
    ids = _ids(item.id for item in said.items)
    items = {item.id: _item(item) for item in said.items}
    if len(items) < len(ids):
        ((twice, _),) = Counter(ids).most_common(1)
        raise Rejected(f"item {twice!r} is declared twice")
    return Declaration(
        said.fingerprint, version, items, said.acceptable_recovery_lag, said.max_warmup, _terms(said.terms)
    )


def _terms(said: Mapping[str, str]) -> dict[str, str]:
    check_count(len(said), TERMS_MAX, "terms")
    for name, value in said.items():
        if not 1 <= len(name) <= TERM_NAME_CHARACTERS_MAX:
            raise Rejected(f"a term's name has 1 to {TERM_NAME_CHARACTERS_MAX} characters, not {len(name)}")
        if len(value) > TERM_CHARACTERS_MAX:
            raise Rejected(f"term {name!r} has {len(value)} characters; {TERM_CHARACTERS_MAX} is the most")
    return dict(said)


def _item(said: pb.WorkItem) -> WorkItem:
    if not 1 <= said.weight <= WEIGHT_MAX:
        raise Rejected(f"item {said.id!r} has weight {said.weight}; it is 1 to {WEIGHT_MAX}")
    if not 0 <= said.standbys <= STANDBYS_MAX:
        raise Rejected(f"item {said.id!r} has {said.standbys} standbys; 0 to {STANDBYS_MAX} are allowed")
    if said.standbys and not said.stateful:
        raise Rejected(f"item {said.id!r} has standbys and no state; declare it stateful, or without standbys")
    return WorkItem(said.id, said.weight, said.stateful, said.standbys)
