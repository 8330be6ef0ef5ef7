"""
How much of something the cluster may have: transactional ids, groups. One per kind and process; the shards ask it.

A process knows its own shards only, so it holds them to their part of the cluster's limit, all together: names spread
over shards by chance, and all ids of an owner are in one. What is there when the limit is reached, or came with shards
that were taken over, goes on; only what is new is refused.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace_common.core.errors import ErrorCode, HeadraceError, Rejected


class Room:
    """
    See the module's text.

    Args:
        setting: which one limits it, as users know it.
        things: what is limited, for people.
        most: of the whole cluster.
    """

    def __init__(self, setting: str, things: str, most: int) -> None:
        assert most > 0, "config checks that there may be some"
        self.shards = 1
        """How many there are in the cluster."""
        self._setting = setting
        self._things = things
        self._most = most
        self._counts: dict[int, Callable[[], int]] = {}

    def enter(self, shard: int, count: Callable[[], int]) -> None:
        """The shard is served here; ``count`` says how much it has."""
        self._counts[shard] = count

    def leave(self, shard: int) -> None:
        """It is not served here any more."""
        self._counts.pop(shard, None)

    @property
    def limit(self) -> int:
        """Of the shards that are served here, together; at least one."""
        here, shards = len(self._counts), max(self.shards, len(self._counts), 1)
        return max(1, self._most * here // shards)

    def fault(self, name: str) -> HeadraceError | None:
        """Why ``name``, which is new, cannot be; None: it can."""
        if sum(count() for count in self._counts.values()) < self.limit:
            return None
        return Rejected(
            f"{name!r} is new, and there are as many {self._things} as this coordinator's part of {self._setting} "
            f"({self._most}) allows; use names again instead of new ones, wait until unused ones expire, or raise it",
            code=ErrorCode.POLICY_VIOLATION,
        )


def transactional_ids(most: int = 100_000) -> Room:
    """For transactional ids and their owners."""
    return Room("transactional.ids.max", "transactional ids and owners", most)


def groups(most: int = 100_000) -> Room:
    return Room("groups.max", "groups", most)
