"""
Every failure that crosses a boundary, as one tree.

``HeadraceError`` has a ``code`` (Kafka's name and number, the same as in ``errors.proto``), says whether the same
request may be ``retriable``, and of what ``kind`` it is, which is what callers decide by::

    HeadraceError
    ├── Rejected            INVALID     the request is wrong; it will never succeed as it is
    ├── NotFound            NOT_FOUND   the thing named does not exist (yet)
    ├── Conflict            CONFLICT    it exists already, or changed meanwhile
    ├── Moved               MOVED       somebody else answers this now; refresh metadata and ask there
    ├── Fenced              FENCED      the caller's epoch is old; it must stop, or start again
    ├── Busy                BUSY        not now: wait and retry the same request
    ├── UnknownOutcome      UNKNOWN     it may have happened; retry only what is idempotent
    ├── DataLost            DAMAGED     stored bytes are not what was written
    └── Internal            INTERNAL    our bug
"""

from __future__ import annotations

from enum import Enum, IntEnum, StrEnum
from typing import ClassVar, Final


class ErrorCode(IntEnum):
    """Kafka's error names and numbers; from 1000 on our own. Equal to ``errors.proto``, which a test checks."""

    NONE = 0
    UNKNOWN_SERVER_ERROR = -1
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    KAFKA_STORAGE_ERROR = 56
    UNKNOWN_PRODUCER_ID = 59
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    INVALID_UPDATE_VERSION = 95
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    INELIGIBLE_REPLICA = 107
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    TRANSACTION_ABORTABLE = 120
    INVALID_REGULAR_EXPRESSION = 128
    DISK_FULL = 1000
    REPLICA_DAMAGED = 1001
    METADATA_UNAVAILABLE = 1002
    OVERLOADED = 1003
    FENCED_WRITER = 1004
    TXN_VERDICT_UNKNOWN = 1005
    FENCED_OWNER = 1006

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later, unchanged."""
        return self in RETRIABLE


RETRIABLE = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNRELEASED_INSTANCE_ID,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.DISK_FULL,
        ErrorCode.METADATA_UNAVAILABLE,
        ErrorCode.OVERLOADED,
    }
)


class Kind(Enum):
    """What a caller should do about a failure; see the module's text."""

    INVALID = "invalid"
    NOT_FOUND = "not found"
    CONFLICT = "conflict"
    MOVED = "moved"
    FENCED = "fenced"
    BUSY = "busy"
    UNKNOWN = "unknown"
    DAMAGED = "damaged"
    INTERNAL = "internal"


class Then(StrEnum):
    """What a program that writes in transactions does next, after a failure."""

    RETRY = "retry"
    """The same call again: nothing is lost yet."""
    ABORT = "abort"
    """Abort the transaction, and do its work again in the next."""
    FENCED = "fenced"
    """Stop: another has taken its place, or what it was told is wrong and stays wrong. Close it; the error says why."""


_STOPS = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.FENCED_OWNER,
        ErrorCode.FENCED_WRITER,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.INVALID_SESSION_TIMEOUT,
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.TXN_VERDICT_UNKNOWN,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""After these nothing gets better by itself."""


class HeadraceError(Exception):
    """Anything that Headrace reports. ``str(error)`` is a sentence that says what happened and what to do."""

    kind: ClassVar[Kind] = Kind.INTERNAL
    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR
    _then: Then | None = None

    def __init__(self, message: str = "", *, code: ErrorCode | None = None, endpoint_hint: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip().splitlines()[0])
        if code is not None:
            self.code = code
        self.endpoint_hint = endpoint_hint

    @property
    def then(self) -> Then:
        """What to do about it inside a transaction; whoever knows the transaction's state has set it."""
        if self._then is not None:
            return self._then
        if self.code in _STOPS:
            return Then.FENCED
        return Then.RETRY if self.retriable else Then.ABORT

    @then.setter
    def then(self, then: Then) -> None:
        self._then = then

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later, unchanged."""
        return self.code.retriable


class Rejected(HeadraceError):
    """The request is wrong and will never succeed as it is."""

    kind, code = Kind.INVALID, ErrorCode.INVALID_REQUEST


class NotFound(HeadraceError):
    """The thing named does not exist."""

    kind, code = Kind.NOT_FOUND, ErrorCode.RESOURCE_NOT_FOUND


class Conflict(HeadraceError):
    """It exists already, or changed meanwhile."""

    kind, code = Kind.CONFLICT, ErrorCode.INVALID_UPDATE_VERSION


class Moved(HeadraceError):
    """Somebody else answers this now."""

    kind, code = Kind.MOVED, ErrorCode.NOT_LEADER_OR_FOLLOWER


class Fenced(HeadraceError):
    """The caller's epoch is old."""

    kind, code = Kind.FENCED, ErrorCode.STALE_BROKER_EPOCH


