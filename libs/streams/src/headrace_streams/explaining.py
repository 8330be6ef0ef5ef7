"""Explains where a key of an app is: its task in each store, who has that, how far it is, and what is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from headrace_common.core.errors import HeadraceError, NotFound, Rejected, UnsupportedVersion
from headrace_common.core.moments import iso_of
from headrace_common.core.murmur2 import partitions_for
from headrace_streams.core.formats.lookup import key_of_texts
from headrace_streams.core.state.changelog import Progress
from headrace_streams.core.time import holding
from headrace_streams.plan.compare import TOPIC, names_of
from headrace_streams.plan.reset import Standing
from headrace_streams.stores import NotListening, Stores
from headrace_streams.upkeep import Facts, facts_of, shown_time

_TIMEOUT_MS: Final = 3_000


@dataclass(frozen=True, slots=True)
class Place:
    """Where a key is in one store."""

    key: bytes
    partition: int
    rows: Sequence[Mapping[str, Any]] = ()
    note: str = ""
    """Why there are no rows, or the key is a guess."""


def explain(app: str, texts: Sequence[str], store: str | None, servers: Any) -> list[dict[str, Any]]:
    """
    What there is to say of a key, store by store.

    Args:
        texts: one for each of its columns.
        store: only this one.

    Raises:
        NotFound: there is no such app, or no such store.
        Rejected: the one store that is asked for has other keys.
    """
    facts = facts_of(app, servers)
    parts = stores_of(facts.standing)
    if store is not None and store not in parts:
        raise NotFound(
            f"{app} has no store {store!r} that was committed to; there are: {', '.join(parts) or 'none'}, "
            f"as `headrace streams explain {app}` finds them in its changelogs"
        )
    told = []
    with Stores(app, servers, timeout_ms=_TIMEOUT_MS) as stores:
        for name in [store] if store is not None else parts:
            try:
                place = _place(stores, name, texts, facts.standing.changelogs[parts[name]])
            except Rejected as error:
                if store is not None:
                    raise
                told.append({"store": name, "note": str(error)})
                continue
            told.append(explained(facts, name, parts[name], place))
    return told


def stores_of(standing: Standing) -> dict[str, str]:
    """The changelog of each store."""
    return {
        name: changelog.topic
        for changelog, progress in standing.progress.items()
        for name in names_of({what: form for what, form in progress.basis.items() if not what.startswith(TOPIC)})
    }


def _place(stores: Stores, store: str, texts: Sequence[str], partitions: int) -> Place:
    """Workers know the types of keys; where none answers, texts are taken as they are."""
    try:
        key, partition = stores.locate(store, texts)
    except HeadraceError as error:
        if isinstance(error, Rejected) and not isinstance(error, (NotListening, UnsupportedVersion)):
            raise
        key = key_of_texts(store, (), texts)
        (partition,) = partitions_for(pa.array([key], pa.binary()), partitions).tolist()
        return Place(key, partition, note=f"the key is taken as text, as no worker answers: {error}")
    try:
        return Place(key, partition, stores[store].rows(key))
    except HeadraceError as error:
        return Place(key, partition, note=f"its rows could not be read: {error}")


def explained(facts: Facts, store: str, changelog: str, place: Place) -> dict[str, Any]:
    """What there is to say of a key in one store."""
    standing = facts.standing
    part = standing.part_of(changelog)
    task = f"{part}/{place.partition}"
    endpoints = {member.member_id: member.endpoint or None for member in facts.group.members}
    item = next((item for item in facts.group.items if item.id == task), None)
    owner = None if item is None else item.owner
    at = next((tp for tp in standing.progress if tp == (changelog, place.partition)), None)
    progress = Progress() if at is None else standing.progress[at]
    committed_at_ms = None if at is None else facts.committed_at_ms.get(at)
    return {
        "store": store,
        "key": place.key.decode(errors="backslashreplace"),
        "task": task,
        "worker": owner,
        "listens": None if owner is None else endpoints.get(owner),
        "watermark": shown_time(progress.watermarks),
        "held_back_by": holding(progress.watermarks),
        "committed_at": None if committed_at_ms is None else iso_of(committed_at_ms),
        "note": place.note or None,
        "standbys": [
            {
                "worker": one.member_id,
                "listens": endpoints.get(one.member_id),
                "lag": one.lag,
                "warm_up": one.warm_up,
            }
            for one in (() if item is None else item.followers)
        ],
        "reads": [
            {"topic": tp.topic, "position": lag.committed_offset, "end_offset": lag.end_offset, "lag": lag.lag}
            for tp, lag in facts.lags.items()
            if tp.partition == place.partition and standing.reader_of(tp.topic) == part
        ],
        "rows": list(place.rows),
    }
