"""
What every failure is known by: the code, which is Kafka's, and the kind; ``errors`` has one class for each code.

``HeadraceError`` has a ``code`` (Kafka's name and number, the same as in ``errors.proto``), says whether the same
request may be ``retriable``, and of what ``kind`` it is, which is what callers decide by::

    HeadraceError
    ├── Rejected            INVALID     the request is wrong; it will never succeed as it is
    │   ├── Unauthenticated             nobody is known by what the caller has shown; show another credential
    │   └── Denied                      the caller is known and may not do this; somebody has to allow it
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

_RETRIABLE: Final = True


class ErrorCode(IntEnum):
    """Kafka's error names and numbers; from 1000 on our own. Equal to ``errors.proto``, which a test checks."""

    NONE = 0
    UNKNOWN_SERVER_ERROR = -1
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2, _RETRIABLE
    UNKNOWN_TOPIC_OR_PARTITION = 3, _RETRIABLE
    LEADER_NOT_AVAILABLE = 5, _RETRIABLE
    NOT_LEADER_OR_FOLLOWER = 6, _RETRIABLE
    REQUEST_TIMED_OUT = 7, _RETRIABLE
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9, _RETRIABLE
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13, _RETRIABLE
    COORDINATOR_LOAD_IN_PROGRESS = 14, _RETRIABLE
    COORDINATOR_NOT_AVAILABLE = 15, _RETRIABLE
    NOT_COORDINATOR = 16, _RETRIABLE
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19, _RETRIABLE
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, _RETRIABLE
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27, _RETRIABLE
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41, _RETRIABLE
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51, _RETRIABLE
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    OPERATION_NOT_ATTEMPTED = 55, _RETRIABLE
    KAFKA_STORAGE_ERROR = 56, _RETRIABLE
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FENCED_LEADER_EPOCH = 74, _RETRIABLE
    UNKNOWN_LEADER_EPOCH = 75, _RETRIABLE
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78, _RETRIABLE
    PREFERRED_LEADER_NOT_AVAILABLE = 80, _RETRIABLE
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, _RETRIABLE
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88, _RETRIABLE
    THROTTLING_QUOTA_EXCEEDED = 89, _RETRIABLE
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    INVALID_UPDATE_VERSION = 95
    UNKNOWN_TOPIC_ID = 100, _RETRIABLE
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103, _RETRIABLE
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    INELIGIBLE_REPLICA = 107
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111, _RETRIABLE
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    TRANSACTION_ABORTABLE = 120
    INVALID_REGULAR_EXPRESSION = 128
    DISK_FULL = 1000, _RETRIABLE
    REPLICA_DAMAGED = 1001
    METADATA_UNAVAILABLE = 1002, _RETRIABLE
    OVERLOADED = 1003, _RETRIABLE
    FENCED_WRITER = 1004
    TXN_VERDICT_UNKNOWN = 1005
    FENCED_OWNER = 1006
    CREDENTIALS_EXPIRED = 1007
    CREDENTIALS_REVOKED = 1008
    AUDIT_UNAVAILABLE = 1009

    retriable: bool
    """Whether the same request may succeed later, unchanged."""

    def __new__(cls, value: int, retriable: bool = False) -> ErrorCode:
        code = int.__new__(cls, value)
        code._value_, code.retriable = value, retriable
        return code


RETRIABLE: Final = frozenset(code for code in ErrorCode if code.retriable)


class Kind(Enum):
    """What a caller should do about a failure; see the module's text."""

    INVALID = "invalid"
    UNAUTHENTICATED = "unauthenticated"
    DENIED = "denied"
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


_STOPS: Final = frozenset(
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
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        ErrorCode.CREDENTIALS_EXPIRED,
        ErrorCode.CREDENTIALS_REVOKED,
    }
)
"""After these nothing gets better by itself."""


class HeadraceError(Exception):
    """Anything that Headrace reports. ``str(error)`` is a sentence that says what happened and what to do."""

    kind: ClassVar[Kind] = Kind.INTERNAL
    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR
    _then: Then | None = None

    def __init_subclass__(cls, *, kind: Kind | None = None, code: ErrorCode | None = None) -> None:
        super().__init_subclass__()
        if kind is not None:
            cls.kind = kind
        if code is not None:
            cls.code = code

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


class Rejected(HeadraceError, kind=Kind.INVALID, code=ErrorCode.INVALID_REQUEST):
    """The request is wrong and will never succeed as it is."""


class Unauthenticated(Rejected, kind=Kind.UNAUTHENTICATED, code=ErrorCode.SASL_AUTHENTICATION_FAILED):
    """Nobody is known by what the caller has shown."""


class Denied(Rejected, kind=Kind.DENIED, code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
    """The caller is known, and may not do this."""

    audited = False
    """Whether the audit has it."""


class NotFound(HeadraceError, kind=Kind.NOT_FOUND, code=ErrorCode.RESOURCE_NOT_FOUND):
    """The thing named does not exist."""


class Conflict(HeadraceError, kind=Kind.CONFLICT, code=ErrorCode.INVALID_UPDATE_VERSION):
    """It exists already, or changed meanwhile."""


class Moved(HeadraceError, kind=Kind.MOVED, code=ErrorCode.NOT_LEADER_OR_FOLLOWER):
    """Somebody else answers this now."""


class Fenced(HeadraceError, kind=Kind.FENCED, code=ErrorCode.STALE_BROKER_EPOCH):
    """The caller's epoch is old."""


class Busy(HeadraceError, kind=Kind.BUSY, code=ErrorCode.OVERLOADED):
    """Not now; wait and retry the same request."""


class UnknownOutcome(HeadraceError, kind=Kind.UNKNOWN, code=ErrorCode.REQUEST_TIMED_OUT):
    """It may have happened; only what is idempotent may be retried."""


class DataLost(HeadraceError, kind=Kind.DAMAGED, code=ErrorCode.KAFKA_STORAGE_ERROR):
    """Stored bytes are not what was written."""


class Internal(HeadraceError, kind=Kind.INTERNAL, code=ErrorCode.UNKNOWN_SERVER_ERROR):
    """A bug in Headrace."""
