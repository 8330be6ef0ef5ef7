"""
Decides how a cluster gets to know its members by addresses with TLS; their data stays.

Members of before know each other by ``http://`` addresses, which stand in etcd's data: who comes up with TLS is not
reached there any more. So a member with such data has a quorum of the others know it by its new address before its etcd
starts, one member after the other. Meanwhile one that speaks TLS reaches those that do not yet, and they do not reach
it; messages go both ways over what it opens. Called by ``program`` with what others show now.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from headrace_controller.etcd_member.core.facts import Facts
from headrace_controller.etcd_member.core.rendezvous import Site
from headrace_controller.etcd_member.core.roster import Peer
from headrace_controller.etcd_member.core.sights import Member, Report, Running, Sight


def must_move(site: Site, facts: Facts) -> bool:
    """
    Whether the cluster has to be told another address before the etcd of a member with data starts. One alone needs to
    be reached by nobody; who joins it tells its address.
    """
    return bool(site.others) and facts.tls != site.me.tls


def elsewhere(members: Sequence[Member], peers: Collection[Peer]) -> tuple[Member, Peer] | None:
    """The first member that the cluster knows by another address than its peer has, with that peer."""
    known = ((m, p) for m in members for p in peers if m.name == p.name or any(map(p.is_at, m.peer_urls)))
    return next(((m, p) for m, p in known if m.peer_urls != (p.url,)), None)


def hidden(site: Site, facts: Facts, sights: Mapping[str, Sight]) -> tuple[Peer, ...]:
    """
    Where those others may be seen that did not answer: without TLS, as this one was until now. Never once it has moved:
    what is told without TLS, anybody may have told.
    """
    if not site.me.tls or facts.tls:
        return ()
    return tuple(p.in_plain for p in site.others if not isinstance(sights[p.name], Running | Report))


def is_known(site: Site, sights: Mapping[str, Sight]) -> bool:
    """One that runs lists this member at its new address: a quorum has agreed on it, though there may be none now."""
    running = (sight for sight in sights.values() if isinstance(sight, Running))
    return any(m.name == site.me.name and m.peer_urls == (site.me.url,) for sight in running for m in sight.members)


def is_alone(sights: Mapping[str, Sight]) -> bool:
    """All others wait without data: they are to join this one, which nobody else can tell of."""
    return all(isinstance(sight, Report) for sight in sights.values())
