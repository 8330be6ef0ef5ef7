"""
Decides what a producer may be told: Kafka's setting names with underscores, their bounds, and the rules between them.

``Producer(**settings)`` of both twins reads its keyword arguments here; consumers use the same reader for theirs.
All that is wrong is told in one error, an unknown name with those that are near it::

    >>> from headrace.settings import ProducerSettings, read_settings
    >>> read_settings(ProducerSettings, {"linger_ms": 20}).linger_ms
    20
    >>> read_settings(ProducerSettings, {"batch_sise": 1})
    Traceback (most recent call last):
    ...
    headrace_common.core.errors.InvalidConfig: batch_sise is not a setting; did you mean batch_size?
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, get_args

from headrace._setting_names import explain_setting
from headrace.finding import (
    ClusterAddress,
    bootstrap_addresses,
    certificate_files,
    credentialed,
    secured,
    user_login,
)
from headrace.setting_types import Acks, CompressionType, Mechanism, Partitioner, SecurityProtocol, SerializerName
from headrace_common.core.bounds import find_problem, setting
from headrace_common.core.errors import InvalidConfig
from headrace_common.core.secret import Secret

if TYPE_CHECKING:
    from headrace.delivery import DeliveredBatch
    from headrace.serializers import Serializer

CODECS: Final[tuple[str, ...]] = get_args(CompressionType)
INT_MAX: Final = 2**31 - 1
IDEMPOTENT_IN_FLIGHT_MAX: Final = 5
BATCH_SIZE: Final = 131_072
"""A partition remembers this many batches of a producer."""
TRANSACTIONAL_ID_LENGTH_MAX: Final = 249

KAFKAS_NAMES: Final[Mapping[str, str]] = {
    "sasl_username": "username",
    "sasl_password": "password",
    "sasl_plain_username": "username",
    "sasl_plain_password": "password",
    "sasl_mechanisms": "sasl_mechanism",
    "ssl_certificate_location": "cert_file",
    "ssl_key_location": "key_file",
    "ssl_certfile": "cert_file",
    "ssl_keyfile": "key_file",
}
"""What Kafka's clients call a setting that is there under another name."""

S = TypeVar("S", bound="ClientSettings")


