"""
Every failure that Headrace reports, as one tree. ``str(error)`` says what happened and what to do next.

::

    HeadraceError                       code, kind, retriable
    ├── Rejected                        the request is wrong; it will never succeed as it is
    │   ├── InvalidTopic                no topic can have this name
    │   ├── InvalidConfig               a setting is unknown, or its value is out of bounds
    │   ├── InvalidPartitions           the number of partitions is out of bounds
    │   ├── InvalidReplicationFactor    there are too few brokers
    │   ├── RecordTooLarge              larger than max_request_size, or than the topic's max.message.bytes
    │   ├── InvalidTimestamp            too far from the broker's clock
    │   ├── InvalidRecord               may not be written to this topic
    │   ├── OffsetOutOfRange            below the start of the log, or above its end
    │   │   └── PositionOutOfRange      a consumer's position is, and auto_offset_reset is 'none'; says what is gone
    │   ├── CorruptBatch                stored or sent bytes are damaged
    │   ├── OutOfOrderSequence          an earlier batch of this producer is missing
    │   ├── NoPosition                  a partition has no position, and auto_offset_reset is 'none'
    │   ├── NoGroup                     the call needs a group_id
    │   ├── InvalidGroupId              a group id has 1 to 249 characters
    │   ├── InvalidSessionTimeout       outside the bounds that the coordinator sets
    │   ├── InconsistentClusterId       another cluster answers where the one that is meant was
    │   ├── InconsistentGroupProtocol   the other members speak another protocol, or share no assignor
    │   ├── UnsupportedAssignor         there is none of this name
    │   ├── InvalidRegularExpression    the pattern of a subscription cannot be read
    │   ├── GroupMaxSizeReached         the group is full
    │   ├── OffsetMetadataTooLarge      the text beside a committed offset is too long
    │   ├── InvalidTxnState             not possible now, or without begin_transaction()
    │   ├── InvalidTransactionTimeout   outside the bounds that the coordinator sets
    │   ├── Unauthenticated             nobody is known by what the client has shown: give it another API key
    │   │   ├── CredentialsExpired      the key is over
    │   │   │   └── ExpiredUnderWay     as below
    │   │   ├── CredentialsRevoked      the key was deleted, or its owner is blocked
    │   │   │   └── RevokedUnderWay     and the record was under way: it may have been written (an UnknownOutcome, too)
    │   │   └── CredentialInPlainText   a key would have gone to another machine without TLS; nothing was sent
    │   ├── Denied                      the client is known and may not do this: somebody has to allow it
    │   │   ├── TopicAuthorizationFailed
    │   │   ├── GroupAuthorizationFailed
    │   │   ├── TransactionalIdAuthorizationFailed
    │   │   └── ClusterAuthorizationFailed
    │   ├── SerializationFailed         a serializer raised (its error is the cause), or took no bytes
    │   └── ClientClosed                used after close(), or after a fork
    ├── NotFound                        the thing named does not exist
    │   ├── UnknownTopicOrPartition     no such topic or partition
    │   └── TransactionalIdNotFound     no coordinator knows it
    ├── Conflict                        it exists already, or changed meanwhile
    │   ├── TopicAlreadyExists
    │   ├── TransactionAbortable        it cannot be committed any more: abort, and do its work again
    │   ├── AlreadyDecided              the prepared transaction was decided before, the other way
    │   ├── TxnVerdictUnknown           it was decided too long ago, or never prepared
    │   ├── ElectionNotNeeded           the partition is led as it should be
    │   └── NoReassignmentInProgress    there is nothing to cancel
    ├── Moved                           somebody else answers this now; clients follow by themselves
    │   ├── NotLeader
    │   └── NotCoordinator
    ├── Fenced                          an epoch is old
    │   ├── InvalidProducerEpoch        the transaction has ended already; or another producer has this producer id
    │   ├── ProducerFenced              a newer producer has this transactional_id
    │   ├── InvalidProducerIdMapping    the transactional_id expired, or was given to another producer
    │   ├── FencedOwner                 a newer owner has these transactional ids, or decided a later unit
    │   ├── FencedWriter                another writer has taken a partition over, or it wants a fencing token
    │   ├── UnknownMemberId             out of the group: what was read is somebody else's to commit
    │   ├── IllegalGeneration           the group has gone on without this member (classic)
    │   ├── StaleMemberEpoch            the same (server-side protocol)
    │   ├── FencedMemberEpoch           the same, told by the coordinator
    │   └── FencedInstanceId            another consumer has taken this group_instance_id
    ├── Busy                            not now: wait, and retry the same request
    │   ├── NotEnoughReplicas           fewer are in sync than min.insync.replicas; nothing was written
    │   ├── PreferredLeaderNotAvailable the replica that should lead cannot now
    │   ├── EligibleLeadersNotAvailable no replica may lead now
    │   ├── BufferExhausted             buffer_memory stayed full for max_block_ms; nothing was accepted
    │   ├── LeaderNotAvailable          nobody leads the partition now
    │   ├── CoordinatorNotAvailable     nobody has the group now
    │   ├── CoordinatorLoading          the coordinator still reads what it needs
    │   ├── RebalanceInProgress         the group rebalances; poll, and commit again
    │   ├── UnreleasedInstanceId        the consumer that has this group_instance_id has not left yet
    │   ├── ConcurrentTransactions      the end of the transaction before is still being written
    │   ├── UnstableOffsetCommit        a transaction has an offset pending
    │   ├── DiskFull                    the broker is below its reserve
    │   └── Overloaded                  the broker's queue is full
    ├── AuditUnavailable                it has to be in the audit, which cannot be written now; nothing was done
    ├── UnknownOutcome                  it may have happened; retry only what is idempotent
    │   ├── NetworkFailed               the connection broke before the answer came
    │   │   ├── TlsFailed               TLS on one side only, or a certificate that is not trusted; nothing was sent
    │   │   └── ClusterUnreachable      nobody listens at the addresses, and nobody ever answered there
    │   ├── RequestTimedOut             no answer came in time
    │   ├── NotEnoughReplicasAfterAppend written, and not committed yet
    │   ├── DeliveryTimedOut            not acknowledged within delivery_timeout_ms
    │   └── WaitTimedOut                your own timeout of result(), flush() or close(); the work goes on
    ├── DataLost                        stored bytes are not what was written
    │   └── LogTruncated                records that were read are not in the log any more
    └── Internal                        a bug in Headrace

All are subclasses of ``HeadraceError``, so one clause catches them::

    >>> from headrace import errors
    >>> raise errors.RecordTooLarge("the record has 2097152 bytes")
    Traceback (most recent call last):
    ...
    headrace_common.core.errors.RecordTooLarge: the record has 2097152 bytes
    >>> issubclass(errors.RecordTooLarge, errors.HeadraceError), errors.RecordTooLarge().retriable
    (True, False)

**In transactions** ``error.then`` says what to do: ``"retry"`` the same call, ``"abort"`` the transaction and do its
work again, or ``"fenced"``: stop and close it, another has taken its place or what it was told stays wrong::

    >>> errors.TransactionAbortable().then, errors.ProducerFenced().then, errors.ConcurrentTransactions().then
    (<Then.ABORT: 'abort'>, <Then.FENCED: 'fenced'>, <Then.RETRY: 'retry'>)
    >>> errors.ProducerFenced().then == "fenced"
    True
"""

