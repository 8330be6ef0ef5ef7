"""
The nouns of transactions, which events, effects, records and the state machine share. Immutable, without rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

EPOCH_LAST: Final = 32_766
"""The last epoch that a producer may write under; 32767 is left for the markers of that transaction."""
NO_PRODUCER: Final = -1
NO_TIME: Final = -1
NO_NONCE: Final = 0
NO_SEQUENCE: Final = -1
NO_CLAIM: Final = -1
NO_OWNER_EPOCH: Final = -1
CLAIM_CHANCE_BITS: Final = 20
"""Claims are counted, or are a time in ms since 1970 with so many bits of chance below it."""


class TxnState(Enum):
    """Of a transactional id. The values are those of records and of the wire."""

    EMPTY = 1
    """It has a producer that has written nothing yet."""
    ONGOING = 2
    """Partitions were enrolled; not decided."""
    PREPARED = 3
    """Whoever holds the token decides."""
    PREPARE_COMMIT = 4
    """Decided; markers are being written."""
    PREPARE_ABORT = 5
    """Decided; markers are being written."""
    COMPLETE_COMMIT = 6
    """All markers are written; the next transaction may begin."""
    COMPLETE_ABORT = 7
    """All markers are written; the next transaction may begin."""


ENDING: Final = frozenset((TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT))
AT_REST: Final = frozenset((TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT))


class EndCause(Enum):
    """Who decided a transaction. The values are those of records."""

    CLIENT = 1
    """Its producer."""
    TOKEN = 2
    """Whoever held the token."""
    UNIT = 3
    """A unit of its owner, which listed it, or did not."""
    FENCED = 4
    """A newer producer of the id."""
    OWNER = 5
    """A new epoch of its owner."""
    TIMEOUT = 6
    """Its time was up."""
    OPERATOR = 7
    """An operator aborted it."""


CAUSES_OF_SERVER: Final = frozenset((EndCause.TIMEOUT, EndCause.OPERATOR))
"""The producer may go on after an end by these, once it has asked for the abort itself."""


class Producer(NamedTuple):
    """What a transaction is written under."""

    producer_id: int
    epoch: int


class Token(NamedTuple):
    """Names one prepared transaction for ever."""

    transactional_id: str
    producer_id: int
    epoch: int
    nonce: int
    """Drawn at random out of 1 to 2^64 - 1."""


@dataclass(frozen=True, slots=True)
class Decided:
    """The last transaction of an id that was decided."""

    producer: Producer
    """What it was written under."""
    commit: bool
    cause: EndCause
    nonce: int = NO_NONCE
    """It was prepared under this one; 0: it was not prepared."""


def owner_of(transactional_id: str) -> str | None:
    """The owner of an id of the form ``owner/suffix``; None: a plain id."""
    owner, slash, _ = transactional_id.partition("/")
    return owner if slash else None


def key_of(transactional_id: str) -> str:
    """What effects of this id are ordered by: all ids of an owner with their owner."""
    return transactional_id.partition("/")[0]
