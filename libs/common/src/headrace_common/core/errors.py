"""Every failure that crosses a boundary, one class for each code. Its kind and its base are in ``error_kinds``."""

from __future__ import annotations

from typing import Final

from headrace_common.core.error_kinds import RETRIABLE as RETRIABLE
from headrace_common.core.error_kinds import Busy as Busy
from headrace_common.core.error_kinds import Conflict as Conflict
from headrace_common.core.error_kinds import DataLost as DataLost
from headrace_common.core.error_kinds import Denied as Denied
from headrace_common.core.error_kinds import ErrorCode as ErrorCode
from headrace_common.core.error_kinds import Fenced as Fenced
from headrace_common.core.error_kinds import HeadraceError as HeadraceError
from headrace_common.core.error_kinds import Internal as Internal
from headrace_common.core.error_kinds import Kind as Kind
from headrace_common.core.error_kinds import Moved as Moved
from headrace_common.core.error_kinds import NotFound as NotFound
from headrace_common.core.error_kinds import Rejected as Rejected
from headrace_common.core.error_kinds import Then as Then
from headrace_common.core.error_kinds import Unauthenticated as Unauthenticated
from headrace_common.core.error_kinds import UnknownOutcome as UnknownOutcome

# --- the request is wrong -------------------------------------------------------------------------------------


class InvalidTopic(Rejected, code=ErrorCode.INVALID_TOPIC_EXCEPTION):
    """No topic can have this name."""


class InvalidConfig(Rejected, code=ErrorCode.INVALID_CONFIG):
    """A setting is unknown or its value is out of bounds."""


class InvalidPartitions(Rejected, code=ErrorCode.INVALID_PARTITIONS):
    """The number of partitions is out of bounds."""


class InvalidReplicationFactor(Rejected, code=ErrorCode.INVALID_REPLICATION_FACTOR):
    """The number of replicas is out of bounds, or there are too few brokers."""


class InvalidReplicaAssignment(Rejected, code=ErrorCode.INVALID_REPLICA_ASSIGNMENT):
    """The placement names brokers that do not exist, or one twice."""


class RecordTooLarge(Rejected, code=ErrorCode.MESSAGE_TOO_LARGE):
    """The record or batch is larger than the topic allows."""


class OffsetOutOfRange(Rejected, code=ErrorCode.OFFSET_OUT_OF_RANGE):
    """The offset is below the log start or above the end."""


class CorruptBatch(Rejected, code=ErrorCode.CORRUPT_MESSAGE):
    """The bytes are not a valid record batch."""


class UnsupportedCompression(Rejected, code=ErrorCode.UNSUPPORTED_COMPRESSION_TYPE):
    """The batch is compressed with a codec that is not known."""


class InvalidRecord(Rejected, code=ErrorCode.INVALID_RECORD):
    """The batch is well-formed but may not be written to this topic."""


class InvalidTimestamp(Rejected, code=ErrorCode.INVALID_TIMESTAMP):
    """A timestamp is further from the broker's clock than the topic allows."""