from __future__ import annotations

from headrace_common.core.errors import AuditUnavailable as AuditUnavailable
from headrace_common.core.errors import Busy as Busy
from headrace_common.core.errors import ClusterAuthorizationFailed as ClusterAuthorizationFailed
from headrace_common.core.errors import ConcurrentTransactions as ConcurrentTransactions
from headrace_common.core.errors import Conflict as Conflict
from headrace_common.core.errors import CoordinatorLoading as CoordinatorLoading
from headrace_common.core.errors import CoordinatorNotAvailable as CoordinatorNotAvailable
from headrace_common.core.errors import CorruptBatch as CorruptBatch
from headrace_common.core.errors import CredentialsExpired as CredentialsExpired
from headrace_common.core.errors import CredentialsRevoked as CredentialsRevoked
from headrace_common.core.errors import DataLost as DataLost
from headrace_common.core.errors import Denied as Denied
from headrace_common.core.errors import DiskFull as DiskFull
from headrace_common.core.errors import ElectionNotNeeded as ElectionNotNeeded
from headrace_common.core.errors import EligibleLeadersNotAvailable as EligibleLeadersNotAvailable
from headrace_common.core.errors import ErrorCode as ErrorCode
from headrace_common.core.errors import Fenced as Fenced
from headrace_common.core.errors import FencedInstanceId as FencedInstanceId
from headrace_common.core.errors import FencedLeaderEpoch as FencedLeaderEpoch
from headrace_common.core.errors import FencedMemberEpoch as FencedMemberEpoch
from headrace_common.core.errors import FencedOwner as FencedOwner
from headrace_common.core.errors import FencedWriter as FencedWriter
from headrace_common.core.errors import GroupAuthorizationFailed as GroupAuthorizationFailed
from headrace_common.core.errors import GroupMaxSizeReached as GroupMaxSizeReached
from headrace_common.core.errors import GroupNotFound as GroupNotFound
from headrace_common.core.errors import HeadraceError as HeadraceError
from headrace_common.core.errors import IllegalGeneration as IllegalGeneration
from headrace_common.core.errors import InconsistentClusterId as InconsistentClusterId
from headrace_common.core.errors import InconsistentGroupProtocol as InconsistentGroupProtocol
from headrace_common.core.errors import Internal as Internal
from headrace_common.core.errors import InvalidCommitOffset as InvalidCommitOffset
from headrace_common.core.errors import InvalidConfig as InvalidConfig
from headrace_common.core.errors import InvalidGroupId as InvalidGroupId
from headrace_common.core.errors import InvalidPartitions as InvalidPartitions
from headrace_common.core.errors import InvalidProducerEpoch as InvalidProducerEpoch
from headrace_common.core.errors import InvalidProducerIdMapping as InvalidProducerIdMapping
from headrace_common.core.errors import InvalidRecord as InvalidRecord
from headrace_common.core.errors import InvalidRegularExpression as InvalidRegularExpression
from headrace_common.core.errors import InvalidReplicaAssignment as InvalidReplicaAssignment
from headrace_common.core.errors import InvalidReplicationFactor as InvalidReplicationFactor
from headrace_common.core.errors import InvalidSessionTimeout as InvalidSessionTimeout
from headrace_common.core.errors import InvalidTimestamp as InvalidTimestamp
from headrace_common.core.errors import InvalidTopic as InvalidTopic
from headrace_common.core.errors import InvalidTransactionTimeout as InvalidTransactionTimeout
from headrace_common.core.errors import InvalidTxnState as InvalidTxnState
from headrace_common.core.errors import Kind as Kind
from headrace_common.core.errors import LeaderNotAvailable as LeaderNotAvailable
from headrace_common.core.errors import MetadataUnavailable as MetadataUnavailable
from headrace_common.core.errors import Moved as Moved
from headrace_common.core.errors import NetworkFailed as NetworkFailed
from headrace_common.core.errors import NonEmptyGroup as NonEmptyGroup
from headrace_common.core.errors import NoReassignmentInProgress as NoReassignmentInProgress
from headrace_common.core.errors import NotController as NotController
from headrace_common.core.errors import NotCoordinator as NotCoordinator
from headrace_common.core.errors import NotEnoughReplicas as NotEnoughReplicas
from headrace_common.core.errors import NotEnoughReplicasAfterAppend as NotEnoughReplicasAfterAppend
from headrace_common.core.errors import NotFound as NotFound
from headrace_common.core.errors import NotLeader as NotLeader
from headrace_common.core.errors import OffsetMetadataTooLarge as OffsetMetadataTooLarge
from headrace_common.core.errors import OffsetNotAvailable as OffsetNotAvailable
from headrace_common.core.errors import OffsetOutOfRange as OffsetOutOfRange
from headrace_common.core.errors import OutOfOrderSequence as OutOfOrderSequence
from headrace_common.core.errors import Overloaded as Overloaded
from headrace_common.core.errors import PreferredLeaderNotAvailable as PreferredLeaderNotAvailable
from headrace_common.core.errors import ProducerFenced as ProducerFenced
from headrace_common.core.errors import RebalanceInProgress as RebalanceInProgress
from headrace_common.core.errors import RecordTooLarge as RecordTooLarge
from headrace_common.core.errors import Rejected as Rejected
from headrace_common.core.errors import ReplicaDamaged as ReplicaDamaged
from headrace_common.core.errors import RequestTimedOut as RequestTimedOut
from headrace_common.core.errors import StaleMemberEpoch as StaleMemberEpoch
from headrace_common.core.errors import StorageFailed as StorageFailed
from headrace_common.core.errors import Then as Then
from headrace_common.core.errors import TlsFailed as TlsFailed
from headrace_common.core.errors import TopicAlreadyExists as TopicAlreadyExists
from headrace_common.core.errors import TopicAuthorizationFailed as TopicAuthorizationFailed
from headrace_common.core.errors import TransactionAbortable as TransactionAbortable
from headrace_common.core.errors import TransactionalIdAuthorizationFailed as TransactionalIdAuthorizationFailed
from headrace_common.core.errors import TransactionalIdNotFound as TransactionalIdNotFound
from headrace_common.core.errors import TxnVerdictUnknown as TxnVerdictUnknown
from headrace_common.core.errors import Unauthenticated as Unauthenticated
from headrace_common.core.errors import UnknownLeaderEpoch as UnknownLeaderEpoch
from headrace_common.core.errors import UnknownMemberId as UnknownMemberId
from headrace_common.core.errors import UnknownOutcome as UnknownOutcome
from headrace_common.core.errors import UnknownTopicId as UnknownTopicId
from headrace_common.core.errors import UnknownTopicOrPartition as UnknownTopicOrPartition
from headrace_common.core.errors import UnreleasedInstanceId as UnreleasedInstanceId
from headrace_common.core.errors import UnstableOffsetCommit as UnstableOffsetCommit
from headrace_common.core.errors import UnsupportedAssignor as UnsupportedAssignor
from headrace_common.core.errors import UnsupportedCompression as UnsupportedCompression
from headrace_common.core.errors import UnsupportedVersion as UnsupportedVersion
from headrace_common.core.errors import error_for as error_for
from headrace_common.core.ids import TopicPartition


