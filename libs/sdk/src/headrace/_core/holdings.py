"""
What a group member's application holds, what it is to hold, and the one job that gets it nearer.

Both membership machines own one of these. Jobs are done by the application at its next step, one at a time: what it
holds changes only there, so nothing is taken away while it handles records. The target may change at any moment; a job
that nobody has begun is then simply another one.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace._core.group_messages import NOTHING, Job, Kind, LookUp, Partitions
from headrace.records import Committed
from headrace_common.core.ids import TopicPartition


class Holdings:
    """See the module's text. Invariant: ``held`` changes only through ``did``."""

    def __init__(self) -> None:
        self.held: Partitions = NOTHING
        self.target: Partitions | None = None
        """None: nothing is known; what is held is kept."""
        self.lost = False
        """All that is held belongs to others by now; the application has to be told."""
        self._busy: Job | None = None
        self._version = 0
        self._asked = -1
        self._offsets: Mapping[TopicPartition, Committed | None] | None = None

    @property
    def taken(self) -> Partitions:
        """What it holds, or begins to hold at this moment: nobody else may have it."""
        busy = self._busy
        return self.held | busy.partitions if busy is not None and busy.kind is Kind.ASSIGN else self.held

    @property
    def claimed(self) -> Partitions:
        """What it holds or was promised."""
        return self.taken | (self.target or NOTHING)

    @property
    def to_release(self) -> bool:
        """Whether something is held that must go."""
        return self.lost or bool(self.target is not None and self.taken - self.target)

    @property
    def settled(self) -> bool:
        """Whether it holds what it is to hold."""
        return self._busy is None and not self.lost and self.target in (None, self.held)

    def aim(self, target: Partitions) -> None:
        """From now on this is to be held."""
        if target != self.target:
            self.target = target
            self._forget_offsets()

    def lose(self) -> None:
        """Everything is somebody else's."""
        self.target = None
        self._forget_offsets()
        self.lost = bool(self.held) or self._busy is not None

    def _forget_offsets(self) -> None:
        self._version += 1
        self._offsets = None

    def job(self) -> Job | None:
        """What the application has to do now."""
        if self._busy is not None:
            return None
        if self.lost:
            return Job(Kind.LOSE, self.held)
        if self.target is None:
            return None
        if gone := self.held - self.target:
            return Job(Kind.REVOKE, gone)
        if (fresh := self.target - self.held) and self._offsets is not None:
            return Job(Kind.ASSIGN, fresh, {tp: self._offsets[tp] for tp in sorted(fresh)})
        return None

    def begin(self) -> Job | None:
        """The application does it now; ``did`` follows. None: nothing is due, or the last is not done yet."""
        job = self.job()
        if job is not None:
            self._busy = job
        return job

    def did(self, job: Job) -> None:
        """The job is done."""
        assert job == self._busy, "jobs are done one at a time"
        self._busy = None
        self.held = self.held | job.partitions if job.kind is Kind.ASSIGN else self.held - job.partitions
        if not self.held:
            self.lost = False
        if job.kind is not Kind.ASSIGN and self.target is not None and job.partitions & self.target:
            self._forget_offsets()  # it comes back, and may have been committed meanwhile

    def look_up(self) -> LookUp | None:
        """Where new partitions start, if that has to be asked now; asked once per target."""
        fresh = NOTHING if self.target is None else self.target - self.held
        if not fresh or self._offsets is not None or self._asked == self._version:
            return None
        self._asked = self._version
        return LookUp(self._version, fresh)

    def looked_up(self, version: int, offsets: Mapping[TopicPartition, Committed | None]) -> None:
        """The answer; one for an older target is nothing."""
        if version == self._version:
            self._offsets = offsets

    def not_looked_up(self, version: int) -> bool:
        """It failed: ask again when somebody asks. True: it mattered."""
        if version != self._version:
            return False
        self._asked = -1
        return True