class Busy(HeadraceError):
    """Not now; wait and retry the same request."""

    kind, code = Kind.BUSY, ErrorCode.OVERLOADED


class UnknownOutcome(HeadraceError):
    """It may have happened; only what is idempotent may be retried."""

    kind, code = Kind.UNKNOWN, ErrorCode.REQUEST_TIMED_OUT


class DataLost(HeadraceError):
    """Stored bytes are not what was written."""

    kind, code = Kind.DAMAGED, ErrorCode.KAFKA_STORAGE_ERROR


class Internal(HeadraceError):
    """A bug in Headrace."""

    kind, code = Kind.INTERNAL, ErrorCode.UNKNOWN_SERVER_ERROR


# --- the request is wrong -------------------------------------------------------------------------------------


class InvalidTopic(Rejected):
    """No topic can have this name."""

    code = ErrorCode.INVALID_TOPIC_EXCEPTION


class InvalidConfig(Rejected):
    """A setting is unknown or its value is out of bounds."""

    code = ErrorCode.INVALID_CONFIG


class InvalidPartitions(Rejected):
    """The number of partitions is out of bounds."""

    code = ErrorCode.INVALID_PARTITIONS


class InvalidReplicationFactor(Rejected):
    """The number of replicas is out of bounds, or there are too few brokers."""

    code = ErrorCode.INVALID_REPLICATION_FACTOR


class InvalidReplicaAssignment(Rejected):
    """The placement names brokers that do not exist, or one twice."""

    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT


class RecordTooLarge(Rejected):
    """The record or batch is larger than the topic allows."""

    code = ErrorCode.MESSAGE_TOO_LARGE


class OffsetOutOfRange(Rejected):
    """The offset is below the log start or above the end."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE


class CorruptBatch(Rejected):
    """The bytes are not a valid record batch."""

    code = ErrorCode.CORRUPT_MESSAGE


class UnsupportedCompression(Rejected):
    """The batch is compressed with a codec that is not known."""

    code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class InvalidRecord(Rejected):
    """The batch is well-formed but may not be written to this topic."""

    code = ErrorCode.INVALID_RECORD


class InvalidTimestamp(Rejected):
    """A timestamp is further from the broker's clock than the topic allows."""

    code = ErrorCode.INVALID_TIMESTAMP


class OutOfOrderSequence(Rejected):
    """A batch of this producer is missing before this one."""

    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class UnsupportedVersion(Rejected):
    """The format or the operation is not known here."""

    code = ErrorCode.UNSUPPORTED_VERSION


# --- not found, conflict --------------------------------------------------------------------------------------


