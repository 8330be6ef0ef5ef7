"""The limits and times that rule transactions; ``config.py`` fills them, names are Kafka's with dots as underscores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """One coordinator's settings for all its transactional ids."""

    transaction_max_timeout_ms: int = 900_000
    """Producers may not ask for a longer transaction timeout. ms."""
    transactional_id_expiration_ms: int = 604_800_000
    """An id that has done nothing for so long, and has no open or prepared transaction, is forgotten. ms."""
    unit_owner_expiration_ms: int = 604_800_000
    """The same for an owner that has no ids; config gives both the same time. ms."""
    transactional_id_check_interval_ms: int = 600_000
    """How often ids are looked over for expiry. ms."""
    unit_prepared_timeout_ms: int = 3_600_000
    """A prepared transaction of an owner is aborted when it is undecided for so long, and an id of an owner that is
    through with a transaction, but was not told so by a unit, is forgotten so long after. ms."""
    unit_claim_ahead_max_ms: int = 7_200_000
    """How far the time in a claim may be ahead of this coordinator's clock. ms."""
    transaction_waiting_max: int = 100
    """Requests that may wait for the end of one id's transaction."""
    transaction_partitions_max: int = 20_000
    """Partitions of one transaction; with all of them its record is still below the size of a batch."""
    unit_free_producer_ids_max: int = 10_000
    """Producer ids that an owner keeps for new ids; more are dropped."""

    def __post_init__(self) -> None:
        assert self.transaction_max_timeout_ms > 0, "config checks that it is positive"
        assert self.transactional_id_check_interval_ms > 0, "config checks that it is positive"
