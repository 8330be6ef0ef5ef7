"""Dead letters: what could not be handled, as it was, with headers that say why. Their names and words are Kafka's."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

PREFIX: Final = "__connect.errors."
MESSAGE_CHARS_MAX: Final = 1_000
Header = tuple[str, bytes]


class Stage(StrEnum):
    """Where a record failed."""

    READ = "TASK_POLL"
    KEY = "KEY_CONVERTER"
    VALUE = "VALUE_CONVERTER"
    TRANSFORM = "TRANSFORMATION"
    WRITE = "TASK_PUT"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a record could not be handled."""

    stage: Stage
    message: str
    error: str = ""
    """The class of the exception, where there was one."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Who could not handle a record, and where it is from."""

    connector: str
    task: int
    plugin: str
    """The class of the connector."""
    topic: str
    """That it was read from, or was meant for."""
    partition: int | None = None
    offset: int | None = None


def error_headers(origin: Origin, refusal: Refusal) -> list[Header]:
    """The headers of a dead letter."""
    values: dict[str, object] = {
        "topic": origin.topic,
        "partition": origin.partition,
        "offset": origin.offset,
        "connector.name": origin.connector,
        "task.id": origin.task,
        "stage": refusal.stage.value,
        "class.name": origin.plugin,
        "exception.class.name": refusal.error or None,
        "exception.message": refusal.message[:MESSAGE_CHARS_MAX],
    }
    return [(PREFIX + name, str(value).encode()) for name, value in values.items() if value is not None]