class UnknownTopicOrPartition(NotFound):
    """No such topic or partition here."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class UnknownTopicId(NotFound):
    """No topic has this id; it was deleted, or this node has not heard of it yet."""

    code = ErrorCode.UNKNOWN_TOPIC_ID


class TopicAlreadyExists(Conflict):
    """A topic of this name exists."""

    code = ErrorCode.TOPIC_ALREADY_EXISTS


class ElectionNotNeeded(Conflict):
    """The partition is led as it should be; nothing was changed."""

    code = ErrorCode.ELECTION_NOT_NEEDED


class NoReassignmentInProgress(Conflict):
    """Nothing is under way that could be cancelled."""

    code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


class InvalidUpdateVersion(Conflict):
    """The partition has changed since the leader looked; newer metadata is on its way."""

    code = ErrorCode.INVALID_UPDATE_VERSION


class IneligibleReplica(Conflict):
    """A replica may not join the ISR now: it is fenced, leaving, or was started anew."""

    code = ErrorCode.INELIGIBLE_REPLICA


# --- moved, fenced --------------------------------------------------------------------------------------------


class NotLeader(Moved):
    """This broker does not lead the partition."""

    code = ErrorCode.NOT_LEADER_OR_FOLLOWER


class LeaderNotAvailable(Busy):
    """Nobody leads the partition now."""

    code = ErrorCode.LEADER_NOT_AVAILABLE


class NotController(Moved):
    """Another controller is active; ``endpoint_hint`` says which, if known."""

    code = ErrorCode.NOT_CONTROLLER


class FencedLeaderEpoch(Fenced):
    """The caller knows an older leader epoch."""

    code = ErrorCode.FENCED_LEADER_EPOCH


class UnknownLeaderEpoch(Moved):
    """The caller knows a newer leader epoch than this broker."""

    code = ErrorCode.UNKNOWN_LEADER_EPOCH


class InvalidProducerEpoch(Fenced):
    """A newer producer with the same id has taken over."""

    code = ErrorCode.INVALID_PRODUCER_EPOCH


class StaleBrokerEpoch(Fenced):
    """A newer registration of this node exists."""

    code = ErrorCode.STALE_BROKER_EPOCH


class DuplicateRegistration(Fenced):
    """Another living process has this node id."""

    code = ErrorCode.DUPLICATE_BROKER_REGISTRATION


class NotRegistered(Fenced):
    """The controller does not know this node; it must register."""

    code = ErrorCode.BROKER_ID_NOT_REGISTERED


class ClusterAuthorizationFailed(Rejected):
    """The caller may not do this to the cluster."""

    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class InconsistentClusterId(Rejected):
    """The data belongs to another cluster."""

    code = ErrorCode.INCONSISTENT_CLUSTER_ID


# --- not now, unknown, damaged --------------------------------------------------------------------------------


class Overloaded(Busy):
    """The server's queue is full."""

    code = ErrorCode.OVERLOADED


class DiskFull(Busy):
    """The broker's disk is below its reserve; appends resume when there is space."""

    code = ErrorCode.DISK_FULL


class MetadataUnavailable(Busy):
    """The metadata store cannot be reached."""

    code = ErrorCode.METADATA_UNAVAILABLE


class OffsetNotAvailable(Busy):
    """The new leader does not know the end of the log yet."""

    code = ErrorCode.OFFSET_NOT_AVAILABLE


class NotEnoughReplicas(Busy):
    """Fewer replicas are in sync than min.insync.replicas asks for; nothing was appended."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS


class NotEnoughReplicasAfterAppend(UnknownOutcome):
    """The batch was appended, and then the ISR shrank below min.insync.replicas: it is not committed yet."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


class PreferredLeaderNotAvailable(Busy):
    """The preferred replica is not in sync, fenced, leaving or drained."""

    code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


class EligibleLeadersNotAvailable(Busy):
    """No replica may lead now."""

    code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


class NetworkFailed(UnknownOutcome):
    """The connection broke before the answer came."""

    code = ErrorCode.NETWORK_EXCEPTION


class RequestTimedOut(UnknownOutcome):
    """No answer came in time."""

    code = ErrorCode.REQUEST_TIMED_OUT


