"""The shapes of REST for restored metadata and stray logs. See ``models`` for what they share."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from headrace_admin.rpc.models import Answer, Request, TopicName
from headrace_common.core.ids import PARTITIONS_PER_TOPIC_MAX


class Adopt(Request):
    """A topic to be made of stray logs."""

    model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"examples": [{"name": "flights", "validate_only": True}]}
    )

    name: TopicName | None = Field(None, description="Absent: the name that it had.")
    partitions: Annotated[int, Field(ge=0, le=PARTITIONS_PER_TOPIC_MAX)] = Field(
        0, description="0: as many as brokers remember, or as there are logs."
    )
    validate_only: bool = Field(False, description="Say what would be made and do nothing.")


class Restored(Answer):
    """The last restore of the metadata from a backup."""

    finished: bool = Field(description="Every log was compared, and partitions are led as ever.")
    backup_revision: int
    backup_time_ms: int
    restore_time_ms: int
    expected_brokers: list[int] = Field(description="Their logs have to be seen before anybody leads.")
    missing_brokers: list[int] = Field(description="Those that have not joined since the restore.")
    silent_brokers: list[int] = Field(description="Those that are there and do not say what they have.")
    adopted_topics: int = Field(description="Made after the backup, and taken over from brokers.")
    empty_topics: int = Field(description="Nobody has anything of them.")


class RestoreStatus(Answer):
    """Whether the metadata was restored, and how far that is."""

    restore: Restored | None = Field(description="null: it was never restored.")


class StrayLog(Answer):
    """One log on one broker."""

    broker: int
    partition: int
    log_end_offset: int
    damaged: bool = Field(description="It lost acknowledged records.")


class Stray(Answer):
    """Logs of one topic that the metadata does not know."""

    topic_id: str = Field(description="32 hexadecimal digits.")
    name: str | None = Field(description="As brokers remember it; null: none does.")
    partitions: int | None = Field(description="As brokers remember it; null: none does.")
    logs: list[StrayLog]
    note: str | None = Field(description="Why it is not a topic.")


class Strays(Answer):
    """All stray logs, by topic."""

    strays: list[Stray]
    silent_brokers: list[int] = Field(description="They did not answer; their logs are not known.")
