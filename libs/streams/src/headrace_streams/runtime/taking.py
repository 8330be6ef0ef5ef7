"""
Takes tasks over: whoever had one before writes nothing for it any more, its state is here as of the last commit, and it
goes on where that one was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

from headrace.records import Committed, TopicPartition
from headrace.work_types import GivenItem
from headrace_common.core.errors import FencedWriter, HeadraceError, NotFound
from headrace_streams.config import StreamsConfig
from headrace_streams.core.errors import NotAllowed
from headrace_streams.core.state.changelog import Progress, of_remark
from headrace_streams.patience import Patience
from headrace_streams.plan.compare import TOPIC, difference, differing, store_of
from headrace_streams.plan.lost import explain_apart, explain_no_positions
from headrace_streams.ports import Membership, Writer
from headrace_streams.runtime.following import Changelogs, progress_of
from headrace_streams.runtime.owned import Outside, Owned, Spec, no_store


class Differs(NotFound):
    """A task's state and the group's positions are not of the same commit; ``at`` are the group's."""

    def __init__(self, message: str, at: Mapping[TopicPartition, Committed]) -> None:
        super().__init__(message)
        self.at = at


class Taking:
    """How one membership takes its tasks over."""

    def __init__(
        self,
        app: str,
        config: StreamsConfig,
        outside: Outside,
        changelogs: Changelogs,
        membership: Membership,
        writer: Writer,
        *,
        hops: Sequence[TopicPartition],
        resends: bool,
    ) -> None:
        """
        Args:
            hops: the partitions of the app's repartition topics.
            resends: whether the app has tasks that keep nothing but positions: without these they would write again
                what others have counted.
        """
        self._app = app
        self._config = config
        self._outside = outside
        self._changelogs = changelogs
        self._membership = membership
        self._writer = writer
        self._hops = hops
        self._resends = resends
        self._patience = Patience(outside.clock, config.default_api_timeout_ms)
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._marking: asyncio.Task[Mapping[TopicPartition, int]] | None = None

    async def take(self, owned: Owned, given: GivenItem) -> Owned:
        """
        The task, ready to be fed.

        Raises:
            NotAllowed: its state belongs to another program, or to topics that are gone.
            NotFound: its positions are gone.
            Differs: they are not those of its state; or another worker has it by now.
        """
        await self.end(given)
        await self.ends()
        if owned.store is None:
            owned.progress = await self._of_group(owned)
        else:
            try:
                fenced = await self.fence(owned, given)
            except FencedWriter:  # the next epoch ends this
                await self._outside.clock.sleep_ms(self._config.default_api_timeout_ms)
                raise
            of_group = (await self._of_group(owned)).positions
            await self._restore(owned, fenced)
            owned.progress = await self._outside.compute(progress_of, owned.store)
            check_basis(self._app, owned.spec, owned.progress.basis)
            self._check_positions(owned, of_group)
        owned.positions = dict(owned.progress.positions)
        cold = no_store if owned.store is None else owned.store.cold
        await self._outside.compute(owned.task.open, cold, owned.progress.watermarks)
        return owned

    async def end(self, given: GivenItem) -> None:
        """What those who had the task and were put out have left open is decided after this."""
        for transactional_id in given.unended:
            if transactional_id not in self._ending:
                end = self._outside.writers.end(transactional_id)
                self._ending[transactional_id] = asyncio.create_task(end, name=f"end {transactional_id}")
        for transactional_id in given.unended:
            await asyncio.shield(self._ending[transactional_id])
        if given.unended:
            self._membership.report(ended=given.unended)

    async def ends(self) -> Mapping[TopicPartition, int]:
        """
        Offsets in the repartition topics: all rows of those who had tasks before are below. They are found once, when
        what is open of the tasks that are taken first has been ended, and before this writer fences a changelog.
        """
        if self._marking is None:
            self._marking = asyncio.create_task(self._mark(), name="mark repartitions")
        return await asyncio.shield(self._marking)

    async def _mark(self) -> Mapping[TopicPartition, int]:
        for ending in list(self._ending.values()):
            await asyncio.shield(ending)
        return await self._patience.ask(lambda: self._writer.behind(self._hops)) if self._hops else {}

    async def close(self) -> None:
        """Nothing is written after this."""
        if self._marking is not None:
            self._marking.cancel()
            with suppress(asyncio.CancelledError, HeadraceError):
                await self._marking

    async def fence(self, owned: Owned, given: GivenItem) -> int:
        """
        Nobody else writes to the task's changelog after this; where it begins to hold.

        Raises:
            FencedWriter: another has a higher token. If the task is this worker's, it is given a higher one soon, and
                has to be taken again with that.
        """
        changelog = owned.spec.changelog
        assert changelog is not None
        owned.epoch = given.epoch
        try:
            return await self._patience.ask(lambda: self._writer.fence(changelog, given.epoch))
        except FencedWriter:
            self._membership.report(refused={given.id: given.epoch})
            raise

    async def _of_group(self, owned: Owned) -> Progress:
        """The group's positions of a task, where there are any, and the event times beside them."""
        found = await self._patience.ask(lambda: self._outside.reader.committed(owned.spec.partitions))
        there = {tp.topic: at for tp in owned.spec.partitions if (at := found[tp]) is not None}
        remarks = (of_remark(at.metadata) for at in there.values())
        watermarks: dict[str, int] = next((one for one in remarks if one), {})
        return Progress({topic: at.offset for topic, at in there.items()}, watermarks)

    async def _restore(self, owned: Owned, fenced: int) -> None:
        changelog = owned.spec.changelog
        assert changelog is not None
        ends = await self._changelogs.ends([changelog])
        self._changelogs.follow(owned)
        # The fence counts too: ends may be those of a leader that was deposed.
        await self._changelogs.reach(changelog, max(ends[changelog], fenced + 1))
        await self._changelogs.leave(changelog)

    # --- is it the same app? ------------------------------------------------------------------------------------------

    def _check_positions(self, owned: Owned, of_group: Mapping[str, int]) -> None:
        label, kept = owned.spec.label, owned.progress.positions
        said = explain_apart(self._app, label, kept, of_group, self._resends)
        if said is None:
            return
        what, do = said
        other = {topic: at for topic, at in of_group.items() if kept.get(topic) != at}
        if not other:
            raise lost_positions(self._app, label)
        at = {TopicPartition(topic, owned.spec.partition): Committed(at) for topic, at in other.items()}
        raise Differs(f"{what}. {do[0].upper()}{do[1:]}", at)


def check_basis(app: str, spec: Spec, then: Mapping[str, str]) -> None:
    """
    Args:
        then: what the state of a task belongs to, as its changelog says.

    Raises:
        NotAllowed: the program would read its state wrongly, or miss records of a topic that was made anew.
    """
    for what in differing(then, spec.basis):
        if what.startswith(TOPIC):
            raise NotAllowed(
                f"the {what} was deleted and made anew, and the state of task {spec.label} belongs to what was in it: "
                f"{anew(app)}"
            )
        raise NotAllowed(
            f"{difference(what, then, spec.basis)}: give it another name= there, and it begins empty, or headrace "
            f"streams reset {app} --store {store_of(what, spec.basis)}"
        )


def lost_positions(app: str, label: str) -> NotFound:
    """The group has no positions, and there is state that has counted what would be read again."""
    return NotFound(": ".join(explain_no_positions(app, label)))


def anew(app: str) -> str:
    """How to read everything again."""
    return f"to begin anew, headrace streams reset {app}"
