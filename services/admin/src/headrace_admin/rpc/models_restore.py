"""The shapes of REST for restored metadata and stray logs. See ``models`` for what they share."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from headrace_admin.rpc.models import Request, TopicName, example
from headrace_common.core.ids import PARTITIONS_PER_TOPIC_MAX


class Adopt(Request):
    """A topic to be made of stray logs."""

    model_config = example(name="flights", validate_only=True)

    name: TopicName | None = Field(None, description="Absent: the name that it had.")
    partitions: Annotated[int, Field(ge=0, le=PARTITIONS_PER_TOPIC_MAX)] = Field(
        0, description="0: as many as brokers remember, or as there are logs."
    )
    validate_only: bool = Field(False, description="Say what would be made and do nothing.")