class BufferExhausted(Busy, code=ErrorCode.OVERLOADED):
    """The producer's buffer_memory stayed full for max_block_ms; nothing of this call was accepted."""


class CredentialInPlainText(Unauthenticated):
    """The API key would have gone to another machine in plain text; nothing was sent."""

    @classmethod
    def to(cls, target: str, what: str = "API key") -> CredentialInPlainText:
        """To ``host:port``."""
        return cls(
            f"the {what} is not sent to {target} in plain text, where whoever is in between could read it: use TLS, "
            "with ssl_ca_location or HEADRACE_CA (a file with the CAs of the cluster)"
        )


class ClusterUnreachable(NetworkFailed):
    """
    This client has never had an answer, and for some seconds nobody listened at any of its addresses, their names were
    unknown, or TLS let no connection come about; nothing was sent. The same call may be made again, and is told so
    again at once while that is so.
    """


class ClientClosed(Rejected, code=ErrorCode.INVALID_REQUEST):
    """The client was closed: make a new one. Or it belongs to the process this one was forked from: make one here."""

    _then = Then.FENCED

    @classmethod
    def by_fork(cls, kind: str) -> ClientClosed:
        """What a client of the parent process says in a forked child."""
        return cls(
            f"the {kind} belongs to the process that this one was forked from, and works there only;"
            " make a new one in this process"
        )