class OutOfOrderSequence(Rejected, code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
    """A batch of this producer is missing before this one."""


class UnsupportedVersion(Rejected, code=ErrorCode.UNSUPPORTED_VERSION):
    """The format or the operation is not known here."""


# --- not found, conflict --------------------------------------------------------------------------------------


class UnknownTopicOrPartition(NotFound, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
    """No such topic or partition here."""


class UnknownTopicId(NotFound, code=ErrorCode.UNKNOWN_TOPIC_ID):
    """No topic has this id; it was deleted, or this node has not heard of it yet."""


class TopicAlreadyExists(Conflict, code=ErrorCode.TOPIC_ALREADY_EXISTS):
    """A topic of this name exists."""


class ElectionNotNeeded(Conflict, code=ErrorCode.ELECTION_NOT_NEEDED):
    """The partition is led as it should be; nothing was changed."""


class NoReassignmentInProgress(Conflict, code=ErrorCode.NO_REASSIGNMENT_IN_PROGRESS):
    """Nothing is under way that could be cancelled."""


class InvalidUpdateVersion(Conflict, code=ErrorCode.INVALID_UPDATE_VERSION):
    """The partition has changed since the leader looked; newer metadata is on its way."""


class IneligibleReplica(Conflict, code=ErrorCode.INELIGIBLE_REPLICA):
    """A replica may not join the ISR now: it is fenced, leaving, or was started anew."""


# --- moved, fenced --------------------------------------------------------------------------------------------


class NotLeader(Moved, code=ErrorCode.NOT_LEADER_OR_FOLLOWER):
    """This broker does not lead the partition."""


class LeaderNotAvailable(Busy, code=ErrorCode.LEADER_NOT_AVAILABLE):
    """Nobody leads the partition now."""


class NotController(Moved, code=ErrorCode.NOT_CONTROLLER):
    """Another controller is active; ``endpoint_hint`` says which, if known."""


class FencedLeaderEpoch(Fenced, code=ErrorCode.FENCED_LEADER_EPOCH):
    """The caller knows an older leader epoch."""


class UnknownLeaderEpoch(Moved, code=ErrorCode.UNKNOWN_LEADER_EPOCH):
    """The caller knows a newer leader epoch than this broker."""


class InvalidProducerEpoch(Fenced, code=ErrorCode.INVALID_PRODUCER_EPOCH):
    """A newer producer with the same id has taken over."""


class StaleBrokerEpoch(Fenced, code=ErrorCode.STALE_BROKER_EPOCH):
    """A newer registration of this node exists."""


class DuplicateRegistration(Fenced, code=ErrorCode.DUPLICATE_BROKER_REGISTRATION):
    """Another living process has this node id."""


class NotRegistered(Fenced, code=ErrorCode.BROKER_ID_NOT_REGISTERED):
    """The controller does not know this node; it must register."""


class ClusterAuthorizationFailed(Denied, code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
    """The caller may not do this to the cluster."""


class TopicAuthorizationFailed(Denied, code=ErrorCode.TOPIC_AUTHORIZATION_FAILED):
    """The caller may not do this with the topic."""


class GroupAuthorizationFailed(Denied, code=ErrorCode.GROUP_AUTHORIZATION_FAILED):
    """The caller may not do this with the group."""


class TransactionalIdAuthorizationFailed(Denied, code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED):
    """The caller may not do this with the transactional id."""


class CredentialsExpired(Unauthenticated, code=ErrorCode.CREDENTIALS_EXPIRED):
    """The credential is over."""


class CredentialsRevoked(Unauthenticated, code=ErrorCode.CREDENTIALS_REVOKED):
    """The credential was taken back, or its owner was blocked."""


class InconsistentClusterId(Rejected, code=ErrorCode.INCONSISTENT_CLUSTER_ID):
    """The data belongs to another cluster."""


# --- not now, unknown, damaged --------------------------------------------------------------------------------


class Overloaded(Busy, code=ErrorCode.OVERLOADED):
    """The server's queue is full."""


class ThrottlingQuotaExceeded(Busy, code=ErrorCode.THROTTLING_QUOTA_EXCEEDED):
    """The caller is above its quota; nothing was done. The text says how long it has to wait."""


class DiskFull(Busy, code=ErrorCode.DISK_FULL):
    """The broker's disk is below its reserve; appends resume when there is space."""


class MetadataUnavailable(Busy, code=ErrorCode.METADATA_UNAVAILABLE):
    """The metadata store cannot be reached."""


class AuditUnavailable(HeadraceError, kind=Kind.BUSY, code=ErrorCode.AUDIT_UNAVAILABLE):
    """What was asked for has to be in the audit, which cannot be written now; nothing was done."""

    chained = False
    """Whether there is an event of it all the same, which is written when the disk works again."""


class OffsetNotAvailable(Busy, code=ErrorCode.OFFSET_NOT_AVAILABLE):
    """The new leader does not know the end of the log yet."""


class NotEnoughReplicas(Busy, code=ErrorCode.NOT_ENOUGH_REPLICAS):
    """Fewer replicas are in sync than min.insync.replicas asks for; nothing was appended."""


class OperationNotAttempted(Busy, code=ErrorCode.OPERATION_NOT_ATTEMPTED):
    """A batch before this one, for the same partition, was refused; this one was not looked at."""

    @classmethod
    def behind_refused(cls) -> OperationNotAttempted:
        """What is said of a batch behind one that was refused."""
        return cls("a batch before it was refused; nothing was appended, send it again")


class NotEnoughReplicasAfterAppend(UnknownOutcome, code=ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
    """The batch was appended, and then the ISR shrank below min.insync.replicas: it is not committed yet."""


class PreferredLeaderNotAvailable(Busy, code=ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE):
    """The preferred replica is not in sync, fenced, leaving or drained."""


class EligibleLeadersNotAvailable(Busy, code=ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE):
    """No replica may lead now."""


class NetworkFailed(UnknownOutcome, code=ErrorCode.NETWORK_EXCEPTION):
    """The connection broke before the answer came."""


class TlsFailed(NetworkFailed):
    """No connection, for want of TLS on one side, or of a certificate that the other takes; nothing was sent."""


class RequestTimedOut(UnknownOutcome, code=ErrorCode.REQUEST_TIMED_OUT):
    """No answer came in time."""


class StorageFailed(DataLost, code=ErrorCode.KAFKA_STORAGE_ERROR):
    """The disk refused; the broker fences itself and stops."""


class ReplicaDamaged(DataLost, code=ErrorCode.REPLICA_DAMAGED):
    """The replica lost records that had been acknowledged."""


class OffsetMetadataTooLarge(Rejected, code=ErrorCode.OFFSET_METADATA_TOO_LARGE):
    """The text beside a committed offset is longer than offset.metadata.max.bytes."""


class InvalidCommitOffset(Rejected, code=ErrorCode.INVALID_COMMIT_OFFSET_SIZE):
    """More was to be committed at once than one append holds; commit in smaller parts."""


class InvalidGroupId(Rejected, code=ErrorCode.INVALID_GROUP_ID):
    """A group id has 1 to 249 characters."""


class InvalidSessionTimeout(Rejected, code=ErrorCode.INVALID_SESSION_TIMEOUT):
    """The session timeout is outside the bounds that the coordinator sets."""


class InconsistentGroupProtocol(Rejected, code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL):
    """The member shares no assignor with the others, or speaks the other protocol."""


class UnsupportedAssignor(Rejected, code=ErrorCode.UNSUPPORTED_ASSIGNOR):
    """The coordinator knows no assignor of this name."""


class InvalidRegularExpression(Rejected, code=ErrorCode.INVALID_REGULAR_EXPRESSION):
    """The pattern of a subscription cannot be read."""


class GroupMaxSizeReached(Rejected, code=ErrorCode.GROUP_MAX_SIZE_REACHED):
    """The group has group.max.size members."""


class GroupNotFound(NotFound, code=ErrorCode.GROUP_ID_NOT_FOUND):
    """There is no group of this id."""


class NonEmptyGroup(Conflict, code=ErrorCode.NON_EMPTY_GROUP):
    """The group has members; stop them first."""


class GroupSubscribedToTopic(Conflict, code=ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC):
    """A member subscribes to the topic whose offsets are to be forgotten."""


class NotCoordinator(Moved, code=ErrorCode.NOT_COORDINATOR):
    """Another coordinator has the group's shard; find it anew."""


class CoordinatorNotAvailable(Busy, code=ErrorCode.COORDINATOR_NOT_AVAILABLE):
    """Nobody has the group's shard now, or its log cannot be written."""


class CoordinatorLoading(Busy, code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
    """The coordinator still reads the shard's log."""


class RebalanceInProgress(Busy, code=ErrorCode.REBALANCE_IN_PROGRESS):
    """The group rebalances; join again."""


class UnstableOffsetCommit(Busy, code=ErrorCode.UNSTABLE_OFFSET_COMMIT):
    """A transaction has an offset pending there; ask again."""


class UnreleasedInstanceId(Busy, code=ErrorCode.UNRELEASED_INSTANCE_ID):
    """The member that has this group_instance_id has not left yet."""


class IllegalGeneration(Fenced, code=ErrorCode.ILLEGAL_GENERATION):
    """The group has another generation."""


class UnknownMemberId(Fenced, code=ErrorCode.UNKNOWN_MEMBER_ID):
    """The group does not know this member; it is out, and joins anew if it wants to go on."""


class FencedInstanceId(Fenced, code=ErrorCode.FENCED_INSTANCE_ID):
    """Another member has taken this group_instance_id."""


class FencedMemberEpoch(Fenced, code=ErrorCode.FENCED_MEMBER_EPOCH):
    """The member speaks with an epoch that it does not have; it joins anew."""


class StaleMemberEpoch(Fenced, code=ErrorCode.STALE_MEMBER_EPOCH):
    """The member has a newer epoch by now; commit with that."""


class InvalidTxnState(Rejected, code=ErrorCode.INVALID_TXN_STATE):
    """The transaction is not in a state in which this is possible."""


class InvalidTransactionTimeout(Rejected, code=ErrorCode.INVALID_TRANSACTION_TIMEOUT):
    """The transaction timeout is longer than transaction.max.timeout.ms, or not positive."""


class TransactionalIdNotFound(NotFound, code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND):
    """The coordinator does not know this transactional id."""


class ConcurrentTransactions(Busy, code=ErrorCode.CONCURRENT_TRANSACTIONS):
    """The end of the transaction before is still being written; try again in a moment."""


class TransactionAbortable(Conflict, code=ErrorCode.TRANSACTION_ABORTABLE):
    """The transaction cannot be committed any more; abort it, then begin the next."""


class TxnVerdictUnknown(Conflict, code=ErrorCode.TXN_VERDICT_UNKNOWN):
    """The prepared transaction was decided too long ago, or never existed; what became of it is not known here."""


class ProducerFenced(Fenced, code=ErrorCode.PRODUCER_FENCED):
    """A newer producer has this transactional id; this one has to end."""


class InvalidProducerIdMapping(Fenced, code=ErrorCode.INVALID_PRODUCER_ID_MAPPING):
    """The transactional id does not have this producer id, or expired; a new producer has to begin."""


class FencedOwner(Fenced, code=ErrorCode.FENCED_OWNER):
    """The owner of these transactional ids has a newer epoch, or has decided a later unit."""


class FencedWriter(Fenced, code=ErrorCode.FENCED_WRITER):
    """The partition has another fencing token: a newer writer has taken over, or none was set."""


SHOWN_NAME_CHARS_MAX: Final = 249
"""No topic has a longer name."""


def unknown_topic(name: str) -> UnknownTopicOrPartition:
    """The error of a topic that does not exist, in one wording for all services and clients. A long name is cut."""
    shown = name[:SHOWN_NAME_CHARS_MAX]
    return UnknownTopicOrPartition(
        f"topic {shown!r} does not exist; check its name, or create it with: headrace topic create"
    )


def _with_subclasses(root: type[HeadraceError]) -> list[type[HeadraceError]]:
    return [root, *(cls for sub in root.__subclasses__() for cls in _with_subclasses(sub))]


_CLASS_OF: Final[dict[ErrorCode, type[HeadraceError]]] = {
    **{cls.code: cls for cls in _with_subclasses(HeadraceError)},  # the most specific class of a code comes last
    ErrorCode.NETWORK_EXCEPTION: NetworkFailed,  # that TLS failed is seen on this side alone
    ErrorCode.POLICY_VIOLATION: Rejected,
    ErrorCode.INVALID_REQUIRED_ACKS: Rejected,
    ErrorCode.RECORD_LIST_TOO_LARGE: Rejected,
    ErrorCode.BROKER_NOT_AVAILABLE: Busy,
    ErrorCode.REPLICA_NOT_AVAILABLE: Busy,
    ErrorCode.INCONSISTENT_TOPIC_ID: Moved,
    ErrorCode.UNKNOWN_PRODUCER_ID: Fenced,
}


def error_for(code: int, message: str = "", *, endpoint_hint: str | None = None) -> HeadraceError:
    """The typed error for a code that came over the wire. A code this version does not know becomes ``Internal``."""
    try:
        known = ErrorCode(code)
    except ValueError:
        return Internal(f"error {code}, which this version does not know: {message}")
    assert known is not ErrorCode.NONE, "NONE is not an error"
    cls = _CLASS_OF.get(known, Internal)
    return cls(message or known.name, code=known, endpoint_hint=endpoint_hint)
