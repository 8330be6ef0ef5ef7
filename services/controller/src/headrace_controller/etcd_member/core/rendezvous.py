"""
Decides how a member without data starts: with a new cluster, in a running one, or not yet.

A new cluster is formed in two steps, as a commit in two phases among all configured members. Each looks at all others,
again and again, and remembers on its volume what it agreed to:

1. Everybody is there and empty: promise the roster of the volumes seen.
2. Everybody has promised the very same roster: it is complete; start with it.

A roster is complete or not, whatever becomes of single members then: who has promised it and learns that somebody
started with it (by the id of the cluster that runs there) starts with it too, also after a crash. A volume that is
lost before that makes another roster; one that is lost after it finds a running cluster to which its new volume has
promised nothing, and takes the way of ``replacement``. Called by ``program`` after each look around, with facts that
have not changed since the look began.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace_controller.etcd_member.core.facts import Facts, Phase
from headrace_controller.etcd_member.core.roster import Enrolled, Peer, Roster
from headrace_controller.etcd_member.core.sights import Report, Running, Sight, Silent


@dataclass(frozen=True, slots=True)
class Site:
    """What a member was configured with."""

    me: Peer
    others: tuple[Peer, ...]
    cluster: str


@dataclass(frozen=True, slots=True)
class Promise:
    """Remember ``roster`` as promised; then look again."""

    roster: Roster


@dataclass(frozen=True, slots=True)
class StartNew:
    """Remember the decision, then start etcd as a member of the new cluster of ``roster``."""

    roster: Roster


@dataclass(frozen=True, slots=True)
class Join:
    """Others have a cluster: get a place in it (``replacement``)."""


@dataclass(frozen=True, slots=True)
class Renew:
    """Data that was on this volume is gone: forget all, as if it were a new volume."""

    why: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again later."""

    why: str


Step = Promise | StartNew | Join | Renew | Wait


def next_step(site: Site, facts: Facts, sights: Mapping[str, Sight]) -> Step:
    """
    What a member does whose data directory is empty.

    Args:
        site: the member.
        facts: what its volume remembers, unchanged since the first of ``sights`` was asked for.
        sights: each other member by its name.
    """
    if facts.phase is Phase.STARTED:
        return Renew("etcd's data is gone from a volume on which it has run")
    if facts.phase is Phase.NEW and facts.promises[-1].url_of(site.me.name) != site.me.url:
        agreed = facts.promises[-1].url_of(site.me.name)
        return Wait(
            f"this volume has agreed to found a cluster at {agreed}; start all members with those addresses once"
        )
    running = {name: sight for name, sight in sights.items() if isinstance(sight, Running)}
    if len({sight.cluster_id for sight in running.values()}) > 1:
        return Wait(f"{_names(running)} run different clusters; only one may go on: see the operations guide")
    if running:
        return _beside_a_cluster(site, facts, running)
    if facts.phase is Phase.NEW:
        return StartNew(facts.promises[-1])
    return _before_any_cluster(site, facts, sights)


def _beside_a_cluster(site: Site, facts: Facts, running: Mapping[str, Running]) -> Step:
    cluster_id = next(iter(running.values())).cluster_id
    roster = next((r for r in facts.promises if r.cluster_id == cluster_id), None)
    if facts.phase is Phase.NEW and roster != facts.promises[-1]:
        return Wait(
            f"{_names(running)} run a cluster that this volume has nothing to do with; it has agreed to found another. "
            f"If theirs is the right one, remove the volume of {site.me.name}"
        )
    if roster is None or facts.phase is Phase.ADDING:
        return Join()
    wanted = roster.member_id(site.me.name)
    listed = [m for sight in running.values() for m in sight.members if m.id == wanted]
    if any(m.client_urls for m in listed):
        has_run = f"{site.me.name} has run in the cluster, and its data is gone"
        return Renew(has_run) if facts.phase is Phase.NEW else Join()
    # a list may be old, or not whole while an etcd starts: that we are not on it is for a quorum to say
    return StartNew(roster) if listed else Join()


def _before_any_cluster(site: Site, facts: Facts, sights: Mapping[str, Sight]) -> Step:
    reports = {name: sight for name, sight in sights.items() if isinstance(sight, Report)}
    decided = {report.promised for report in reports.values() if report.decided}
    complete = next((r for r in facts.promises if r.token in decided), None)
    if complete is not None:
        return StartNew(complete)
    if decided:
        return Wait("the others found a cluster that the volume here is not part of; it joins once that runs")
    silent = {name: sight for name, sight in sights.items() if isinstance(sight, Silent)}
    if silent:
        said = "; ".join(f"{name} ({sight.why})" for name, sight in sorted(silent.items()))
        return Wait(f"no data here, and not all others were seen; missing: {said}")
    here = [Enrolled(site.me, facts.volume), *(Enrolled(p, reports[p.name].volume) for p in site.others)]
    roster = Roster(site.cluster, tuple(sorted(here)))
    if not facts.promises or facts.promises[-1] != roster:
        return Promise(roster)
    hesitant = sorted(name for name, report in reports.items() if report.promised != roster.token)
    if hesitant:
        return Wait(f"all are there, without data; {', '.join(hesitant)} did not agree yet to found the cluster")
    return StartNew(roster)


def _names(running: Mapping[str, Running]) -> str:
    return ", ".join(sorted(running))
