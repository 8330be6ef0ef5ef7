"""
Carries out what ``core`` decides, until etcd can be started; called by ``__main__``.

One loop: look at all others, decide, write down, act. Facts change only in this loop and are on disk before the
others can see them, so what a look tells is never older than the facts it is judged with.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final

from headrace_common.runtime.clock import Clock
from headrace_controller.etcd_member.core.etcd_file import Founding
from headrace_controller.etcd_member.core.facts import Facts, Phase, UnreadableFacts
from headrace_controller.etcd_member.core.moving import elsewhere, hidden, is_alone, is_known, must_move
from headrace_controller.etcd_member.core.rendezvous import Join, Promise, Renew, Site, StartNew, Step, Wait, next_step
from headrace_controller.etcd_member.core.replacement import (
    Add,
    Remove,
    StartExisting,
    behind,
    initial_cluster,
    next_change,
    others,
    second_of_two,
)
from headrace_controller.etcd_member.core.roster import Peer, Roster
from headrace_controller.etcd_member.core.sights import Member, Report, Running, Sight, Silent, report_of
from headrace_controller.etcd_member.ports import ClusterUnusable, Lookout, RunningCluster, Volume

LOOK_EVERY_MS: Final = 300
CHANGE_EVERY_MS: Final = 1_000
SAY_EVERY_MS: Final = 5_000
LINGER_LOOKS: Final = 7

_log = logging.getLogger(__name__)


class WrongVolume(Exception):
    """The volume is another member's; starting on it would give one member's vote to two."""


@dataclass(frozen=True, slots=True)
class World:
    """What the program is given to act with."""

    volume: Volume
    lookout: Lookout
    clock: Clock
    cluster_at: Callable[[tuple[str, ...]], AbstractAsyncContextManager[RunningCluster]]
    """The running cluster behind these client addresses."""
    new_volume_id: Callable[[], str]


class EtcdMember:
    """One member, until its etcd is started."""

    def __init__(self, site: Site, world: World) -> None:
        self._site = site
        self._world = world
        self._facts = Facts(site.me.name, "")
        self._said: tuple[str, float] | None = None

    def report(self) -> Report:
        """What others may see now."""
        return report_of(self._site.cluster, self._facts)

    def wake(self) -> Founding | None:
        """
        Read what the volume remembers; how to start, if that is known. None: ``move`` decides where there is data, else
        ``found``.

        Raises:
            WrongVolume: it belongs to another member.
            OSError: the volume cannot be read or written.
        """
        volume = self._world.volume
        has_data = volume.has_data()
        try:
            facts = volume.load()
        except UnreadableFacts as error:
            _log.warning("what the volume remembers cannot be read and is forgotten: %s", error)
            facts = None
        if facts is None:
            facts = self._blank()
            if not has_data:
                volume.store(facts)
        if facts.member != self._site.me.name:
            raise WrongVolume(
                f"this volume belongs to {facts.member}, not to {self._site.me.name}; mount the right one, or empty it"
            )
        self._facts = facts
        if not has_data:
            return None
        if facts.phase is not Phase.STARTED:
            self._remember(facts.at(Phase.STARTED))
        return None if must_move(self._site, facts) else self._start_with_data()

    @property
    def has_data(self) -> bool:
        """Whether etcd has run on the volume."""
        return self._world.volume.has_data()

    def _start_with_data(self) -> Founding:
        _log.info("data is there: etcd starts with it")
        members = [(p.name, p.url) for p in (self._site.me, *self._site.others)]
        return Founding("existing", self._site.cluster, members)

    async def move(self) -> Founding:
        """How to start with data, as soon as the cluster knows where this member is; waits as long as it takes."""
        while True:
            sights = await self._look_around()
            plain = await self._look_at(hidden(self._site, self._facts, sights))
            sights |= {name: sight for name, sight in plain.items() if isinstance(sight, Running)}
            if is_alone(sights):
                return self._start_with_data()
            why = "" if is_known(self._site, sights) else await self._get_known(sights)
            if not why:
                self._remember(self._facts.known_at(self._site.me.url))
                return self._start_with_data()
            await self._wait(why, CHANGE_EVERY_MS)

    async def _get_known(self, sights: Mapping[str, Sight]) -> str:
        """Have the cluster know this member by its address; why it does not, if so."""
        running = {name: sight for name, sight in sights.items() if isinstance(sight, Running)}
        try:
            async with self._world.cluster_at(_client_urls(running)) as cluster:
                moved = elsewhere(await cluster.members(), [self._site.me])
                if moved is not None:
                    await self._readdress(cluster, *moved)
        except ClusterUnusable as error:
            return self._why_not_moved(sights, str(error))
        return ""

    def _why_not_moved(self, sights: Mapping[str, Sight], said: str) -> str:
        silent = [f"{name} ({sight.why})" for name, sight in sorted(sights.items()) if isinstance(sight, Silent)]
        if self._site.me.tls:
            why = "without TLS, and get to know the other one while most of them run. If all are stopped, start all so"
        else:
            why = "with TLS, and those that have it answer nobody without: start this one with certificates again"
        return (
            f"the others know this member by an address {why}. Not running: {'; '.join(silent) or 'nobody'}. "
            f"Asked, they said: {said or 'nothing'}"
        )

    async def _readdress(self, cluster: RunningCluster, member: Member, peer: Peer) -> None:
        _log.warning("the cluster gets to know %s by another address", peer.name, extra={"url": peer.url})
        await cluster.readdress(member, peer.url)

    async def found(self) -> Founding:
        """How to start without data, as soon as that is decided; waits as long as it takes."""
        while True:
            sights = await self._look_around()
            step = next_step(self._site, self._facts, sights)
            if isinstance(step, StartNew):
                return await self._start_new(step.roster)
            founding = await self._carry_out(step, sights)
            if founding is not None:
                return founding

    async def _carry_out(self, step: Step, sights: dict[str, Sight]) -> Founding | None:
        match step:
            case Promise(roster):
                self._remember(self._facts.promise(roster))
                _log.info("all members are there without data: a new cluster", extra={"token": roster.token})
            case Renew(why):
                _log.warning("starting over as a member that was lost: %s", why)
                self._remember(self._blank())
            case Wait(why):
                await self._wait(why, LOOK_EVERY_MS)
            case Join():
                return await self._join(sights)
        return None

    async def _start_new(self, roster: Roster) -> Founding:
        if self._facts.phase is not Phase.NEW:
            self._remember(self._facts.decide(roster))
            await self._linger()
        _log.info("etcd starts as a member of a new cluster", extra={"token": roster.token})
        return Founding("new", roster.token, [(m.peer.name, m.peer.url) for m in roster.members])

    async def _linger(self) -> None:
        """Stay until the others have seen the decision, within reason: they find out from our etcd as well."""
        for _ in range(LINGER_LOOKS):
            sights = await self._look_around()
            if all(not isinstance(sight, Report) or sight.decided for sight in sights.values()):
                return
            await self._world.clock.sleep_ms(LOOK_EVERY_MS)

    async def _join(self, sights: dict[str, Sight]) -> Founding | None:
        """One turn of changing members; None to look again."""
        running = {name: sight for name, sight in sights.items() if isinstance(sight, Running)}
        try:
            async with self._world.cluster_at(_client_urls(running)) as cluster:
                return await self._take_turn(cluster, [p for p in self._site.others if p.name in running])
        except ClusterUnusable as error:
            two = second_of_two(self._site, self._facts, running)
            if two is not None:
                return self._start_existing(two)
            there = ", ".join(sorted(running))
            missing = ", ".join(sorted(p.name for p in self._site.others if p.name not in running)) or "nobody"
            await self._wait(
                f"no data here, and a cluster runs ({there}): it can take this member in again once a quorum of it "
                f"is up and connected; not running: {missing}. It said: {error}",
                CHANGE_EVERY_MS,
            )
            return None

    async def _take_turn(self, cluster: RunningCluster, running: Sequence[Peer]) -> Founding | None:
        name = self._site.me.name
        holder = await cluster.claim(name)
        if holder != name:
            await self._wait(f"{holder} is being replaced; one member at a time", CHANGE_EVERY_MS)
            return None
        try:
            founding, wait = await self._change(cluster, running)
        finally:
            await _release(cluster, name)
        if wait:
            await self._wait(wait, CHANGE_EVERY_MS)
        return founding

    async def _change(self, cluster: RunningCluster, running: Sequence[Peer]) -> tuple[Founding | None, str]:
        members = await cluster.members()
        moved = elsewhere(members, running)
        if moved is not None:  # one that was alone has had nobody to tell it
            await self._readdress(cluster, *moved)
            return None, ""
        change = next_change(self._site, self._facts, members)
        if isinstance(change, Add):
            if self._facts.phase is not Phase.ADDING:
                self._remember(self._facts.at(Phase.ADDING).known_at(self._site.me.url))
                _log.info("adding this member to the running cluster")
            # Where one becomes two there is no quorum from here on, until this one has started.
            change = next_change(self._site, self._facts, await cluster.add(self._site.me.url))
        match change:
            case Remove(member):
                _log.warning(
                    "the cluster's entry for this member is of a volume that is lost: removing it",
                    extra={"member": f"{member.id:x}", "member_name": member.name},
                )
                await cluster.remove(member)
            case StartExisting(confirmed):
                late = behind(confirmed, await self._look_at(others(self._site, confirmed)))
                if late:
                    return None, f"added to the cluster; {', '.join(late)} must be up and know of that before it starts"
                return self._start_existing(confirmed), ""
            case Wait(why):
                return None, why
        return None, ""

    def _start_existing(self, members: tuple[Member, ...]) -> Founding:
        _log.info("etcd starts as a new member of the running cluster")
        return Founding("existing", self._site.cluster, initial_cluster(self._site, members))

    async def _look_around(self) -> dict[str, Sight]:
        return await self._look_at(self._site.others)

    async def _look_at(self, peers: Sequence[Peer]) -> dict[str, Sight]:
        sights = await asyncio.gather(*(self._world.lookout.look(peer) for peer in peers))
        return {peer.name: sight for peer, sight in zip(peers, sights, strict=True)}

    async def _wait(self, why: str, ms: int) -> None:
        """Say what is waited for when that changes, and every few seconds."""
        now = self._world.clock.monotonic_ms()
        if self._said is None or self._said[0] != why or now - self._said[1] >= SAY_EVERY_MS:
            _log.info("waiting: %s", why)
            self._said = (why, now)
        await self._world.clock.sleep_ms(ms)

    def _blank(self) -> Facts:
        return Facts(self._site.me.name, self._world.new_volume_id())

    def _remember(self, facts: Facts) -> None:
        """On disk first, then visible."""
        self._world.volume.store(facts)
        self._facts = facts


async def _release(cluster: RunningCluster, name: str) -> None:
    try:
        await cluster.release(name)
    except ClusterUnusable as error:
        _log.info("the turn to change members ends by itself in a minute: %s", error)


def _client_urls(running: Mapping[str, Running]) -> tuple[str, ...]:
    """Where those that run can be asked: what they say themselves of where clients reach them."""
    found: dict[str, None] = {}
    for name in sorted(running):
        for sight in running.values():
            for member in sight.members:
                if member.name == name:
                    found.update(dict.fromkeys(member.client_urls))
    return tuple(found)
