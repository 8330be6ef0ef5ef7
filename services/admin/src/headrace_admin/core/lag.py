"""
How far a group is behind in one partition: records that are there and not read yet, and how old the first of them is.

``engine/groups`` fills it in with what coordinators and brokers say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a log holds: offsets from ``start`` up to, but not including, ``end``."""

    start: int
    end: int

    def __post_init__(self) -> None:
        assert 0 <= self.start <= self.end, "a log does not end before it starts"


@dataclass(frozen=True, slots=True)
class Committed:
    """A group's position in one partition."""

    offset: int
    """The next record to be read."""
    leader_epoch: int = -1
    """-1: not known."""
    metadata: str = ""
    committed_at_ms: int | None = None
    """Wall clock."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The member that reads a partition."""

    member_id: str
    client_id: str


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition of a group; what is not known is None, and ``error`` says why."""

    partition: TopicPartition
    committed: Committed | None
    """None: nothing is committed."""
    bounds: Bounds | None = None
    lag_ms: int | None = None
    """Age of the first record that is not read; 0 where there is none."""
    owner: Owner | None = None
    error: HeadraceError | None = None

    @property
    def lag(self) -> int | None:
        """Records that are there and not read yet."""
        if self.committed is None or self.bounds is None:
            return None
        return max(0, self.bounds.end - max(self.committed.offset, self.bounds.start))

    @property
    def first_unread(self) -> int | None:
        """Where the first of them is; None: there is none, or it is not known."""
        if self.committed is None or self.bounds is None or not self.lag:
            return None
        return max(self.committed.offset, self.bounds.start)


def lags(
    committed: Mapping[TopicPartition, Committed],
    owners: Mapping[TopicPartition, Owner],
    bounds: Mapping[TopicPartition, Bounds | HeadraceError],
) -> list[PartitionLag]:
    """All partitions that are committed or held by a member, by topic and number; ages are not known yet."""
    found = []
    for partition in sorted({*committed, *owners}):
        said = bounds[partition]
        here, wrong = (None, said) if isinstance(said, HeadraceError) else (said, None)
        one = PartitionLag(partition, committed.get(partition), here, owner=owners.get(partition), error=wrong)
        found.append(one)
    return found


def age_ms(lag: PartitionLag, written_ms: int | None, now_ms: int) -> int | None:
    """
    Age of the first unread record, which was written at ``written_ms`` (None: not known). A clock that is ahead of
    ours makes no negative age.
    """
    if lag.lag is None:
        return None
    if lag.lag == 0:
        return 0
    return None if written_ms is None else max(0, now_ms - written_ms)


def total(lags_: Iterable[PartitionLag]) -> int:
    """Records that are not read yet, as far as it is known."""
    return sum(one.lag or 0 for one in lags_)