class StorageFailed(DataLost):
    """The disk refused; the broker fences itself and stops."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class ReplicaDamaged(DataLost):
    """The replica lost records that had been acknowledged."""

    code = ErrorCode.REPLICA_DAMAGED


class OffsetMetadataTooLarge(Rejected):
    """The text beside a committed offset is longer than offset.metadata.max.bytes."""

    code = ErrorCode.OFFSET_METADATA_TOO_LARGE


class InvalidCommitOffset(Rejected):
    """More was to be committed at once than one append holds; commit in smaller parts."""

    code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE


class InvalidGroupId(Rejected):
    """A group id has 1 to 249 characters."""

    code = ErrorCode.INVALID_GROUP_ID


class InvalidSessionTimeout(Rejected):
    """The session timeout is outside the bounds that the coordinator sets."""

    code = ErrorCode.INVALID_SESSION_TIMEOUT


class InconsistentGroupProtocol(Rejected):
    """The member shares no assignor with the others, or speaks the other protocol."""

    code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL


class UnsupportedAssignor(Rejected):
    """The coordinator knows no assignor of this name."""

    code = ErrorCode.UNSUPPORTED_ASSIGNOR


class InvalidRegularExpression(Rejected):
    """The pattern of a subscription cannot be read."""

    code = ErrorCode.INVALID_REGULAR_EXPRESSION


class GroupMaxSizeReached(Rejected):
    """The group has group.max.size members."""

    code = ErrorCode.GROUP_MAX_SIZE_REACHED


class GroupNotFound(NotFound):
    """There is no group of this id."""

    code = ErrorCode.GROUP_ID_NOT_FOUND


class NonEmptyGroup(Conflict):
    """The group has members; stop them first."""

    code = ErrorCode.NON_EMPTY_GROUP


class GroupSubscribedToTopic(Conflict):
    """A member subscribes to the topic whose offsets are to be forgotten."""

    code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


class NotCoordinator(Moved):
    """Another coordinator has the group's shard; find it anew."""

    code = ErrorCode.NOT_COORDINATOR


class CoordinatorNotAvailable(Busy):
    """Nobody has the group's shard now, or its log cannot be written."""

    code = ErrorCode.COORDINATOR_NOT_AVAILABLE


class CoordinatorLoading(Busy):
    """The coordinator still reads the shard's log."""

    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class RebalanceInProgress(Busy):
    """The group rebalances; join again."""

    code = ErrorCode.REBALANCE_IN_PROGRESS


class UnstableOffsetCommit(Busy):
    """A transaction has an offset pending there; ask again."""

    code = ErrorCode.UNSTABLE_OFFSET_COMMIT


class UnreleasedInstanceId(Busy):
    """The member that has this group_instance_id has not left yet."""

    code = ErrorCode.UNRELEASED_INSTANCE_ID


class IllegalGeneration(Fenced):
    """The group has another generation."""

    code = ErrorCode.ILLEGAL_GENERATION


class UnknownMemberId(Fenced):
    """The group does not know this member; it is out, and joins anew if it wants to go on."""

    code = ErrorCode.UNKNOWN_MEMBER_ID


class FencedInstanceId(Fenced):
    """Another member has taken this group_instance_id."""

    code = ErrorCode.FENCED_INSTANCE_ID


class FencedMemberEpoch(Fenced):
    """The member speaks with an epoch that it does not have; it joins anew."""

    code = ErrorCode.FENCED_MEMBER_EPOCH


class StaleMemberEpoch(Fenced):
    """The member has a newer epoch by now; commit with that."""

    code = ErrorCode.STALE_MEMBER_EPOCH


class InvalidTxnState(Rejected):
    """The transaction is not in a state in which this is possible."""

    code = ErrorCode.INVALID_TXN_STATE


class InvalidTransactionTimeout(Rejected):
    """The transaction timeout is longer than transaction.max.timeout.ms, or not positive."""

    code = ErrorCode.INVALID_TRANSACTION_TIMEOUT