class SerializationFailed(Rejected, code=ErrorCode.INVALID_RECORD):
    """A serializer or deserializer raised, or a key or value is not of a type that can be written."""


class NoPosition(Rejected, code=ErrorCode.OFFSET_OUT_OF_RANGE):
    """A partition has no position and auto_offset_reset is 'none'; seek to where reading starts."""


class PositionOutOfRange(OffsetOutOfRange):
    """The log does not hold a consumer's position, and auto_offset_reset is 'none'; seek to where reading goes on."""

    partition: TopicPartition | None = None
    """Whose log it is."""
    offset: int = -1
    """Where the consumer was: the next record that it wanted."""
    log_start: int = -1
    """The first offset that the log holds."""
    log_end: int = -1
    """Behind the last one that can be read."""

    @classmethod
    def at(
        cls,
        partition: TopicPartition,
        offset: int,
        log_start: int,
        log_end: int,
        *,
        advice: str = "Seek to where reading goes on, or set auto_offset_reset",
    ) -> PositionOutOfRange:
        """The log holds ``log_start`` up to ``log_end``; the reader was at ``offset``."""
        gone = f"records {offset} to {log_start - 1} were deleted before they were read; " if offset < log_start else ""
        holds = f"holds {log_start} to {log_end - 1}" if log_start < log_end else f"is empty at {log_end}"
        error = cls(f"{partition}: offset {offset} does not exist: {gone}the log {holds}. {advice}")
        error.partition, error.offset, error.log_start, error.log_end = partition, offset, log_start, log_end
        return error

    @property
    def gone(self) -> range:
        """The offsets that were deleted before they were read; none where the position is above the end."""
        return range(self.offset, max(self.offset, self.log_start))


