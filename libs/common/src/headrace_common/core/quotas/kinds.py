"""
What can be limited: Kafka's quotas by their names there, and limits of our own; and what values they take.

Rates of bytes are per broker, as in Kafka: each one counts for itself. The others are per cluster.

Of Kafka's, ``request_percentage`` and ``connection_creation_rate`` are not there (``docs/adr/0046``).
"""

from __future__ import annotations

from enum import Enum
from typing import Final, TypeAlias

from headrace_common.core.errors import Rejected

_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1


class Rate(Enum):
    """How much a second. ``whole``: without fractions; ``most``: the largest value; both as in Kafka."""

    whole: bool
    most: int

    PRODUCER_BYTE_RATE = ("producer_byte_rate", True, _LONG_MAX)
    """Bytes of records written."""
    CONSUMER_BYTE_RATE = ("consumer_byte_rate", True, _LONG_MAX)
    """Bytes of records read."""
    CONTROLLER_MUTATION_RATE = ("controller_mutation_rate", False, _INT_MAX)
    """Partitions created and deleted (KIP-599)."""

    def __new__(cls, name: str, whole: bool, most: int) -> Rate:
        """The value is the name alone."""
        self = object.__new__(cls)
        self._value_, self.whole, self.most = name, whole, most
        return self


class Limit(Enum):
    """How many with names below a prefix there may be at a time; 0: none."""

    TOPICS = "topics.max"
    PARTITIONS = "partitions.max"


Quota: TypeAlias = Rate | Limit

_BY_NAME: Final[dict[str, Quota]] = {quota.value: quota for kind in (Rate, Limit) for quota in kind}


def quota_named(name: str) -> Quota:
    """
    Raises:
        Rejected: there is no such quota.
    """
    quota = _BY_NAME.get(name)
    if quota is None:
        raise Rejected(f"there is no quota {name[:80]!r}; there are {', '.join(_BY_NAME)}")
    return quota


def check_value(quota: Quota, value: object) -> float:
    """
    The value in its one form: whole numbers are ``int``.

    Raises:
        Rejected: the quota does not take it.
    """
    rate = isinstance(quota, Rate)
    whole, most = (quota.whole, quota.most) if isinstance(quota, Rate) else (True, _LONG_MAX)
    form = f"{'a whole number' if whole else 'a number'} {'above 0' if rate else 'from 0'}, at most {most}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Rejected(f"{quota.value} takes {form}, not {value!r:.80}")
    if not 0 <= value <= most or (rate and value == 0) or (whole and value != int(value)):
        raise Rejected(f"{quota.value} takes {form}, not {value!r:.80}")
    return int(value) if whole else float(value)
