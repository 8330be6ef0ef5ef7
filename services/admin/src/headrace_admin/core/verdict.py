"""
Decides how the cluster is called, and the one line that says why, whether something is lost, and what to do.

The worst comes first and names its cause; what else is wrong follows in few words. Called by ``engine/statuses``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from headrace_admin.core.ending import describe_ending
from headrace_admin.core.guard import describe_guard
from headrace_admin.core.progress import waits_for
from headrace_admin.core.status import Behind, BrokerStatus, OldIssuer, State, Status, Trouble, Unfinished
from headrace_admin.core.stored import find_full_leaders, not_compacted, short_of_space, stops_consumers
from headrace_admin.core.waiting import clock, describe_hanging, describe_waiting, format_count
from headrace_common.core.ids import NodeId
from headrace_common.core.moments import iso_of

NAMED_MAX = 3
_FROZEN = "topics and leaders cannot be changed, what is led goes on unless a broker has died since"
"""Who is away is not known either: nobody can be fenced."""


def verdict(status: Status) -> tuple[State, str]:
    """The state and the sentence."""
    worst = _unavailable(status)
    if worst and status.restore is not None:
        return State.UNAVAILABLE, _line("unavailable", worst)
    if worst:
        rest = [*_degraded(status, told=True), *_lasting(status)]
        return State.UNAVAILABLE, _line("unavailable", [*worst, *rest])
    degraded = _degraded(status, told=False)
    if degraded:
        return State.DEGRADED, _line("degraded", [*degraded, *_lasting(status)])
    there = ((len(status.brokers), "broker"), (status.topics, "topic"), (status.partitions, "partition"))
    parts = [", ".join(format_count(number, what) for number, what in there)]
    return State.HEALTHY, _line("healthy", [*parts, *_notes(status)])


def _line(state: str, parts: Sequence[str]) -> str:
    return f"{state}: {'; '.join(parts)}"


# --- unavailable ------------------------------------------------------------------------------------------------


def _unavailable(status: Status) -> list[str]:
    if status.restore is not None:
        return [_restored(status.restore)]
    if not status.brokers:
        return ["no broker is registered; start one"]
    if all(b.away for b in status.brokers):
        return [f"no broker serves: {_who_is_away(status.brokers)}; start them, and look into their logs"]
    offline = status.offline
    refusing = [t for t in status.under_min_isr if not t.partition.offline]
    full = find_full_leaders(status.stored, status.leading)
    return [*_offline(status, offline), *_refusing(status, refusing), *full, *_unowned(status)]


def _restored(restore: Unfinished) -> str:
    what = (
        "the metadata was restored from a backup, and no partition has a leader until all brokers' logs were compared"
    )
    if not restore.missing and restore.silent:
        they = "broker" if len(restore.silent) == 1 else "brokers"
        does = "does not say what it has" if len(restore.silent) == 1 else "do not say what they have"
        return f"{what}: {they} {', '.join(map(str, restore.silent))} {does}; look into the log and at the version"
    if not restore.missing:
        return f"{what}; all have joined, this takes a moment"
    which = f"broker{'s' if len(restore.missing) > 1 else ''} {', '.join(map(str, restore.missing))}"
    return f"{what}: it waits for {which}; start {'them' if len(restore.missing) > 1 else 'it'}"


def _unowned(status: Status) -> list[str]:
    kinds = [
        (
            (status.unowned_shards, status.shards, "consumer groups"),
            "their members cannot commit or share work, what was committed is kept",
        ),
        (
            (status.unowned_transaction_shards, status.transaction_shards, "transactions"),
            "they can neither begin nor end, and readers of read_committed wait for those that are open",
        ),
    ]
    told = [(_without_coordinator(*number), harm) for number, harm in kinds if number[0]]
    whys = [f": {_why_unowned(status)}", *([""] * len(told))]
    return [f"{what}{why}; {harm}" for (what, harm), why in zip(told, whys, strict=False)]


def _without_coordinator(unowned: int, shards: int, of_what: str) -> str:
    verb = "has" if unowned == 1 else "have"
    return f"{unowned:,} of {format_count(shards, 'shard')} of {of_what} {verb} no coordinator"


def _why_unowned(status: Status) -> str:
    away = [n.key.id for n in status.coordinators if n.fenced]
    if not status.coordinators:
        return "none is registered; start one"
    if away:
        they = "coordinator" if len(away) == 1 else "coordinators"
        return f"{they} {', '.join(map(str, away[:NAMED_MAX]))} {'is' if len(away) == 1 else 'are'} away; start one"
    return "the controller gives them one; if that lasts, look into its log"


def _offline(status: Status, offline: Sequence[Trouble]) -> list[str]:
    if not offline:
        return []
    what = f"{format_count(len(offline), 'partition')} ({_named(offline)}) {_have(offline)} no leader"
    needed = {b for t in offline for b in _who_may_lead(t)}
    away = [b for b in status.brokers if b.away and b.node.key.id in needed]
    if away:
        return [
            f"{what} because {_who_is_away(away)}; start {_it(away)}, and what was acknowledged is served again; "
            f"{_without(status, offline, away)}"
        ]
    if any(b.away for b in status.brokers):
        away = [b for b in status.brokers if b.away]
        return [f"{what}, and {_who_is_away(away)}; start {_it(away)}"]
    accept = f"`headrace partition elect {_one(offline)} --unclean --yes`"
    return [
        f"{what} although all brokers are there: what they hold is damaged or incomplete; look at `headrace broker "
        f"describe`, bring the data back, or accept the loss: {accept}"
    ]


def _without(status: Status, offline: Sequence[Trouble], away: Sequence[BrokerStatus]) -> str:
    """What can be done if those who may lead never return, by the first partition."""
    t = offline[0]
    alive = {b.node.key.id for b in status.brokers if not b.away}
    if not alive.intersection(t.partition.replicas):
        return "no other broker has a copy"
    p = t.partition
    kind = "without-missing" if alive.intersection({*p.isr, *p.elr, *p.last_known_elr}) else "unclean"
    return (
        f"if {_it_will(away)} not come back, `headrace partition elect {t} --{kind} --yes` gives up what only "
        f"{'it' if len(away) == 1 else 'they'} had"
    )


def _it_will(things: Sequence[object]) -> str:
    return "it will" if len(things) == 1 else "they will"


def _who_may_lead(t: Trouble) -> Iterable[NodeId]:
    p = t.partition
    return p.isr or p.elr or p.last_known_elr or p.replicas


def _refusing(status: Status, refusing: Sequence[Trouble]) -> list[str]:
    if not refusing:
        return []
    t = refusing[0]
    what = (
        f"{format_count(len(refusing), 'partition')} ({_named(refusing)}) {_refuse(refusing)} writes with acks=all: "
        f"{len(t.partition.isr)} in sync of {t.min_isr} that min.insync.replicas asks for{_because(status, refusing)}"
    )
    return [f"{what}; reads go on and nothing is lost; {_comes_back(status, refusing)}"]


# --- degraded ---------------------------------------------------------------------------------------------------


def _degraded(status: Status, *, told: bool) -> list[str]:
    """``told``: something worse was said, which explained who is away."""
    parts: list[str] = []
    behind = [t for t in status.under_replicated if not t.partition.offline and not t.under_min_isr]
    if behind:
        parts.append(_behind(status, behind, told=told))
    if recovering := status.recovering:
        parts.append(
            f"{format_count(len(recovering), 'partition')} ({_named(recovering)}) {_are(recovering)} led from a "
            "replica that may have lost committed records, since an operator or setting allowed it; check what was "
            "read last"
        )
    away = [b for b in status.brokers if b.away]
    if status.stalled:
        parts.append(_stalled(status, named=bool(behind) or told))
    elif away and not behind and not told:
        parts.append(
            f"{_who_is_away(away)}; nothing depends on {_it(away)}; start {_it(away)}, or remove {_it(away)} "
            f"with `headrace broker decommission {away[0].node.key.id}`"
        )
    if status.controller is None:
        parts.append(f"no controller is active: {_FROZEN}; start one")
    elif not status.store_reachable:
        parts.append(
            f"etcd cannot be reached, or runs and has lost its data: {_FROZEN}; start etcd, or restore a backup and "
            "restart no controller before"
        )
    full = short_of_space(status.stored, status.leading)
    return [
        *parts,
        *full,
        *describe_hanging(status.waiting),
        *not_compacted(status.stored),
        *stops_consumers(status.stored),
        *map(_old_issuer, status.old_issuers),
        *_unreached(status.behind),
        *describe_ending(status.ending),
    ]


def _old_issuer(issuer: OldIssuer) -> str:
    what = f"nobody could read the keys of issuer {issuer.alias} since {iso_of(issuer.confirmed_ms)}"
    then = "its tokens are refused" if issuer.refused else "30 days after that its tokens are refused"
    return f"{what}, and {then}; the log of the active controller says why"


def _unreached(behind: Sequence[Behind]) -> list[str]:
    """Named are the first; what was taken back may go on there."""
    if not behind:
        return []
    named = ", ".join(f"{one.key.role.value} {one.key.id} since {iso_of(one.since_ms)}" for one in behind[:NAMED_MAX])
    more = f" and {len(behind) - NAMED_MAX} more" if len(behind) > NAMED_MAX else ""
    return [
        f"changes of access do not reach {named}{more}: what was taken back counts there as before; look into the log "
        "there, and start it again"
    ]


def _stalled(status: Status, *, named: bool) -> str:
    """``named``: who is away was said before."""
    present = {b.node.key.id for b in status.brokers if not b.away}
    awaited = {i for t in status.stalled for i in waits_for(t.partition, present)}
    away = [b for b in status.brokers if b.node.key.id in awaited]
    gone = sorted(awaited - {b.node.key.id for b in away})
    who = _brokers(sorted(awaited))
    number = len(status.stalled)
    verb = "waits" if number == 1 else "wait"
    what = f"{format_count(number, 'partition')} on the move ({_named(status.stalled)}) {verb}"
    hint = f"`headrace partition cancel {_one(status.stalled)}` goes back to the replicas before"
    if gone:
        return f"{what} for {who}, {'which is' if len(awaited) == 1 else 'of which some are'} not registered; {hint}"
    since = "" if named else f"{_who_is_away(away)}; "
    return f"{since}{what} for {who}; start {_it(away)}, or {hint}"


def _behind(status: Status, behind: Sequence[Trouble], *, told: bool) -> str:
    shapes = Counter((len(t.partition.isr), len(t.partition.replicas) - len(t.partition.adding)) for t in behind)
    (have, of), _ = min(shapes.items(), key=lambda item: (-item[1], item[0]))
    number = len(behind)
    what = f"{format_count(number, 'partition')} {_have(behind)} {have} of {of} replicas in sync"
    if len(shapes) > 1:
        what = f"{format_count(number, 'partition')} {_have(behind)} too few replicas in sync, most {have} of {of}"
    if told:
        return what
    safe = "" if status.recovering else "nothing is lost; "
    return f"{what}{_because(status, behind)}; {safe}{_comes_back(status, behind)}"


def _because(status: Status, troubles: Sequence[Trouble]) -> str:
    missing = {b for t in troubles for b in t.missing}
    away = [b for b in status.brokers if b.away and b.node.key.id in missing]
    known = {b.node.key.id for b in status.brokers}
    gone = sorted(missing - known)
    reasons = [_who_is_away(away)] if away else []
    if gone:
        reasons.append(f"{_brokers(gone)} {'is' if len(gone) == 1 else 'are'} not registered any more")
    if not reasons:
        return f" because {_brokers(sorted(missing))} {'is' if len(missing) == 1 else 'are'} behind" if missing else ""
    return f" because {' and '.join(reasons)}"


def _comes_back(status: Status, troubles: Sequence[Trouble]) -> str:
    missing = {b for t in troubles for b in t.missing}
    away = [b for b in status.brokers if b.away and b.node.key.id in missing]
    if away:
        one = away[0].node.key.id
        catches = "it catches up by itself" if len(away) == 1 else "they catch up by themselves"
        return (
            f"{catches} when {_brokers([b.node.key.id for b in away])} {'returns' if len(away) == 1 else 'return'}; "
            f"if not, `headrace broker decommission {one}` gives its replicas to others"
        )
    if missing - {b.node.key.id for b in status.brokers}:
        return "`headrace cluster rebalance --execute` gives their replicas to others"
    if missing:
        return "they catch up by themselves; if they do not, look at their disks and `headrace broker list`"
    return "lower min.insync.replicas with `headrace topic set`, or give the topic more replicas"


# --- notes and words --------------------------------------------------------------------------------------------


def _notes(status: Status) -> list[str]:
    notes: list[str] = []
    if status.reassigning:
        notes.append(f"{format_count(status.reassigning, 'partition')} on the move")
    if drained := [b.node.key.id for b in status.brokers if b.node.drained]:
        undrain = f"`headrace broker undrain {drained[0]}` ends that"
        notes.append(f"{_brokers(drained)} {'is' if len(drained) == 1 else 'are'} drained, {undrain}")
    return [*notes, *_lasting(status)]


def _lasting(status: Status) -> list[str]:
    """What is said whatever the state is."""
    return [*describe_waiting(status.waiting), *describe_guard(status.guard)]


def _who_is_away(away: Sequence[BrokerStatus]) -> str:
    times = {b.away_since_ms for b in away}
    verb = "is" if len(away) == 1 else "are"
    since = next(iter(times)) if len(times) == 1 else max((t for t in times if t is not None), default=None)
    when = "" if since is None else f" since {clock(since)}"
    return f"{_brokers([b.node.key.id for b in away])} {verb} away{when}"


def _brokers(ids: Sequence[NodeId]) -> str:
    shown = ", ".join(map(str, ids[:NAMED_MAX])) + (f" and {len(ids) - NAMED_MAX} more" if len(ids) > NAMED_MAX else "")
    return f"broker {shown}" if len(ids) == 1 else f"brokers {shown}"


def _named(troubles: Sequence[Trouble]) -> str:
    shown = ", ".join(str(t) for t in troubles[:NAMED_MAX])
    return shown if len(troubles) <= NAMED_MAX else f"{shown}, ..."


def _one(troubles: Sequence[Trouble]) -> str:
    return str(troubles[0])


def _have(things: Sequence[object]) -> str:
    return "has" if len(things) == 1 else "have"


def _are(things: Sequence[object]) -> str:
    return "is" if len(things) == 1 else "are"


def _refuse(things: Sequence[object]) -> str:
    return "refuses" if len(things) == 1 else "refuse"


def _it(things: Sequence[object]) -> str:
    return "it" if len(things) == 1 else "them"
