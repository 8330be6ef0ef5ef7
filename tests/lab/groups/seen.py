"""
What the consumers of a cluster of the lab hold, hear and commit: looked at in their own state.

A consumer is a node: whatever group its code opens belongs to the process that runs there now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from headrace._core.commits import CommitEffect, SendCommit
from headrace._core.group_messages import BeatAnswered, Joined, Kind, Partitions, Reported, Synced, Told
from headrace._core.group_messages import Event as MemberEvent
from headrace.aio._committing import Committing
from headrace.aio._group import Group
from headrace.records import Committed
from headrace_common.core.ids import TopicPartition
from headrace_lab.loop import NODE, Node


def _ignore(_: str) -> None:
    """Until somebody wants to know."""


@dataclass(eq=False)
class Membership:
    """One consumer's, from its opening to the end of its process."""

    node: Node
    group: Group
    kept_since: dict[TopicPartition, float] = field(default_factory=dict)
    """Since when it holds what it holds, in virtual seconds."""
    given_up: dict[TopicPartition, float] = field(default_factory=dict)
    taken_away: dict[TopicPartition, float] = field(default_factory=dict)
    """When an assignment took a partition away last."""
    asked_since: dict[int, tuple[Committed, float | None]] = field(default_factory=dict)
    """Of each commit, by the identity of its position: since when its partition was held."""
    epochs: dict[str, int] = field(default_factory=dict)
    """What it heard last, by its member id."""

    @property
    def taken(self) -> Partitions:
        """What it holds, beginning with the assignment under way: found without what the product says of it."""
        holdings = self.group.core.holdings
        busy = holdings._busy
        return holdings.held | busy.partitions if busy is not None and busy.kind is Kind.ASSIGN else holdings.held

    @property
    def group_id(self) -> str:
        """Of which it is a member."""
        return self.group.settings.group_id or ""


@dataclass(eq=False)
class Seen:
    """Of one cluster."""

    changed: Callable[[str], None] = _ignore
    """Called with a group whose members may hold something else."""
    tell: Callable[[str], None] = _ignore
    """Called with what does not hold."""
    deleted: Collection[str] = ()
    """Groups whose generations may begin anew; epochs never do."""
    memberships: dict[Group, Membership] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    _by_committing: dict[Committing, Membership] = field(default_factory=dict)

    def alive(self, group_id: str) -> list[Membership]:
        """Of a group, in processes that run, or are paused."""
        return [one for one in self.memberships.values() if one.node.alive and one.group_id == group_id]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While this runs all groups that consumers of this process open are looked at."""
        opened, told, begun, closed = Group.__init__, Group.tell, Group.begin_job, Group.close
        committed, carried = Committing.commit, Committing._carry_out

        def __init__(group: Group, *rest: Any) -> None:
            opened(group, *rest)
            one = self.memberships[group] = Membership(NODE.get(), group)
            self._by_committing[group.committing] = one

        def tell(group: Group, event: MemberEvent, core: Any = None) -> None:
            one, held = self.memberships[group], group.core.holdings.held
            if isinstance(event, Told) and core in (None, group.core):
                self._heard(one, event)
            told(group, event, core)
            self._held(one, held, event)
            self.changed(one.group_id)

        def begin_job(group: Group) -> Any:
            job = begun(group)
            if job is not None:
                self.changed(self.memberships[group].group_id)
            return job

        async def close(group: Group) -> None:
            self.memberships.pop(group, None)
            await closed(group)

        def commit(
            committing: Committing, offsets: Mapping[TopicPartition, Committed], deadline_ms: float | None
        ) -> Any:
            one = self._by_committing[committing]
            one.asked_since.update({id(at): (at, one.kept_since.get(tp)) for tp, at in offsets.items()})
            return committed(committing, offsets, deadline_ms)

        def _carry_out(committing: Committing, effects: list[CommitEffect]) -> None:
            self._sends(self._by_committing[committing], effects)
            carried(committing, effects)

        with ExitStack() as patches:
            patches.enter_context(patch.object(Group, "__init__", __init__))
            patches.enter_context(patch.object(Group, "tell", tell))
            patches.enter_context(patch.object(Group, "begin_job", begin_job))
            patches.enter_context(patch.object(Group, "close", close))
            patches.enter_context(patch.object(Committing, "commit", commit))
            patches.enter_context(patch.object(Committing, "_carry_out", _carry_out))
            yield

    def _heard(self, one: Membership, event: Told) -> None:
        """A member hears an answer: its generation or epoch never falls."""
        answer = event.answer
        match answer:
            case Reported():
                member_id, epoch = answer.member_id, answer.epoch
            case Joined():
                member_id, epoch = answer.member_id, answer.generation
            case Synced() | BeatAnswered():
                member_id, epoch = one.group.core.member_id, answer.generation
            case _:
                return
        anew = one.group_id in self.deleted and not isinstance(answer, Reported)
        if answer.error is not None or epoch <= 0 or anew:
            return
        seen = one.epochs.get(member_id, 0)
        if epoch < seen:
            self.tell(f"epoch-fell: {member_id} hears {answer} after {seen}")
        one.epochs[member_id] = epoch

    def _held(self, one: Membership, before: frozenset[TopicPartition], event: MemberEvent) -> None:
        now, holdings = asyncio.get_running_loop().time(), one.group.core.holdings
        for tp in before - holdings.held:
            one.kept_since.pop(tp, None)
            one.given_up[tp] = now
        one.kept_since.update(dict.fromkeys(holdings.held - before, now))
        if holdings.target is not None and isinstance(event, Told):
            one.taken_away.update(dict.fromkeys(holdings.held - holdings.target, now))

    def _sends(self, one: Membership, effects: list[CommitEffect]) -> None:
        """A commit leaves: of what was given up since it was asked for, nothing is committed."""
        now = asyncio.get_running_loop().time()
        for effect in effects:
            for tp, at in effect.offsets.items() if isinstance(effect, SendCommit) else ():
                _, since = one.asked_since[id(at)]
                if since != one.kept_since.get(tp) and one.given_up.get(tp) != now:
                    self.tell(f"commit-of-the-past: {one.node.name} commits {tp} {at}, which it gave up meanwhile")
