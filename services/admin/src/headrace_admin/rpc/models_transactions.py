"""The shapes of REST for transactions. See ``models`` for what they share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headrace_admin.rpc.models import Int32, Int64, Request, TopicName, example

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


class Abort(Request):
    """Which transaction of an id is to be aborted."""

    model_config = example(validate_only=True)

    producer_id: Int64 | None = Field(None, description="Only if this is its producer id; absent: whichever it has.")
    producer_epoch: Epoch | None = Field(None, description="Only if this is its epoch.")
    validate_only: bool = Field(False, description="Tell what would be aborted, and do nothing.")


class Decide(Request):
    """What names a prepared transaction."""

    model_config = example(token="CgliaWxsaW5nLTEQBxgDIe7_wAAAAAAA")

    token: Annotated[str, Field(min_length=1, max_length=1_000)] = Field(
        description="As GET /v1/transactions-prepared shows it, and as prepare_transaction() returned it."
    )


class AbortHanging(Request):
    """What hangs in a partition."""

    model_config = example(topic="flights", partition=0, producer_id=4711, validate_only=True)

    topic: TopicName
    partition: Int32
    producer_id: Int64 | None = Field(None, description="Absent: the only one that hangs there.")
    validate_only: bool = Field(False, description="Tell what would be ended, and do nothing.")
    force: bool = Field(
        False,
        description="Also what began a moment ago, or what a coordinator that does not answer might know. Never what a "
        "coordinator knows.",
    )
