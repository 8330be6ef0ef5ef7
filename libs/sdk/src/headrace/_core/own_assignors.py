"""
Decides whether what an assignor of the application gave may be sent to the group. The leader of a classic group asks
(``aio._group``), before the coordinator hears of it: nobody else knows which topics have how many partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headrace.errors import Rejected
from headrace_common.core.assignors import MemberSubscription
from headrace_common.core.ids import TopicPartition

USER_DATA_BYTES_MAX: Final = 1 << 20
"""Of a member or an assignment; coordinators refuse more."""

Shares = dict[str, frozenset[TopicPartition]]


def check_shares(name: str, given: Any, members: Mapping[str, MemberSubscription], counts: Mapping[str, int]) -> Shares:
    """
    Member id -> what it is to hold, from member id -> topic -> partition numbers.

    Raises:
        Rejected: it has another form, names a member, topic or partition that there is not, or one partition twice.
    """
    owners: dict[TopicPartition, str] = {}
    for member, topic, number in _entries(name, given):
        tp = TopicPartition(topic, number)
        if member not in members:
            raise Rejected(f"the assignor {name!r} gave partitions to {member!r}, who is no member")
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < counts.get(topic, 0):
            raise Rejected(f"the assignor {name!r} gave {topic!r} {number!r} to {member!r}; there is no such partition")
        if topic not in members[member].topics:
            raise Rejected(f"the assignor {name!r} gave {tp} to {member!r}, who does not subscribe to {topic!r}")
        if owners.setdefault(tp, member) != member:
            raise Rejected(f"the assignor {name!r} gave {tp} to {owners[tp]!r} and to {member!r}; it has one owner")
    shares: dict[str, set[TopicPartition]] = {member: set() for member in members}
    for tp, member in owners.items():
        shares[member].add(tp)
    return {member: frozenset(share) for member, share in shares.items()}


def check_user_data(name: str, given: Any) -> bytes:
    """
    What a member tells the leader's assignor.

    Raises:
        Rejected: it is not bytes, or too long.
    """
    if not isinstance(given, bytes):
        raise Rejected(f"user_data of the assignor {name!r} returns bytes, not {type(given).__name__}")
    if len(given) > USER_DATA_BYTES_MAX:
        raise Rejected(
            f"user_data of the assignor {name!r} returned {len(given)} bytes; {USER_DATA_BYTES_MAX} are the most"
        )
    return given


def _entries(name: str, given: Any) -> list[tuple[str, str, Any]]:
    try:
        return [
            (member, topic, number)
            for member, share in given.items()
            for topic, numbers in share.items()
            for number in numbers
        ]
    except (AttributeError, TypeError) as error:
        shape = "member id -> topic -> partitions"
        raise Rejected(f"the assignor {name!r} gave no {shape}, but {type(given).__name__}: {error}") from None
