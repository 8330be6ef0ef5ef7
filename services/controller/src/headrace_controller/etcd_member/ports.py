"""What the program needs of the world."""

from __future__ import annotations

from typing import Protocol

from headrace_controller.etcd_member.core.facts import Facts
from headrace_controller.etcd_member.core.roster import Peer
from headrace_controller.etcd_member.core.sights import Member, Sight


class ClusterUnusable(Exception):
    """No member of the running cluster answered with a quorum behind it, or the change was refused; the text says why.

    A change may have happened all the same: look again.
    """


class Volume(Protocol):
    """The member's volume. One process at a time."""

    def has_data(self) -> bool:
        """Did an etcd write its log there? True from the moment at which it could vote."""
        ...

    def load(self) -> Facts | None:
        """
        The facts; None on a volume without any.

        Raises:
            UnreadableFacts: what is there cannot be read.
        """
        ...

    def store(self, facts: Facts) -> None:
        """Replace the facts, whole or not at all; on disk when this returns. Raises: OSError."""
        ...


class Lookout(Protocol):
    """Sees what another member does."""

    async def look(self, peer: Peer) -> Sight:
        """One look, bounded in time; the answer is not older than the call."""
        ...


class RunningCluster(Protocol):
    """Changes the members of a running cluster. Every call is confirmed by a quorum, or raises ClusterUnusable."""

    async def claim(self, name: str) -> str:
        """Take the turn to change members for ``name``, for a minute at most; whose turn it is now."""
        ...

    async def release(self, name: str) -> None:
        """Give the turn back if it is that of ``name``."""
        ...

    async def members(self) -> tuple[Member, ...]:
        """The members as a quorum knows them now."""
        ...

    async def add(self, peer_url: str) -> tuple[Member, ...]:
        """Add a voting member; the members with it. Refused while a member is not connected."""
        ...

    async def readdress(self, member: Member, peer_url: str) -> None:
        """Have the others reach a member at this address alone."""
        ...

    async def remove(self, member: Member) -> None:
        """Remove a member; refused if the others would be no quorum."""
        ...
