"""Which apps a cluster has."""

from __future__ import annotations

import pytest
from libs.streams.tests.kit.upkeep import COMPACTED, MemoryUpkeep

from headrace_streams.core.state.changelog import is_remark, remark
from headrace_streams.plan.known import Known
from headrace_streams.runtime.listing import AppFound, find_apps


@pytest.fixture
def upkeep() -> MemoryUpkeep:
    upkeep = MemoryUpkeep()
    upkeep.groups_ = {"counts": 2, "counts.eu": 0, "copy": 1, "crawlers": 3, "readers": 1}
    upkeep.add("counts.lines.changelog", 1, COMPACTED)
    upkeep.add("counts.by-word.repartition")
    upkeep.add("counts.eu.lines.changelog", 1, COMPACTED)
    return upkeep


async def test_an_app_is_known_by_its_topics_or_by_what_it_has_committed(upkeep: MemoryUpkeep) -> None:
    upkeep.work = {"counts": False, "copy": True, "crawlers": False}
    assert await find_apps(upkeep) == [
        AppFound("copy", 1, []),
        AppFound("counts", 2, ["counts.lines.changelog", "counts.by-word.repartition"]),
        AppFound("counts.eu", 0, ["counts.eu.lines.changelog"]),
    ]


async def test_a_topic_that_only_has_such_a_name_makes_no_app(upkeep: MemoryUpkeep) -> None:
    upkeep.add("readers.lines.changelog", 1, {})
    assert [one.app for one in await find_apps(upkeep)] == ["counts", "counts.eu"]


async def test_of_two_whose_names_fit_a_topic_it_is_whose_group_says_so(upkeep: MemoryUpkeep) -> None:
    upkeep.add("counts.eu.words.changelog", 1, COMPACTED)
    upkeep.known_["counts"] = Known("counts", True, 2, frozenset({"lines", "eu.words"}))
    owners = {topic: one.app for one in await find_apps(upkeep) for topic in one.topics}
    assert owners["counts.eu.words.changelog"] == "counts"
    assert owners["counts.eu.lines.changelog"] == "counts.eu"


async def test_who_has_topics_is_not_asked_for_positions(upkeep: MemoryUpkeep) -> None:
    """Which is one more call for each."""
    asked: list[str] = []

    async def has_event_times(group: str) -> bool:
        asked.append(group)
        return False

    upkeep.work = {"counts": True, "crawlers": True}
    upkeep.has_event_times = has_event_times  # type: ignore[method-assign]
    await find_apps(upkeep)
    assert asked == ["crawlers"]


@pytest.mark.parametrize(("text", "of"), [(remark({}), True), (remark({"lines": 5}), True), ("", False), ("x", False)])
def test_event_times_beside_a_position_are_known(text: str, of: bool) -> None:
    assert is_remark(text) is of