def _int(default: int, low: int, high: int = INT_MAX) -> Any:
    return setting(default, low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """What producers, consumers and admin clients have in common."""

    client_id: str = "headrace-python"
    """Names this client in logs."""
    request_timeout_ms: int = _int(30_000, 1)
    """How long a broker may take to answer one request, in ms."""
    metadata_max_age_ms: int = _int(300_000, 100)
    """Metadata is asked for again after this time, in ms."""
    retry_backoff_ms: int = _int(100, 0)
    """Wait before the first repetition, in ms; doubles with each."""
    retry_backoff_max_ms: int = _int(1_000, 0)
    """Longest wait between repetitions, in ms."""
    security_protocol: SecurityProtocol | None = setting(None, choices=get_args(SecurityProtocol))
    """SSL or PLAINTEXT; without it TLS where there is a file of CAs. SASL_SSL and SASL_PLAINTEXT are the same."""
    ssl_ca_location: str | None = None
    """File with the CAs of the cluster's certificates, in PEM; without it ``HEADRACE_CA``, or what the profile says, or
    the local cluster. It is read again when a certificate is not taken, so CAs can be changed beneath a client."""
    api_key: Secret | str | None = None
    """The API key that the client shows, ``hrk_ID_SECRET``, or a token of an issuer that the cluster takes; better a
    file. It goes over TLS, or to this machine."""
    api_key_file: str | None = None
    """A file with the API key, or the token; without either ``HEADRACE_API_KEY``, ``HEADRACE_API_KEY_FILE``, or what
    the profile says, or the local cluster. It is read again when it has changed, so keys can be changed beneath a
    client."""
    token_file: str | None = None
    """A file with a token; as api_key_file."""
    username: str | None = None
    """Whom the client logs in as, with a password; without it ``HEADRACE_USERNAME``, or what the profile says."""
    password: Secret | str | None = None
    """The password; better a file. It is never sent: the client proves that it has it (SCRAM)."""
    password_file: str | None = None
    """A file with the password; without either ``HEADRACE_PASSWORD`` or ``HEADRACE_PASSWORD_FILE``."""
    sasl_mechanism: Mechanism | None = setting(None, choices=get_args(Mechanism))
    """How it proves that: SCRAM-SHA-512, as without it, or SCRAM-SHA-256."""
    cert_file: str | None = None
    """File with the certificate that the client shows where it is asked for one, then those that lead to a CA, in PEM;
    without it ``HEADRACE_CERT``, or what the profile says. It is read again when it has changed."""
    key_file: str | None = None
    """File with the key of cert_file, in PEM without a password; without it ``HEADRACE_KEY``."""

    def __post_init__(self) -> None:
        for name in ("api_key", "password"):
            given = getattr(self, name)
            if isinstance(given, str):
                object.__setattr__(self, name, Secret(given))

    def find(self, servers: str | Sequence[str] | None) -> ClusterAddress:
        """
        The cluster that is meant by ``servers``, and how to speak to it.

        Raises:
            InvalidConfig: an address or a setting is wrong.
        """
        protocol = self.security_protocol and self.security_protocol.removeprefix("SASL_")
        found = secured(bootstrap_addresses(servers), protocol, self.ssl_ca_location)
        assert not isinstance(self.api_key, str), "it became a secret"
        assert not isinstance(self.password, str), "it became a secret"
        user = user_login(self.username, self.password, self.password_file, self.sasl_mechanism)
        return credentialed(
            found,
            self.api_key,
            self.api_key_file,
            os.environ,
            token_file=self.token_file,
            user=user,
            certificate=certificate_files(self.cert_file, self.key_file),
        )

    def rules(self) -> list[str]:
        """What is wrong between fields; empty when nothing is."""
        return []

    def rules_of_given(self, given: Collection[str]) -> list[str]:
        """What is wrong with having named these at all."""
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidingSettings(ClientSettings):
    """Settings of ``PreparedTransactions`` and ``UnitOwner``."""

    default_api_timeout_ms: int = _int(60_000, 1)
    """How long a call is repeated while nobody answers, in ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings(ClientSettings):
    """Settings of a producer. Defaults are those of Kafka's Java client 4.x, except ``batch_size``."""

    acks: Acks = "all"
    """``"all"`` (or -1): all in-sync replicas hold the record. 1: the leader does. 0: nobody answers."""
    enable_idempotence: bool = True
    """No duplicates and no reordering through retries; off by itself with other ``acks`` than all: it needs those."""
    max_in_flight_requests_per_connection: int = _int(5, 1, 1_000)
    """Batches of one partition under way at a time; at most 5 with idempotence."""
    retries: int = _int(INT_MAX, 0)
    """How often a batch is sent again; delivery_timeout_ms is the bound that matters."""
    delivery_timeout_ms: int = _int(120_000, 1)
    """From ``send`` to failure, in ms; at least linger_ms + request_timeout_ms."""
    linger_ms: float = setting(5, low=0, high=INT_MAX)
    """How long records wait for company, in ms."""
    batch_size: int = _int(BATCH_SIZE, 1, 64 << 20)
    """A batch of one partition is closed at this size, in bytes before compression."""
    batch_size_max: int = _int(1_000_000, 1, 64 << 20)
    """Where records wait because the brokers are busy, batches grow to this size; batch_size where that is given."""
    buffer_memory: int = _int(32 << 20, 1 << 16, 1 << 40)
    """Bytes of records that may wait or be under way; when full, calls wait."""
    max_block_ms: int = _int(60_000, 0)
    """How long a call waits for metadata or for buffer space, in ms."""
    max_request_size: int = _int(1 << 20, 64, 64 << 20)
    """Largest record, and largest request, in bytes."""
    compression_type: CompressionType = setting("none", choices=CODECS)
    """none, gzip, snappy, lz4 or zstd; a whole batch is compressed."""
    partitioner: Partitioner | None = None
    """``f(topic, key, partitions) -> int``, called per record; or one marked with ``headrace.bulk_partitioner``."""
    key_serializer: Serializer | SerializerName | None = None
    """Turns a key into bytes; a function of one argument, or a name: ``string``, ``json``, ``int64``…"""
    value_serializer: Serializer | SerializerName | None = None
    """Turns a value into bytes; a function of one argument, or a name."""
    transactional_id: str | None = None
    """Names this producer for ever, 1 to 249 characters: then it writes in transactions, and fences earlier producers
    of the same id. Ids of the form ``owner/suffix`` belong to units (``headrace.UnitOwner``), need ``owner_epoch``."""
    transaction_timeout_ms: int = _int(60_000, 1)
    """One that is open for longer is aborted by its coordinator, in ms; at most transaction.max.timeout.ms."""
    owner_epoch: int | None = None
    """What ``UnitOwner.init()`` gave the owner of this transactional id."""
    on_delivery: Callable[[DeliveredBatch], object] | None = None
    """Called with each ``DeliveredBatch``, on the client's own thread: be quick."""
    trace: bool = True
    """Add ``traceparent`` to the headers where an OpenTelemetry span is active."""

    ALIASES: ClassVar[Mapping[str, str]] = {"max_in_flight": "max_in_flight_requests_per_connection"}

    @property
    def acks_number(self) -> int:
        """-1, 0 or 1, as on the wire."""
        return -1 if self.acks in ("all", "-1", -1) else int(self.acks)

    def rules(self) -> list[str]:
        """Kafka's rules between settings."""
        wrong: list[str] = []
        if self.acks not in ("all", "-1", "0", "1", -1, 0, 1) or isinstance(self.acks, bool):
            return [f"acks takes 'all', 1 or 0, not {self.acks!r}"]
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:
            wrong.append(
                f"delivery_timeout_ms ({self.delivery_timeout_ms}) must be at least linger_ms + request_timeout_ms "
                f"({self.linger_ms:g} + {self.request_timeout_ms})"
            )
        if self.retry_backoff_max_ms < self.retry_backoff_ms:
            wrong.append(f"retry_backoff_max_ms ({self.retry_backoff_max_ms}) is below retry_backoff_ms")
        if self.batch_size_max < self.batch_size:
            wrong.append(f"batch_size_max ({self.batch_size_max}) is below batch_size ({self.batch_size})")
        if self.max_request_size > self.buffer_memory:
            wrong.append(f"max_request_size ({self.max_request_size}) is above buffer_memory ({self.buffer_memory})")
        if self.enable_idempotence:
            wrong += self._idempotence_rules()
        return wrong + self._transaction_rules()

    def _transaction_rules(self) -> list[str]:
        key, wrong = self.transactional_id, list[str]()
        if key is not None and (not isinstance(key, str) or not 1 <= len(key) <= TRANSACTIONAL_ID_LENGTH_MAX):
            wrong.append(f"transactional_id takes a text of 1 to {TRANSACTIONAL_ID_LENGTH_MAX} characters, not {key!r}")
            return wrong
        if key is not None and not self.enable_idempotence:
            wrong.append("transactional_id needs enable_idempotence, and so acks='all'; leave both out")
        unit = key is not None and "/" in key
        epoch = self.owner_epoch
        if unit and (not isinstance(epoch, int) or isinstance(epoch, bool) or epoch < 0):
            wrong.append(f"transactional_id {key!r} belongs to an owner of units: owner_epoch= is what its init() gave")
        elif epoch is not None and not unit:
            wrong.append("owner_epoch is for transactional ids of the form 'owner/suffix'")
        return wrong

    def _idempotence_rules(self) -> list[str]:
        wrong: list[str] = []
        if self.acks_number != -1:
            wrong.append(f"enable_idempotence needs acks='all', not {self.acks!r}; or turn it off")
        if self.max_in_flight_requests_per_connection > IDEMPOTENT_IN_FLIGHT_MAX:
            wrong.append(
                f"enable_idempotence allows at most {IDEMPOTENT_IN_FLIGHT_MAX} for "
                f"max_in_flight_requests_per_connection, not {self.max_in_flight_requests_per_connection}"
            )
        if self.retries == 0:
            wrong.append("enable_idempotence needs retries above 0")
        return wrong


def read_settings(kind: type[S], given: Mapping[str, Any]) -> S:
    """
    Check keyword arguments and return them with the defaults.

    Raises:
        InvalidConfig: all that is wrong, in one text.
    """
    known = {f.name: f for f in fields(kind)}
    aliases: Mapping[str, str] = {**KAFKAS_NAMES, **getattr(kind, "ALIASES", {})}
    values: dict[str, Any] = {}
    wrong: list[str] = []
    for written, value in given.items():
        name = written.replace(".", "_")
        name = aliases.get(name, name)
        if name not in known:
            wrong.append(explain_setting(written) or _unknown(written, [*known, *aliases]))
            continue
        problem = _problem(name, value, known[name])
        if problem:
            wrong.append(problem)
        values[name] = value
    if wrong:
        raise InvalidConfig("; ".join(wrong))
    _derive(kind, values)
    settings = kind(**values)
    wrong = settings.rules() + settings.rules_of_given(values)
    if wrong:
        raise InvalidConfig("; ".join(wrong))
    return settings


def waits_as_told(setting_name: str, given: Collection[str]) -> bool:
    """Whether the application has said itself, by this setting, how long a call may wait for a cluster."""
    return setting_name in {written.replace(".", "_") for written in given}


def _derive(kind: type[ClientSettings], values: dict[str, Any]) -> None:
    """
    Idempotence is the default only where nothing else that was asked for rules it out, as in Kafka; a ``batch_size``
    that was asked for is the largest, and none is larger than a ``batch_size_max`` that was asked for.
    """
    if not issubclass(kind, ProducerSettings):
        return
    if "batch_size" in values:
        values.setdefault("batch_size_max", values["batch_size"])
    elif isinstance(most := values.get("batch_size_max"), int) and 0 < most < BATCH_SIZE:
        values["batch_size"] = most
    if "enable_idempotence" in values:
        return
    acks_all = values.get("acks", "all") in ("all", "-1", -1)
    in_flight = values.get("max_in_flight_requests_per_connection", 1)
    values["enable_idempotence"] = acks_all and in_flight <= IDEMPOTENT_IN_FLIGHT_MAX and values.get("retries", 1) > 0


def _unknown(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name.replace(".", "_"), known, n=3)
    return f"{name} is not a setting" + (f"; did you mean {' or '.join(near)}?" if near else "")


def _problem(name: str, value: Any, known: Any) -> str | None:
    if known.default is not MISSING and isinstance(known.default, bool) and not isinstance(value, bool):
        return f"{name} takes True or False, not {value!r}"
    return find_problem(known, value)
