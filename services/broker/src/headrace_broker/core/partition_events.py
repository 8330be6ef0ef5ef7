"""
What happens to a partition (events) and what must then be done (effects): the language of ``partition.py``.

The storage loop speaks it. Effects that are ``LogWrite`` belong to one write group.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace_broker.core.rows import LogWrite
from headrace_common.core.batch import BatchHeader
from headrace_common.core.configs import TopicConfig
from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import Offset

# --- events ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchArrived:
    """A producer's batch, checked by ``append_rules`` and its CRC. ``ref`` comes back in the answer."""

    header: BatchHeader
    batch: bytes
    acks: int
    now_ms: int
    leader_epoch: int | None
    """What the producer believes; None: not checked."""
    ref: object


@dataclass(frozen=True, slots=True)
class GroupWritten:
    """Everything below ``end`` is down by the flush policy."""

    end: Offset


@dataclass(frozen=True, slots=True)
class Elected:
    """The image says that this broker leads from ``epoch`` on."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Deposed:
    """This broker leads no longer; ``reason`` goes to those who wait."""

    reason: HeadraceError


@dataclass(frozen=True, slots=True)
class TrimAsked:
    """The log is to start at ``offset``; ``boundary`` is the base offset of the batch that holds it."""

    offset: Offset
    boundary: Offset


@dataclass(frozen=True, slots=True)
class RetentionChecked:
    """Time for retention: ``now_ms`` is the time to go by, producers idle since ``producers_before_ms`` go."""

    now_ms: int
    producers_before_ms: int


@dataclass(frozen=True, slots=True)
class Reconfigured:
    """The topic's settings changed."""

    config: TopicConfig


@dataclass(frozen=True, slots=True)
class CheckpointAsked:
    """Write what a restart would otherwise have to find out."""


Event = BatchArrived | GroupWritten | Elected | Deposed | TrimAsked | RetentionChecked | Reconfigured | CheckpointAsked


# --- effects --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """The batch of ``ref`` has this base offset and is as safe as was asked."""

    ref: object
    base_offset: Offset
    log_append_time_ms: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """The batch of ``ref`` was not appended, or nobody can say."""

    ref: object
    error: HeadraceError


@dataclass(frozen=True, slots=True)
class ShowUpTo:
    """Readers may have everything below; it was ``before`` until now."""

    high_watermark: Offset
    before: Offset


@dataclass(frozen=True, slots=True)
class ForgetBelow:
    """Records below are gone for readers."""

    log_start: Offset


Effect = LogWrite | Answer | Refuse | ShowUpTo | ForgetBelow
