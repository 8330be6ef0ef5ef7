"""Which apps a cluster has. Called by ``headrace streams list``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace_streams.plan.known import Known, is_internal
from headrace_streams.plan.reset import owner_of
from headrace_streams.ports import Upkeep
from headrace_streams.runtime.resetting import made_by_streams


@dataclass(frozen=True, slots=True)
class AppFound:
    """An app, as the cluster sees it."""

    app: str
    members: int
    topics: Sequence[str]
    """That it has made for itself."""


async def find_apps(upkeep: Upkeep) -> list[AppFound]:
    """
    By name. An app is a group to whose name internal topics belong; one without such topics is known by what its tasks
    commit, from its first commit on.
    """
    groups = await upkeep.groups()
    known: dict[str, Known] = {}
    topics: dict[str, list[str]] = {}
    for topic, listed in (await upkeep.topics()).items():
        fitting = [group for group in groups if is_internal(topic, group)]
        if len(fitting) > 1:
            known |= {group: await upkeep.known(group) for group in fitting if group not in known}
            fitting = [group for group in fitting if known[group].has(topic)] or fitting
        owner = owner_of(topic, fitting)
        if owner is not None and made_by_streams(topic, listed.configs):
            topics.setdefault(owner, []).append(topic)
    for group in await upkeep.work_groups():
        if group not in topics and await upkeep.has_event_times(group):
            topics[group] = []
    return [AppFound(app, groups.get(app, 0), topics[app]) for app in sorted(topics)]
