"""Requests about transactions as they came over the wire; what no client may send is refused here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace_common.core.errors import Rejected
from headrace_common.core.ids import PartitionId
from headrace_common.rpc.convert import partition_id_from_proto
from headrace_coordinator.core.transactions.values import Producer, Token, TxnState
from headrace_coordinator.engine.transactions import Enrolment
from headrace_proto.v1 import transaction_pb2 as pb

ID_CHARACTERS_MAX: Final = 249
OWNER_CHARACTERS_MAX: Final = 200
ENROLMENTS_MAX: Final = 1_000
PARTITIONS_MAX: Final = 10_000
TOKENS_MAX: Final = 10_000
IDS_MAX: Final = 1_000
EPOCH_MAX: Final = 32_767


def transactional_id(text: str) -> str:
    """
    Raises:
        Rejected: empty or too long; or of an owner, and one of the two parts is.
    """
    if not 1 <= len(text) <= ID_CHARACTERS_MAX:
        raise Rejected(f"a transactional id has 1 to {ID_CHARACTERS_MAX} characters, not {len(text)}")
    if "/" in text:
        name, _, suffix = text.partition("/")
        if not name or not suffix or len(name) > OWNER_CHARACTERS_MAX:
            raise Rejected(
                f"transactional id {text[:80]!r} has a slash, so it is of the form owner/suffix: both have at "
                f"least one character, the owner at most {OWNER_CHARACTERS_MAX}"
            )
    return text


def owner(text: str) -> str:
    """
    Raises:
        Rejected: empty, too long, or with a slash.
    """
    if not 1 <= len(text) <= OWNER_CHARACTERS_MAX or "/" in text:
        raise Rejected(f'an owner has 1 to {OWNER_CHARACTERS_MAX} characters without "/", not {text[:80]!r}')
    return text


def claim(request: pb.InitOwnerRequest) -> int | None:
    """
    What an owner is claimed with; None: without a claim.

    Raises:
        Rejected: negative.
    """
    if not request.HasField("claim"):
        return None
    if request.claim < 0:
        raise Rejected(f"an owner is claimed with 0 or more, not {request.claim}; leave it out to claim nothing")
    return request.claim


def producer(producer_id: int, epoch: int) -> Producer:
    """
    Raises:
        Rejected: no producer has these numbers.
    """
    if producer_id < 0 or not 0 <= epoch <= EPOCH_MAX:
        raise Rejected(f"producer id {producer_id} and epoch {epoch} are nobody's; init the transactional id first")
    return Producer(producer_id, epoch)


def epoch_of_owner(request: pb.InitTransactionalIdRequest | pb.PrepareTxnRequest) -> int | None:
    """What the caller got from InitOwner; None: it is not of an owner."""
    return request.owner_epoch if request.HasField("owner_epoch") else None


def token(message: pb.PreparedToken) -> Token:
    """
    Raises:
        Rejected: no token that a coordinator has given.
    """
    if not message.nonce:
        raise Rejected("the token has no nonce; pass on what prepare_transaction returned, unchanged")
    who = producer(message.producer_id, message.producer_epoch)
    return Token(transactional_id(message.transactional_id), who.producer_id, who.epoch, message.nonce)


def tokens(messages: Iterable[pb.PreparedToken], of: str) -> tuple[Token, ...]:
    """
    The tokens of a unit.

    Raises:
        Rejected: too many, one twice, or of another owner.
    """
    found = tuple(map(token, messages))
    if len(found) > TOKENS_MAX:
        raise Rejected(f"the unit has {len(found)} tokens; {TOKENS_MAX} is the most")
    if len({one.transactional_id for one in found}) < len(found):
        raise Rejected("the unit names a transactional id twice; list each prepared transaction once")
    for one in found:
        if not one.transactional_id.startswith(f"{of}/"):
            raise Rejected(f"the token of {one.transactional_id!r} is not of owner {of!r}")
    return found


def enrolments(request: pb.AddPartitionsToTxnRequest) -> list[Enrolment]:
    """
    Raises:
        Rejected: nothing that a partition leader sends.
    """
    if not 1 <= len(request.transactions) <= ENROLMENTS_MAX:
        raise Rejected(f"the request has {len(request.transactions)} transactions; 1 to {ENROLMENTS_MAX} are allowed")
    return [
        Enrolment(
            transactional_id(one.transactional_id),
            producer(one.producer_id, one.producer_epoch),
            _partitions(one.partitions),
        )
        for one in request.transactions
    ]


def _partitions(messages: Iterable[pb.TxnPartition]) -> tuple[PartitionId, ...]:
    found = tuple(map(partition_id_from_proto, messages))
    if not 1 <= len(found) <= PARTITIONS_MAX:
        raise Rejected(f"a transaction of the request has {len(found)} partitions; 1 to {PARTITIONS_MAX} are allowed")
    return found


def sequence(number: int) -> int:
    """
    Raises:
        Rejected: negative.
    """
    if number < 0:
        raise Rejected(f"units are numbered from 0, not {number}")
    return number


def states(values: Iterable[int]) -> frozenset[TxnState]:
    """
    Raises:
        Rejected: one is none to list by.
    """
    try:
        return frozenset(map(TxnState, values))
    except ValueError as error:
        raise Rejected(f"{error}: list by states of this version") from None


def older_than_ms(ms: int) -> int:
    """
    Raises:
        Rejected: negative.
    """
    if ms < 0:
        raise Rejected(f"older_than_ms takes 0 and more, not {ms}")
    return ms


def transactional_ids(texts: Iterable[str]) -> list[str]:
    """
    Raises:
        Rejected: none, too many, or one that cannot be.
    """
    found = [transactional_id(text) for text in texts]
    if not 1 <= len(found) <= IDS_MAX:
        raise Rejected(f"the request has {len(found)} transactional ids; 1 to {IDS_MAX} are allowed")
    return found
