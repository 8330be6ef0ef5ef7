"""The shapes of REST for transactions. See ``models`` for what they share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from headrace_admin.rpc.models import Answer, Int32, Int64, Problem, Request, TopicName
from headrace_admin.rpc.models_groups import MissingShard

State = Literal[
    "empty",
    "ongoing",
    "prepared",
    "prepare_commit",
    "prepare_abort",
    "complete_commit",
    "complete_abort",
]

Epoch = Annotated[int, Field(ge=0, le=2**15 - 1)]


def _example(**example: Any) -> ConfigDict:
    return ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [example]})


# --- in -----------------------------------------------------------------------------------------------------------


class Abort(Request):
    """Which transaction of an id is to be aborted."""

    model_config = _example(validate_only=True)

    producer_id: Int64 | None = Field(None, description="Only if this is its producer id; absent: whichever it has.")
    producer_epoch: Epoch | None = Field(None, description="Only if this is its epoch.")
    validate_only: bool = Field(False, description="Tell what would be aborted, and do nothing.")


class Decide(Request):
    """What names a prepared transaction."""

    model_config = _example(token="CgliaWxsaW5nLTEQBxgDIe7_wAAAAAAA")

    token: Annotated[str, Field(min_length=1, max_length=1_000)] = Field(
        description="As GET /v1/transactions-prepared shows it, and as prepare_transaction() returned it."
    )


class AbortHanging(Request):
    """What hangs in a partition."""

    model_config = _example(topic="flights", partition=0, producer_id=4711, validate_only=True)

    topic: TopicName
    partition: Int32
    producer_id: Int64 | None = Field(None, description="Absent: the only one that hangs there.")
    validate_only: bool = Field(False, description="Tell what would be ended, and do nothing.")
    force: bool = Field(
        False,
        description="Also what began a moment ago, or what a coordinator that does not answer might know. Never what a "
        "coordinator knows.",
    )


# --- out ----------------------------------------------------------------------------------------------------------


class TransactionListing(Answer):
    """A transactional id."""

    transactional_id: str
    state: State | int | None
    producer_id: int
    producer_epoch: int
    started_at_ms: int | None = Field(description="When its transaction was opened; null: none is open.")
    prepared_at_ms: int | None = Field(description="null: it is not prepared.")


class TransactionSummary(TransactionListing):
    """A transactional id, and who keeps it."""

    coordinator: int


class TransactionList(Answer):
    """Transactional ids by name."""

    transactions: list[TransactionSummary]
    missing_shards: list[MissingShard] = Field(description="Not empty: transactions of these shards may be missing.")


class TransactionPartition(Answer):
    """A partition that a transaction writes to."""

    topic: str = Field(description="__consumer_offsets: positions of groups. An id in hexadecimal: the topic is gone.")
    partition: int
    without_marker: bool = Field(description="The transaction is ending, and its end is not written here yet.")


class Transaction(Answer):
    """A transactional id with what it writes to."""

    transactional_id: str
    state: State | int | None
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_at_ms: int | None
    prepared_at_ms: int | None
    coordinator: int
    shard: int
    token: str | None = Field(description="Prepared: what decides it.")
    partitions: list[TransactionPartition]


class PreparedList(Answer):
    """Prepared transactions, oldest first."""

    transactions: list[Transaction]
    prepared_max_ms: int = Field(description="What is prepared for longer degrades the status of the cluster.")
    missing_shards: list[MissingShard]


class OpenTransaction(Answer):
    """What a producer has open in one partition."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    first_offset: int = Field(description="Readers of read_committed do not come past the lowest of a partition.")
    held_back: int = Field(description="Records from there to the high watermark, of all producers.")
    open_since_ms: int = Field(description="In this partition, or at its coordinator where that is earlier.")
    last_write_ms: int
    standing: Literal["coordinated", "hanging", "young", "unknown"] | int | None = Field(
        description="coordinated: a coordinator knows it. hanging: nobody will end it. young: nobody knows it, and it "
        "began a moment ago. unknown: a coordinator that might know it does not answer."
    )
    transactional_id: str | None
    state: State | int | None = Field(description="Of the transactional id.")


class Unasked(Answer):
    """Partitions whose leader did not answer."""

    topic: str
    partitions: list[int]
    error: Problem


class OpenList(Answer):
    """What is open, oldest first."""

    transactions: list[OpenTransaction]
    more: int = Field(description="So many besides.")
    unasked: list[Unasked]
    missing_shards: list[MissingShard]


class AbortedTransaction(Answer):
    """What was aborted, or would be."""

    aborted: bool
    transaction: Transaction = Field(description="As it was before.")


class EndedHanging(Answer):
    """What was ended, or would be."""

    aborted: bool
    transaction: OpenTransaction = Field(description="As it was before.")


class Decided(Answer):
    """The verdict of a prepared transaction."""

    transactional_id: str
    committed: bool = Field(description="The verdict that holds; another than asked for if it was decided before.")
