"""
Etcd members in a modelled world (``services.controller.tests.kit.etcd_world``): first installs in any order, crashes
between any two steps, volumes lost. A seed replays a failure. The same worlds find what breaks the rules on purpose.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from services.controller.tests.kit.etcd_world import Broken, EtcdWorld, live

from headrace_controller.etcd_member import program
from headrace_controller.etcd_member.core import rendezvous, replacement
from headrace_controller.etcd_member.core.facts import Facts, Phase
from headrace_controller.etcd_member.core.rendezvous import Site, StartNew, Step, Wait
from headrace_controller.etcd_member.core.roster import Roster
from headrace_controller.etcd_member.core.sights import Member, Sight

FOUND_WITHIN = 100


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logging.getLogger(program.__name__).setLevel(logging.CRITICAL)


@pytest.mark.parametrize("first", range(0, 120, 30))
async def test_three_members_form_one_cluster_whatever_happens(first: int) -> None:
    for seed in range(first, first + 30):
        world = await live(seed, 3)
        assert world.settled


@pytest.mark.parametrize(("size", "seeds"), [(1, 30), (2, 20), (5, 5)])
async def test_so_do_other_numbers(size: int, seeds: int) -> None:
    for seed in range(seeds):
        assert (await live(seed, size)).settled


@pytest.mark.parametrize(("size", "seeds"), [(3, 40), (5, 5)])
async def test_members_get_tls_whatever_happens(size: int, seeds: int) -> None:
    for seed in range(seeds):
        world = await live(seed, size, gets_tls=True)
        assert all(pod.peer.tls for pod in world.pods)


@pytest.mark.parametrize("seed", [26, 36, 44, 68, 1158])
async def test_what_went_wrong_once(seed: int) -> None:
    """A list of members that was old gave an id back to a lost volume; a turn that could not be given back."""
    assert (await live(seed, 3)).settled


async def test_the_worlds_are_eventful() -> None:
    """What is tested happens: members replaced, rosters given up for others, whole lives without either."""
    worlds = [await live(seed, 3) for seed in range(40)]
    replaced = sum(any(kind == "remove" for c in w.clusters.values() for kind, _ in c.log) for w in worlds)
    changed = sum(any(len(_promises(pod.disk.load())) > 1 for pod in w.pods) for w in worlds)
    assert 5 <= replaced <= 38
    assert changed >= 2


def _promises(facts: Facts | None) -> tuple[Roster, ...]:
    return () if facts is None else facts.promises


def starts_without_the_others(site: Site, facts: Facts, sights: Mapping[str, Sight]) -> Step:
    step = rendezvous.next_step(site, facts, sights)
    hesitant = isinstance(step, Wait) and "did not agree" in step.why
    return StartNew(facts.promises[-1]) if hesitant else step


def forgets_that_it_agreed(site: Site, facts: Facts, sights: Mapping[str, Sight]) -> Step:
    known = facts if facts.phase is Phase.NEW else replace(facts, promises=facts.promises[-1:])
    step = rendezvous.next_step(site, known, sights)
    return (
        rendezvous.Join() if isinstance(step, StartNew) and rendezvous.Running in map(type, sights.values()) else step
    )


def takes_any_entry_for_its_own(site: Site, facts: Facts, members: Sequence[Member]) -> replacement.Change:
    return replacement.next_change(site, facts.at(Phase.ADDING), members)


@pytest.mark.parametrize(
    ("where", "name", "broken", "first"),
    [
        (program, "next_step", starts_without_the_others, 0),
        (program, "next_step", forgets_that_it_agreed, 0),
        (program, "next_change", takes_any_entry_for_its_own, 700),
        (Roster, "token", property(lambda roster: "the same for every volume"), 0),
    ],
    ids=["no-agreement", "no-memory", "any-entry", "one-token"],
)
async def test_a_broken_rule_is_found(
    where: Any, name: str, broken: Callable[..., Any], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, broken)
    for seed in range(first, first + FOUND_WITHIN):
        try:
            await live(seed, 3, patience=1_500)
        except Broken:
            return
    pytest.fail(f"{FOUND_WITHIN} worlds did not notice")


async def test_a_member_whose_peers_are_away_waits_although_nobody_has_data_in_sight() -> None:
    """The volume of one is lost while the others are down: it must not found a cluster, nor ever give up."""
    world = EtcdWorld(3, Random(5))
    world.calm = True
    try:
        while not world.settled:
            await world.step()
        for pod in world.pods:
            world._crash(pod)
        world._lose(world.pods[1])
        world._schedule(world.pods[1])
        for _ in range(300):
            if world._gates:
                world._release()
            for _ in range(7):
                await asyncio.sleep(0)
            world._look_after_programs()
            assert world.pods[1].state == "waiting"
        assert world.pods[1].disk.load() is not None
        while not world.settled:
            await world.step()
    finally:
        await world.close()


@pytest.mark.parametrize(
    ("where", "name", "broken"),
    [
        (program, "must_move", lambda site, facts: False),
        (program, "is_alone", lambda sights: True),
        (program, "is_known", lambda site, sights: True),
        (program, "hidden", lambda site, facts, sights: ()),
        (program, "elsewhere", lambda members, peers: None),
        (Facts, "known_at", lambda facts, url: facts),
    ],
    ids=["starts-at-once", "thinks-it-is-alone", "thinks-it-is-known", "sees-none-without", "tells-nobody", "forgets"],
)
async def test_a_broken_rule_of_getting_tls_is_found(
    where: Any, name: str, broken: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, broken)
    for seed in range(FOUND_WITHIN):
        try:
            await live(seed, 3, patience=1_500, gets_tls=True)
        except Broken:
            return
    pytest.fail(f"{FOUND_WITHIN} worlds did not notice")