class LogTruncated(DataLost, code=ErrorCode.OFFSET_OUT_OF_RANGE):
    """Records that were read are not in the log any more; seek to where its content is still known, to go on there."""

    partition: TopicPartition | None = None
    """Whose log it is."""
    offset: int = -1
    """Where to seek to: below it the log is as it was read."""

    @classmethod
    def at(cls, partition: TopicPartition, lost: int, offset: int) -> LogTruncated:
        """The log is as it was read below ``offset``; the reader was at ``lost``."""
        error = cls(
            f"{partition}: records {offset} to {lost - 1} were read and are lost: a leader was elected that did not "
            f"hold them. Seek to {offset} to go on with the records that remain, or set auto_offset_reset"
        )
        error.partition, error.offset = partition, offset
        return error


class NoGroup(Rejected):
    """The call needs a group: make the consumer with a group_id."""

    _then = Then.FENCED


class DeliveryTimedOut(UnknownOutcome, code=ErrorCode.REQUEST_TIMED_OUT):
    """The record was not acknowledged within delivery_timeout_ms; if it was sent, it may have been written."""

    _then = Then.ABORT


class RevokedUnderWay(CredentialsRevoked, UnknownOutcome, code=ErrorCode.CREDENTIALS_REVOKED):
    """The credential was taken back while the record was under way; it may have been written."""


class ExpiredUnderWay(CredentialsExpired, UnknownOutcome, code=ErrorCode.CREDENTIALS_EXPIRED):
    """The credential ended while the record was under way; it may have been written."""


class AlreadyDecided(Conflict, code=ErrorCode.INVALID_TXN_STATE):
    """The prepared transaction was decided before, the other way; that verdict stands."""


class WaitTimedOut(UnknownOutcome, TimeoutError, code=ErrorCode.REQUEST_TIMED_OUT):
    """The caller's own timeout has passed; the work goes on in the background."""
