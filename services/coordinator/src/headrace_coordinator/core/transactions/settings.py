"""The settings and limits that rule transactions; names are Kafka's with dots as underscores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace_common.core.bounds import check, limit, setting

_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """One coordinator's settings for all its transactional ids."""

    transaction_max_timeout_ms: int = setting(900_000, low=1, high=2**31 - 1)
    """Longest transaction timeout that producers may ask for, in ms."""
    transactional_id_expiration_ms: int = setting(604_800_000, low=1_000, high=10 * 365 * 24 * _HOUR_MS)
    """A transactional id that has done nothing for so long is forgotten, in ms; never one with an open or prepared
    transaction. So is an owner without ids."""
    transactional_id_check_interval_ms: int = setting(600_000, low=100, high=24 * _HOUR_MS)
    """How often transactional ids are looked over for expiry, in ms."""
    unit_prepared_timeout_ms: int = setting(3_600_000, low=1_000, high=365 * 24 * _HOUR_MS)
    """A prepared transaction of an owner (owner/suffix) that is undecided for so long is aborted, in ms. An id of an
    owner that is through with a transaction, but was not told so by a unit, is forgotten so long after."""
    unit_claim_ahead_max_ms: int = setting(7_200_000, low=0, high=365 * 24 * _HOUR_MS)
    """How far the time in an owner's claim may be ahead of the coordinator's clock, in ms; more is refused."""
    transaction_waiting_max: int = limit(100)
    """Requests that may wait for the end of one id's transaction."""
    transaction_partitions_max: int = limit(20_000)
    """Partitions of one transaction; with all of them its record is still below the size of a batch."""
    unit_free_producer_ids_max: int = limit(10_000)
    """Producer ids that an owner keeps for new ids; more are dropped."""

    def __post_init__(self) -> None:
        check(self)