class TransactionalIdNotFound(NotFound):
    """The coordinator does not know this transactional id."""

    code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


class ConcurrentTransactions(Busy):
    """The end of the transaction before is still being written; try again in a moment."""

    code = ErrorCode.CONCURRENT_TRANSACTIONS


class TransactionAbortable(Conflict):
    """The transaction cannot be committed any more; abort it, then begin the next."""

    code = ErrorCode.TRANSACTION_ABORTABLE


class TxnVerdictUnknown(Conflict):
    """The prepared transaction was decided too long ago, or never existed; what became of it is not known here."""

    code = ErrorCode.TXN_VERDICT_UNKNOWN


class ProducerFenced(Fenced):
    """A newer producer has this transactional id; this one has to end."""

    code = ErrorCode.PRODUCER_FENCED


class InvalidProducerIdMapping(Fenced):
    """The transactional id does not have this producer id, or expired; a new producer has to begin."""

    code = ErrorCode.INVALID_PRODUCER_ID_MAPPING


class FencedOwner(Fenced):
    """The owner of these transactional ids has a newer epoch, or has decided a later unit."""

    code = ErrorCode.FENCED_OWNER


class FencedWriter(Fenced):
    """The partition has another fencing token: a newer writer has taken over, or none was set."""

    code = ErrorCode.FENCED_WRITER


SHOWN_NAME_CHARS_MAX: Final = 249
"""No topic has a longer name."""


def unknown_topic(name: str) -> UnknownTopicOrPartition:
    """The error of a topic that does not exist, in one wording for all services and clients. A long name is cut."""
    shown = name[:SHOWN_NAME_CHARS_MAX]
    return UnknownTopicOrPartition(
        f"topic {shown!r} does not exist; check its name, or create it with: headrace topic create"
    )


def _all_subclasses(root: type[HeadraceError]) -> list[type[HeadraceError]]:
    return [root, *(c for sub in root.__subclasses__() for c in _all_subclasses(sub))]


_KIND_OF: dict[ErrorCode, type[HeadraceError]] = {}
for _cls in _all_subclasses(HeadraceError):
    _KIND_OF[_cls.code] = _cls  # the most specific class of a code comes last
_KIND_OF[ErrorCode.REQUEST_TIMED_OUT] = RequestTimedOut
_KIND_OF[ErrorCode.KAFKA_STORAGE_ERROR] = StorageFailed
_KIND_OF[ErrorCode.UNKNOWN_SERVER_ERROR] = Internal
_KIND_OF[ErrorCode.OVERLOADED] = Overloaded
_KIND_OF[ErrorCode.INVALID_REQUEST] = Rejected
for _code in (ErrorCode.POLICY_VIOLATION, ErrorCode.INVALID_REQUIRED_ACKS, ErrorCode.RECORD_LIST_TOO_LARGE):
    _KIND_OF[_code] = Rejected
for _code in (ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.REPLICA_NOT_AVAILABLE):
    _KIND_OF[_code] = Busy
_KIND_OF[ErrorCode.INCONSISTENT_TOPIC_ID] = Moved
_KIND_OF[ErrorCode.UNKNOWN_PRODUCER_ID] = Fenced
_KIND_OF[ErrorCode.STALE_BROKER_EPOCH] = StaleBrokerEpoch


def error_for(code: int, message: str = "", *, endpoint_hint: str | None = None) -> HeadraceError:
    """The typed error for a code that came over the wire. A code this version does not know becomes ``Internal``."""
    try:
        known = ErrorCode(code)
    except ValueError:
        return Internal(f"error {code}, which this version does not know: {message}")
    assert known is not ErrorCode.NONE, "NONE is not an error"
    cls = _KIND_OF.get(known, Internal)
    return cls(message or known.name, code=known, endpoint_hint=endpoint_hint)
