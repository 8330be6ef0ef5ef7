"""
Decides where a group goes on when its offsets are reset; ``engine/resets`` asks what it needs and carries it out.

A plan never leaves a log: a position that lies outside is moved to the nearer end, and the plan says so. Nothing here
knows names of members or asks anybody.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from headrace_admin.core.lag import Bounds
from headrace_common.core.errors import Rejected, UnknownTopicOrPartition, unknown_topic
from headrace_common.core.ids import TopicPartition

PARTITIONS_MAX: Final = 10_000
_NAMED_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Earliest:
    """The first record that is there."""


@dataclass(frozen=True, slots=True)
class Latest:
    """One past the last record that is visible to all: what a transaction that is open now writes comes after it."""


@dataclass(frozen=True, slots=True)
class Current:
    """What is committed; where nothing is, the end."""


@dataclass(frozen=True, slots=True)
class At:
    """This offset in every partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """So many records from the committed offset; negative: back."""

    count: int


@dataclass(frozen=True, slots=True)
class Since:
    """The first record at or after a time; the end where none is that young."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Given:
    """An offset for each partition."""

    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)


Target: TypeAlias = Earliest | Latest | Current | At | ShiftBy | Since | Given


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of a partition before it is reset."""

    partition: TopicPartition
    bounds: Bounds
    committed: int | None
    """None: nothing is committed."""
    since: int | None = None
    """For ``Since``: the offset of the record; None: none is that young."""
    stable_end: int | None = None
    """Where readers of read_committed are stopped by an open transaction; None: at the end of the log."""

    @property
    def latest(self) -> int:
        """From where on all is new to every reader: what an open transaction has written is not visible yet."""
        return self.bounds.end if self.stable_end is None else min(self.stable_end, self.bounds.end)


@dataclass(frozen=True, slots=True)
class Planned:
    """A partition's position before and after."""

    partition: TopicPartition
    old: int | None
    new: int
    bounds: Bounds
    note: str | None = None
    """Why it is not exactly what was asked for."""


def choose_partitions(
    named: Iterable[tuple[str, Collection[int]]],
    counts: Mapping[str, int],
    committed: Collection[TopicPartition],
    target: Target,
) -> list[TopicPartition]:
    """
    Which partitions are reset, by topic and number.

    Args:
        named: topics with numbers of partitions; no numbers: all of the topic. None at all: all that is committed, or
            all that ``Given`` names.
        counts: partitions of each topic that exists.

    Raises:
        Rejected: nothing would be reset, or too much, or both names and ``Given``.
        UnknownTopicOrPartition: one does not exist.
    """
    wanted = {TopicPartition(t, n) for t, numbers in named for n in numbers or range(_known(counts, t))}
    if isinstance(target, Given):
        if wanted and wanted != set(target.offsets):
            raise Rejected("offsets per partition say themselves what is reset; name no topics beside them")
        wanted = set(target.offsets)
    elif not wanted:
        wanted = {p for p in committed if p.topic in counts}
    if not wanted:
        raise Rejected("the group has committed nothing; name the topics whose offsets are to be set")
    if len(wanted) > PARTITIONS_MAX:
        raise Rejected(f"{len(wanted)} partitions are more than the {PARTITIONS_MAX} of one reset; name fewer topics")
    for p in wanted:
        count = _known(counts, p.topic)  # a number below 0 must not keep the name from being looked up
        if not 0 <= p.partition < count:
            raise UnknownTopicOrPartition(f"topic {p.topic!r} has no partition {p.partition}; it has 0 to {count - 1}")
    return sorted(wanted)


def _known(counts: Mapping[str, int], topic: str) -> int:
    count = counts.get(topic)
    if count is None:
        raise unknown_topic(topic)
    return count


def plan(target: Target, found: Iterable[Found]) -> list[Planned]:
    """
    The new position of each partition, in the order of ``found``.

    Raises:
        Rejected: a shift where nothing is committed, or an offset below 0.
    """
    states = list(found)
    if isinstance(target, ShiftBy):
        _check_committed(states)
    return [_planned(state, *_wanted(target, state)) for state in states]


def _check_committed(states: Iterable[Found]) -> None:
    bare = [str(s.partition) for s in states if s.committed is None]
    if bare:
        more = f" and {len(bare) - _NAMED_MAX} more" if len(bare) > _NAMED_MAX else ""
        raise Rejected(
            f"nothing is committed at {', '.join(bare[:_NAMED_MAX])}{more}, so there is nothing to shift from; name "
            "other partitions, or reset these to earliest or latest first"
        )


def _wanted(target: Target, state: Found) -> tuple[int, str | None]:
    """The offset that was asked for, and what to say of it."""
    match target:
        case Earliest():
            return state.bounds.start, None
        case Latest():
            return state.latest, _open_from(state)
        case Current():
            if state.committed is None:
                return state.latest, _open_from(state) or "nothing is committed: to the end"
            return state.committed, None
        case At(offset):
            return _not_negative(offset), None
        case ShiftBy(count):
            assert state.committed is not None, "this was checked"
            return state.committed + count, None
        case Since():
            if state.since is None:
                return state.bounds.end, "no record is that young: to the end"
            return state.since, None
        case Given(offsets):
            return _not_negative(offsets[state.partition]), None


def _open_from(state: Found) -> str | None:
    return None if state.latest == state.bounds.end else f"a transaction is open from {state.latest} on: to there"


def _not_negative(offset: int) -> int:
    if offset < 0:
        raise Rejected(f"offset {offset} is below 0; an offset is the number of the next record to read")
    return offset


def _planned(state: Found, wanted: int, note: str | None) -> Planned:
    start, end = state.bounds.start, state.bounds.end
    new = min(max(wanted, start), end)
    if wanted < start:
        note = f"{wanted} is below the first record: to {start}"
    elif wanted > end:
        note = f"{wanted} is beyond the end: to {end}"
    return Planned(state.partition, state.committed, new, state.bounds, note)
