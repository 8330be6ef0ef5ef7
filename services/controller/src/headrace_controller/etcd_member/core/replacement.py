"""
Decides how a member without data gets its place in a running cluster.

The old entry of this member is removed, a new one added, one change of the cluster at a time; etcd is started as part
of an existing cluster with exactly the members that the cluster has. An added entry is this volume's own only if the
volume remembers that it is being added (``Phase.ADDING``, on disk before the entry is made): any other was made for a
volume that is lost, may have voted, and is removed as well. Called by ``program``, in turn with other lost members,
with a list of members that a quorum has confirmed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace_controller.etcd_member.core.facts import Facts, Phase
from headrace_controller.etcd_member.core.rendezvous import Site, Wait
from headrace_controller.etcd_member.core.roster import Peer
from headrace_controller.etcd_member.core.sights import Member, Running, Sight, Silent


@dataclass(frozen=True, slots=True)
class Remove:
    """Take ``member`` off the cluster."""

    member: Member


@dataclass(frozen=True, slots=True)
class Add:
    """Remember that this volume is being added, then add it."""


@dataclass(frozen=True, slots=True)
class StartExisting:
    """Start etcd as part of the cluster of ``members``, which counts this one."""

    members: tuple[Member, ...]


Change = Remove | Add | StartExisting | Wait


def next_change(site: Site, facts: Facts, members: Sequence[Member]) -> Change:
    """The next thing to do; ``members`` as a quorum knows them."""
    mine = [m for m in members if m.name == site.me.name or any(map(site.me.is_at, m.peer_urls))]
    starting = [m for m in members if not m.name and m not in mine]
    if starting:
        where = ", ".join(url for m in starting for url in m.peer_urls)
        return Wait(f"another member was added and has not started yet ({where}); one change at a time")
    if not mine:
        return Add()
    awaited = {r.member_id(site.me.name) for r in facts.promises if facts.phase is not Phase.ADDING}
    if any(m.id in awaited and not m.client_urls for m in mine):
        return Wait("the cluster still waits for the first start of this member; its members will tell so in a moment")
    ours = len(mine) == 1 and not mine[0].name and mine[0].peer_urls == (site.me.url,)
    if ours and facts.phase is Phase.ADDING:
        return StartExisting(tuple(members))
    return Remove(mine[0])


def second_of_two(site: Site, facts: Facts, running: Mapping[str, Running]) -> tuple[Member, ...] | None:
    """
    The members, where one has become two by adding this one: then there is no quorum until this one has started, and
    the single other can confirm nothing. What it lists is true all the same: it was the whole quorum of that change and
    had no other member whose entry this one could be taken for.
    """
    if facts.phase is not Phase.ADDING or len(running) != 1:
        return None
    [(name, sight)] = running.items()
    ours = [m for m in sight.members if not m.name and m.peer_urls == (site.me.url,)]
    there = [m for m in sight.members if m.name == name]
    return sight.members if len(sight.members) == 2 and ours and there else None


def others(site: Site, members: Sequence[Member]) -> tuple[Peer, ...]:
    """The other members, as they can be looked at."""
    return tuple(Peer(m.name, url) for m in members for url in m.peer_urls[:1] if url != site.me.url)


def behind(members: Sequence[Member], sights: Mapping[str, Sight]) -> list[str]:
    """
    Those of the others (by name) that may list other members than ``members`` when they are asked next.

    An etcd that joins takes its id from the list of any of them, unconfirmed: one that still lists the old entry of
    this member would bring an id back to life that has voted. One without data, waiting for its turn, lists nothing.
    """
    ids = {m.id for m in members}
    old = {n for n, s in sights.items() if isinstance(s, Running) and {m.id for m in s.members} != ids}
    return sorted(old | {n for n, s in sights.items() if isinstance(s, Silent)})


def initial_cluster(site: Site, members: Sequence[Member]) -> tuple[tuple[str, str], ...]:
    """Name and address of each member, as etcd wants to be told; an entry without a name is the one of this member."""
    return tuple((m.name or site.me.name, url) for m in members for url in m.peer_urls)
