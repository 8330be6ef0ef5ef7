"""
What happens to a partition (events) and what must then be done (effects): the language of ``partition.py``.

The storage loop speaks it. Effects that are ``LogWrite`` belong to one write group.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from headrace_broker.core.compaction.steps import Step
from headrace_broker.core.leadership import Assignment, Proposal
from headrace_broker.core.producers import Producers
from headrace_broker.core.rows import NO_TOKEN, LogWrite, ProducerRow
from headrace_broker.core.segments import Segments
from headrace_common.core.batch import BatchHeader
from headrace_common.core.configs import TopicConfig
from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import NodeId, Offset

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
    fencing_token: int | None = None
    """The producer appends only if this is the log's token; None: not checked, unless the topic requires one."""
    fence: int | None = None
    """The batch is a fence record that sets this token; it must be above the present one."""
    transactional_id: str | None = None
    """Of a transactional batch: whose transaction it belongs to."""
    stranger: HeadraceError | None = None
    """Why its producer id is not its writer's: it is refused, but for what is in the log already. None: it is."""
    held: bool = False
    """
    Its writer is held to what it may: in a transaction nothing is taken under another id than the enrolled one, and
    what others send under its producer id does not concern it.
    """


@dataclass(frozen=True, slots=True)
class MarkerArrived:
    """A coordinator, or an operator, ends a transaction here. Answered as an append with acks=all."""

    header: BatchHeader
    batch: bytes
    commit: bool
    now_ms: int
    ref: object


@dataclass(frozen=True, slots=True)
class Enrolled:
    """What the coordinator says to question ``number`` about a producer's transaction; ``error`` None: go on."""

    producer_id: int
    number: int
    error: HeadraceError | None
    now_ms: int


@dataclass(frozen=True, slots=True)
class GroupWritten:
    """Everything below ``end`` is down by the flush policy."""

    end: Offset
    now_ms: float = 0.0
    """Monotonic."""


@dataclass(frozen=True, slots=True)
class Elected:
    """The image says that this broker leads; ``now_ms`` is monotonic."""

    assignment: Assignment
    now_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Reassigned:
    """The image has a newer state of the partition, in the leader epoch in which this broker leads already."""

    assignment: Assignment
    now_ms: float


@dataclass(frozen=True, slots=True)
class Followed:
    """The image says that ``leader`` leads in ``epoch`` and this broker follows; ``reason`` goes to those who wait."""

    leader: NodeId
    epoch: int
    reason: HeadraceError


@dataclass(frozen=True, slots=True)
class Deposed:
    """This broker neither leads nor follows; ``reason`` goes to those who wait."""

    reason: HeadraceError


@dataclass(frozen=True, slots=True)
class FollowerFetched:
    """A follower, whose log agrees with this one, says how far it is. ``now_ms`` is monotonic."""

    broker: NodeId
    broker_epoch: int
    log_end: Offset
    written_end: Offset
    may_join: bool
    """The image shows it unfenced, here to stay, under this broker epoch."""
    now_ms: float


@dataclass(frozen=True, slots=True)
class FollowersChecked:
    """Time to look for followers that are behind for more than ``lag_ms_max``, or silent for ``silence_ms_max``."""

    now_ms: float
    lag_ms_max: float
    silence_ms_max: float = inf


@dataclass(frozen=True, slots=True)
class PeersChanged:
    """Brokers that may be in sync now, by the image, with their epochs."""

    epochs: dict[NodeId, int]
    now_ms: float


@dataclass(frozen=True, slots=True)
class ProposalRefused:
    """The controller has not accepted this and never will (INELIGIBLE_REPLICA)."""

    proposal: Proposal
    now_ms: float


@dataclass(frozen=True, slots=True)
class BatchesCopied:
    """The leader of ``leader_epoch`` sent these, from this log's end on; checked but for where they belong."""

    leader_epoch: int
    batches: tuple[tuple[BatchHeader, bytes], ...]
    high_watermark: Offset
    now_ms: int
    forgotten_to: Offset = Offset(0)
    """The leader's."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What depends on the end of a log, as it is for an earlier end."""

    producers: Producers
    segments: Segments
    snapshot_bytes: int


@dataclass(frozen=True, slots=True)
class Truncated:
    """The logs part at ``end``: what this one has from there on goes. Evidence of it was lowered before."""

    leader_epoch: int
    end: Offset
    rebuilt: Rebuilt
    rewrites: int | None = None
    """How often compaction had rewritten the log when ``end`` and ``rebuilt`` were found; if it has since, nothing is
    done, and they are to be found anew. None: not checked."""


@dataclass(frozen=True, slots=True)
class Emptied:
    """This log has nothing that the leader's continues: it begins anew at ``start``. As ``Truncated``."""

    leader_epoch: int
    start: Offset
    now_ms: int
    fencing_token: int = NO_TOKEN
    """What fences before ``start`` have set, by the leader's word; -1: nothing."""


@dataclass(frozen=True, slots=True)
class TrimAsked:
    """The log is to start at ``offset``; ``boundary`` is the base offset of the batch that holds it."""

    offset: Offset
    boundary: Offset
    producers: tuple[ProducerRow, ...] | None = None
    """As they were before ``boundary``; None: a snapshot of that is there."""


@dataclass(frozen=True, slots=True)
class RetentionChecked:
    """Time for retention: ``now_ms`` is the time to go by, producers idle since ``producers_before_ms`` go."""

    now_ms: int
    producers_before_ms: int


@dataclass(frozen=True, slots=True)
class Compacted:
    """The next step of a compaction that began when the end had been cut ``truncations`` times."""

    step: Step
    truncations: int


@dataclass(frozen=True, slots=True)
class Reconfigured:
    """The topic's settings changed."""

    config: TopicConfig


@dataclass(frozen=True, slots=True)
class CheckpointAsked:
    """Write what a restart would otherwise have to find out; not ``whole``: only the high watermark."""

    whole: bool = True


Event = (
    BatchArrived
    | MarkerArrived
    | Enrolled
    | GroupWritten
    | Elected
    | Reassigned
    | Followed
    | Deposed
    | FollowerFetched
    | FollowersChecked
    | PeersChanged
    | ProposalRefused
    | BatchesCopied
    | Truncated
    | Emptied
    | TrimAsked
    | RetentionChecked
    | Compacted
    | Reconfigured
    | CheckpointAsked
)


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
    stable: tuple[Offset, Offset] | None = None
    """Up to where transactions are decided, and up to where they were. None: it was, and is, the high watermark."""


@dataclass(frozen=True, slots=True)
class ForgetBelow:
    """Records below are gone for readers."""

    log_start: Offset


@dataclass(frozen=True, slots=True)
class ProposeIsr:
    """Ask the controller for this ISR until it has answered or the image has moved on."""

    proposal: Proposal


@dataclass(frozen=True, slots=True)
class AskEnrolment:
    """Ask the transaction's coordinator to list this partition; ``Enrolled`` with the same number is the answer."""

    number: int
    transactional_id: str
    producer_id: int
    epoch: int
    ref: object
    """Of the batch that waits for it."""


Effect = LogWrite | Answer | Refuse | ShowUpTo | ForgetBelow | ProposeIsr | AskEnrolment
