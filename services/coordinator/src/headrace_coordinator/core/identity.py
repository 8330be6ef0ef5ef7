"""Who speaks: the same rule in both kinds of groups, which call it for every request of a member."""

from __future__ import annotations

from typing import Protocol, TypeVar

from headrace_common.core.errors import FencedInstanceId, HeadraceError, UnknownMemberId


class HasMemberId(Protocol):
    """A member of either kind."""

    @property
    def member_id(self) -> str:
        """Unique in its group."""
        ...


M = TypeVar("M", bound=HasMemberId)


def identify(member: M | None, holder: M | None, member_id: str, instance_id: str | None) -> M | HeadraceError:
    """
    The member that speaks, or why it may not: it is not known, or another one has its instance id (KIP-345).

    Args:
        member: who has ``member_id``.
        holder: who has ``instance_id``.
    """
    if holder is not None and holder.member_id != member_id:
        return FencedInstanceId(f"another member has taken group_instance_id {instance_id!r}; stop this one")
    if member is None or (instance_id is not None and holder is None):
        return UnknownMemberId(f"the group has no member {member_id!r}; join again")
    return member
