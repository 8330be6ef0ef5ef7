"""
What a sink's task does, in which order, so that each record is written as its guarantee says, or is a dead letter.

Records are written as they come and committed in groups. Where a group fails, the target is opened again, which drops
what was not committed and tells what was. Then the group is tried again: without records that are known to be bad, or
in halves that are committed one by one. A record of which only a failure is known becomes a dead letter together with
one that could be written, not alone: a target that takes nothing is no reason to give records up. Only where opening is
a transaction of the target, a record that fails alone several times, with the target opened in between, is bad.

The runtime does what is asked and says what came of it. Where something fails, the rest of a list of effects is not
done. Times are monotonic milliseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from headrace_common.core.ids import TopicPartition
from headrace_connect.core.errors import Fault
from headrace_connect.core.pieces import Group, Piece, Row, bad_rows, ends, good_rows, halves, has_good
from headrace_connect.core.retrying import Retrying
from headrace_connect.core.sink_steps import (
    Assigned,
    Close,
    CloseAsked,
    Commit,
    CommitGroup,
    Committed,
    Effect,
    End,
    Event,
    Failed,
    FlushAsked,
    GroupCommitted,
    Lost,
    Open,
    Opened,
    Polled,
    Prepare,
    Prepared,
    Rejoin,
    Revoked,
    Seek,
    SendDead,
    Settle,
    Settled,
    Show,
    Step,
    Ticked,
    Write,
)

DRAINED_MS: Final = 20.0
"""What is written is committed so soon where there is nothing more for now."""
REJOINS_MAX: Final = 100
"""So often in a row a member joins anew because the target has a higher epoch."""
REJOIN_MS: Final = 200.0
ALONE_MAX: Final = 3
"""So often a record fails alone, where the target keeps positions, before it is bad without other proof."""


@dataclass(frozen=True, slots=True)
class SinkRules:
    """When to commit, how long to try, and what becomes of bad records."""

    keeps_positions: bool
    """``Guarantee.POSITIONS``: the target decides where reading begins."""
    tolerates: bool = False
    """``errors.tolerance=all``."""
    interval_ms: float = 1_000
    rows_max: int = 10_000
    bytes_max: int = 64 << 20
    drained: bool = True
    """Whether to commit as soon as there is nothing more for now."""
    retry_timeout_ms: float = 60_000
    retry_delay_ms_max: float = 60_000


class Phase(Enum):
    """Where a task is."""

    WORKING = "working"
    """Records are read and written."""
    OPENING = "opening"
    COMMITTING = "committing"
    REDOING = "redoing"
    """A group that has failed is tried again; nothing is read."""
    WAITING = "waiting"
    """The target is away."""
    ENDED = "ended"


@dataclass(slots=True)
class SinkCommit:
    """One task."""

    rules: SinkRules
    phase: Phase = Phase.WORKING
    epochs: dict[TopicPartition, int] = field(default_factory=dict)
    """The partitions that are held."""
    group: Group = field(default_factory=list)
    """Written since the last commit."""
    bad: dict[Row, str] = field(default_factory=dict)
    """Records that are to be dead letters."""
    token: bytes | None = None
    """Of a prepared transaction that nobody has decided yet."""
    since_ms: float | None = None
    drained: bool = False
    progressed: bool = False
    """Whether anything was ever committed."""
    _next: dict[TopicPartition, int] = field(default_factory=dict)
    """Where reading is."""
    _known: dict[TopicPartition, int] = field(default_factory=dict)
    """What the target has, as it said last, and what was committed since."""
    _shown: dict[TopicPartition, int] = field(default_factory=dict)
    """What this member has committed as the group's offsets."""
    _again: list[Group] = field(default_factory=list)
    """What has failed, the next one last."""
    _proved: bool = False
    """Whether the target has taken a record since the last failure began."""
    _to_open: set[TopicPartition] = field(default_factory=set)
    _closing: set[TopicPartition] = field(default_factory=set)
    _ending: bool = False
    _retrying: Retrying | None = None
    _due_ms: float = 0.0
    _rejoins: int = 0
    _alone: int = 0

    def handle(self, event: Event) -> list[Effect]:
        """Apply ``event`` and return what must now be done, in order."""
        if self.phase is Phase.ENDED:
            return []
        match event:
            case Assigned(partitions, epoch):
                self.epochs |= dict.fromkeys(partitions, epoch)
                self._to_open |= set(partitions)
                return self._open() if self.phase is Phase.WORKING else []
            case Revoked(partitions):
                return self._revoke(partitions)
            case Lost(partitions):
                return self._drop(partitions)
            case Opened(positions):
                return self._have_opened(positions)
            case Polled():
                return self._take(event)
            case Prepared(token):
                self.token = token
                return [Commit(ends(self._work()), token)]
            case Committed():
                return self._have_committed()
            case Settled():
                self.token = None
                return self._commit_group() if self.phase is Phase.COMMITTING else self._go_on()
            case GroupCommitted():
                return self._finish()
            case Failed():
                return self._failed(event)
            case Ticked(now_ms):
                return self._tick(now_ms)
            case FlushAsked():
                return self._commit() if self.phase is Phase.WORKING and self.group else []
            case CloseAsked():
                return self._close()

    def due_ms(self) -> float | None:
        """When ``Ticked`` is to be said; None: nothing waits."""
        if self.phase is Phase.WAITING:
            return self._due_ms
        if self.phase is not Phase.WORKING or self.since_ms is None:
            return None
        return self.since_ms + (DRAINED_MS if self.drained and self.rules.drained else self.rules.interval_ms)

    @property
    def reads(self) -> bool:
        """Whether records are wanted now."""
        return self.phase is Phase.WORKING

    @property
    def room(self) -> int:
        """How many bytes of records may be read before there is a commit; 1 at least."""
        return max(1, self.rules.bytes_max - self._size())

    @property
    def tried(self) -> tuple[int, int]:
        """Good records of the commit that is under way, and bad ones."""
        work = self._work()
        bad = len(bad_rows(work, self.bad)) if self.bad else 0
        return sum(piece.count for piece in work) - bad, bad

    # --- records --------------------------------------------------------------------------------------------------

    def _take(self, event: Polled) -> list[Effect]:
        pieces = [Piece.whole(records) for records in event.records if records.partition in self.epochs]
        moved = [piece for piece in pieces if piece.count or self._next.get(piece.partition) != piece.end]
        for piece in moved:
            self._next[piece.partition] = piece.end
            self.bad |= {(piece.records.number, index): why for index, why in piece.records.bad.items()}
        self.drained = event.drained
        dead = bad_rows(moved, self.bad)
        if dead and not self.rules.tolerates:
            return self._end(End(Fault.DATA, next(iter(dead.values()))))
        if self.phase is not Phase.WORKING:
            if moved:  # it was polled together with what has failed
                self._again.insert(0, moved)
            return []
        if moved and self.since_ms is None:
            self.since_ms = event.now_ms
        self.group += moved
        return [*self._writes(moved), *self._tick(event.now_ms)]

    def _writes(self, group: Group) -> list[Effect]:
        return [Write(piece) for piece in group if has_good([piece], self.bad)]

    def _tick(self, now_ms: float) -> list[Effect]:
        if self.phase is Phase.WAITING:
            return self._open() if now_ms >= self._due_ms else []
        if self.phase is not Phase.WORKING or not self.group:
            return []
        rows = sum(piece.count for piece in self.group)
        due_ms = self.due_ms()
        full = rows >= self.rules.rows_max or self._size() >= self.rules.bytes_max
        return self._commit() if full or (due_ms is not None and now_ms >= due_ms) else []

    def _size(self) -> int:
        return sum(piece.records.bytes for piece in self.group)

    # --- commits --------------------------------------------------------------------------------------------------

    def _work(self) -> Group:
        """What is being tried."""
        return self._again[-1] if self._again else self.group

    def _commit(self) -> list[Effect]:
        self.phase = Phase.COMMITTING
        work = self._work()
        dead = bad_rows(work, self.bad)
        if dead and self.rules.keeps_positions:
            return [Prepare(dead)]
        commit = Commit(ends(work))
        return [SendDead(dead), commit] if dead else [commit]

    def _have_committed(self) -> list[Effect]:
        assert self.phase is Phase.COMMITTING, "there was a commit"
        if has_good(self._work(), self.bad):
            self._proved = True
        if self.token is not None:
            return [Settle(self.token)]
        return self._commit_group()

    def _commit_group(self) -> list[Effect]:
        return [CommitGroup(ends(self._work()))]

    def _finish(self) -> list[Effect]:
        """The group that was tried is done with."""
        if self.rules.keeps_positions:
            self._known |= ends(self._work())
            self._shown |= ends(self._work())
        for row in bad_rows(self._work(), self.bad):
            del self.bad[row]
        if self._again:
            self._again.pop()
        else:
            self.group, self.since_ms = [], None
        self._retrying, self._rejoins, self._alone, self.progressed = None, 0, 0, True
        return self._go_on()

    def _go_on(self) -> list[Effect]:
        """With the next group that has failed, or with new records."""
        if self._to_open:
            return self._open()
        if self._again:
            self.phase = Phase.REDOING
            writes = self._writes(self._again[-1])
            return [*writes, *self._commit()]
        self.phase = Phase.WORKING
        self._proved = False
        if not self.group:
            self.bad = {}
        effects: list[Effect] = []
        if self._closing:
            effects += self._drop(self._closing)
        if self._ending:
            effects += self._close()
        return effects

    # --- the target -----------------------------------------------------------------------------------------------

    def _open(self) -> list[Effect]:
        self._to_open &= self.epochs.keys()
        if not self._to_open:
            return [Settle(self.token)] if self.token is not None else self._go_on()
        self.phase = Phase.OPENING
        return [Open({partition: self.epochs[partition] for partition in sorted(self._to_open)})]

    def _have_opened(self, positions: Mapping[TopicPartition, int]) -> list[Effect]:
        """What the target has is not written again; where it is elsewhere, reading goes there."""
        opened, self._to_open = self._to_open, set()
        self._again = [group for group in (_behind(group, positions) for group in self._again) if group]
        seeks: dict[TopicPartition, int] = {}
        for partition in sorted(opened & positions.keys()):
            known, position = self._known.get(partition), positions[partition]
            if known is None or not known <= position <= self._next.get(partition, known):
                self._forget({partition})
                self._next[partition] = seeks[partition] = position
            self._known[partition] = position
        effects: list[Effect] = [Seek(seeks)] if seeks else []
        there = {partition: positions[partition] for partition in sorted(opened & positions.keys())}
        hidden = {
            partition: position for partition, position in there.items() if self._shown.get(partition) != position
        }
        if hidden:  # whoever has committed that did not live to show it, or did not hear of it
            self._shown |= hidden
            effects.append(Show(hidden))
        if self.token is not None:
            return [*effects, Settle(self.token)]
        return [*effects, *self._go_on()]

    # --- failures -------------------------------------------------------------------------------------------------

    def _failed(self, event: Failed) -> list[Effect]:
        if event.taken:
            return self._rejoin(event)
        if event.step is Step.GROUP and event.fault is Fault.FENCED:
            return self._finish()  # others have the partitions, and will write this again
        if not self._again and self.group:
            self._again, self.group, self.since_ms = [self.group], [], None
        effects = self._drop(self._closing) if self._closing else []
        self._to_open = set(self.epochs)
        if self._ending:
            return [*effects, *self._leave()]
        if event.retriable:
            return [*effects, *self._wait(event)]
        if event.step not in (Step.WRITE, Step.COMMIT) or not self.rules.tolerates:
            return [*effects, *self._end(End(event.fault, event.reason))]
        if not self._again:  # what has failed was given up
            return [*effects, *self._open()]
        if event.refused:
            self.bad |= event.refused
            return [*effects, *self._open()]
        return [*effects, *self._narrow(event)]

    def _wait(self, event: Failed) -> list[Effect]:
        if self._retrying is None:
            self._retrying = Retrying(self.rules.retry_timeout_ms, self.rules.retry_delay_ms_max)
        wait_ms = self._retrying.wait_ms(event.now_ms, event.after_ms)
        if wait_ms is None:
            return self._end(End(Fault.WORLD, event.reason))
        self.phase, self._due_ms = Phase.WAITING, event.now_ms + wait_ms
        return []

    def _narrow(self, event: Failed) -> list[Effect]:
        """Nobody knows which records are bad: try halves, until one is alone."""
        group = self._again.pop()
        good = good_rows(group, self.bad)
        if not good:  # even without records it fails
            return self._end(End(event.fault, event.reason))
        if len(good) > 1:
            first, second = halves(group, self.bad)
            self._again += [second, first]
            return self._open()
        if self._is_alone(group):
            self._alone += 1
            if self._alone < ALONE_MAX:
                self._again.append(group)
                return self._open()
            self._proved = True
        self.bad[good[0]] = event.reason
        while not self._proved and not has_good(group, self.bad):
            if not self._again:
                return self._end(End(event.fault, f"the target takes no record: {event.reason}"))
            group = [*group, *self._again.pop()]
        self._again.append(group)
        return self._open()

    def _is_alone(self, group: Group) -> bool:
        """Whether the group's one good record is all that there is, and nothing else can prove that it is bad."""
        others = any(has_good(one, self.bad) for one in self._again) or bad_rows(group, self.bad)
        return self.rules.keeps_positions and not self._proved and not others

    def _rejoin(self, event: Failed) -> list[Effect]:
        self._rejoins += 1
        if self._rejoins > REJOINS_MAX:
            return self._end(End(Fault.WORLD, event.reason))
        held = sorted(self.epochs)
        self._forget(set(held))
        self.epochs, self._to_open = {}, set()
        self.phase = Phase.WORKING
        settle: list[Effect] = [Settle(self.token)] if self.token is not None else []
        return [Close(held), *settle, Rejoin()]

    # --- ends -----------------------------------------------------------------------------------------------------

    def _revoke(self, partitions: Collection[TopicPartition]) -> list[Effect]:
        if self.phase is Phase.WORKING and self.group:
            self._closing |= set(partitions)
            return self._commit()
        return self._drop(partitions)

    def _drop(self, partitions: Collection[TopicPartition]) -> list[Effect]:
        gone = sorted(set(partitions) & self.epochs.keys())
        self._closing -= set(gone)
        self._forget(set(gone))
        for partition in gone:
            del self.epochs[partition]
        self._to_open &= self.epochs.keys()
        return [Close(gone)] if gone else []

    def _forget(self, partitions: Collection[TopicPartition]) -> None:
        """They are not written, and are read again by whoever holds them."""
        for partition in partitions:
            self._next.pop(partition, None)
            self._known.pop(partition, None)
            self._shown.pop(partition, None)
        self.group = [piece for piece in self.group if piece.partition not in partitions]
        kept = ([piece for piece in group if piece.partition not in partitions] for group in self._again)
        self._again = [group for group in kept if group]
        if not self.group:
            self.since_ms = None

    def _close(self) -> list[Effect]:
        self._ending = True
        if self.phase is Phase.WORKING and self.group:
            return self._commit()
        if self.phase in (Phase.WORKING, Phase.WAITING):
            return self._leave()
        return []

    def _leave(self) -> list[Effect]:
        held = sorted(self.epochs)
        return [*([Close(held)] if held else []), *self._end(End())]

    def _end(self, end: End) -> list[Effect]:
        self.phase = Phase.ENDED
        return [end]


def _begin(piece: Piece) -> int:
    return piece.records.offsets[piece.start] if piece.count else piece.end


def _behind(group: Group, positions: Mapping[TopicPartition, int]) -> Group:
    kept: Group = []
    for piece in group:
        position = positions.get(piece.partition)
        left = piece if position is None else piece.behind(position)
        if left is not None:
            kept.append(left)
    return kept
