"""What a worker may be told."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal, Self, get_args

from headrace.work_types import STANDBYS_MAX
from headrace_common.core.bounds import check, setting
from headrace_common.core.errors import InvalidConfig
from headrace_common.core.ids import Endpoint
from headrace_common.runtime.env import list_options, load_settings
from headrace_common.runtime.tls_config import TlsConfig, TlsMode
from headrace_streams.core.state.cache import STATE_CACHE_BYTES

ProcessingGuarantee = Literal["exactly_once", "at_least_once"]
EXACTLY_ONCE: Final = "exactly_once"
_PREFIX: Final = "HEADRACE_STREAMS_"
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsConfig:
    """Settings of a worker; clients' settings are given beside it."""

    bootstrap_servers: str | None = None
    """``host:port``, several with commas; None: found as all clients find it."""
    state_dir: Path | str = Path(".headrace-streams")
    """Where state is kept: a directory for each app and task in it."""
    processing_guarantee: ProcessingGuarantee = setting(EXACTLY_ONCE, choices=get_args(ProcessingGuarantee))
    """
    With ``at_least_once`` rows for topics of the program do not wait for a commit, and may come again after a failure;
    state, positions and internal topics are exactly once either way.
    """
    commit_interval_ms: int = setting(100, low=0, high=600_000)
    """
    How often to commit while there is something to commit, in ms; at the latest when a transaction has been open for a
    fourth of transaction_timeout_ms.
    """
    commit_rows: int = setting(100_000, low=1, high=10_000_000)
    """A commit is made after so many rows at the latest."""
    commit_state_bytes: int = setting(32 << 20, low=1, high=2**53)
    """A commit is made at the latest when about so many bytes of state have changed."""
    state_cache_bytes: int = setting(STATE_CACHE_BYTES, low=0, high=2**53)
    """About how many bytes of state a worker keeps in memory; the rest is read from its disk when it is asked for."""
    max_poll_interval_ms: int = setting(300_000, low=1, high=2**31 - 1)
    """A function of the program that takes longer has its worker give up its tasks and end, in ms."""
    max_batch_rows: int = setting(10_000, low=1, high=1_000_000)
    """Most records that are read at once."""
    idle_after_ms: int = setting(5_000, low=0, high=86_400_000)
    """A partition that has stood at its end for so long holds event time back no longer, in ms."""
    watermark_interval_ms: int = setting(200, low=0, high=60_000)
    """
    How often tasks behind a repartition that get no rows are told event time, in ms; more seldom where a topic would
    get more than 2,000 such records a second. With 0 they are told with each commit.
    """
    join_wait_ms: int = setting(60_000, low=0, high=86_400_000)
    """A join goes on without records of a topic that is not at its end, but gave none for so long, in ms."""
    transaction_timeout_ms: int = setting(10_000, low=1_000, high=900_000)
    """What a dead worker left open is aborted after so long, unless its successor does it before, in ms."""
    default_api_timeout_ms: int = setting(60_000, low=1, high=3_600_000)
    """How long to wait for topics that do not exist, and for answers, in ms."""
    metadata_max_age_ms: int = setting(30_000, low=100, high=86_400_000)
    """How often to look whether topics that are read have more partitions, and patterns match more topics, in ms."""
    trim_interval_ms: int = setting(30_000, low=1_000, high=86_400_000)
    """How often repartition topics are trimmed below what is committed, in ms."""
    standbys: int = setting(0, low=0, high=STANDBYS_MAX)
    """How many other workers follow the state of each task; the nearest one takes over when its worker dies."""
    acceptable_recovery_lag: int = setting(10_000, low=0, high=2**53)
    """A task moves from a living worker only to one whose state is behind by at most so many records."""
    max_warmup: int = setting(2, low=1, high=1_000)
    """So many tasks are prepared at a time on workers that are to take them over."""
    zone: str | None = None
    """Standbys are in other zones than their task's worker, where that is possible; None: this machine."""
    delete_retention_ms: int = setting(86_400_000, low=1_000, high=2**53)
    """Of the changelogs: state on a disk that is older than half of it is restored anew, in ms."""

    snapshot_url: str | None = None
    """Where snapshots of state are kept: ``s3://BUCKET/PATH``, ``gs://``, ``abfs://``, ``file://``; None: nowhere."""
    snapshot_interval_ms: int = setting(600_000, low=1_000, high=86_400_000)
    """How often to take a snapshot of each task that has changed, in ms."""
    snapshot_timeout_ms: int = setting(600_000, low=1_000, high=86_400_000)
    """Writing or reading a snapshot is given up after so long, in ms."""

    metrics_listen: Endpoint | str | None = None
    """Where Prometheus finds the worker's metrics, ``host:port``; None: nowhere."""
    health_listen: Endpoint | str | None = None
    """Where ``grpc.health.v1`` says whether the worker is ``live`` and ``ready``, ``host:port``; None: nowhere."""

    query_listen: Endpoint | str | None = None
    """Where the worker answers questions about its state, ``host:port``; None: nowhere."""
    advertise_host: str | None = None
    """Under which host others reach ``query_listen``; None: that of ``query_listen``, or this machine's name."""
    query_tls_cert: Path | str | None = None
    """File with the certificate that ``query_listen`` shows, then those that lead to a CA (PEM); it names
    ``streams.headrace``, or else the host under which others reach it. New files are taken without a restart. None: in
    plain text."""
    query_tls_key: Path | str | None = None
    """File with its key, ECDSA P-256 without a password (PEM)."""
    query_tls_ca: Path | str | None = None
    """File with the CAs that those who ask trust (PEM); for most the cluster's."""
    query_tls_mode: str = setting("require", choices=tuple(mode.value for mode in TlsMode))
    """What ``query_listen`` does with plain text: require: nothing; prefer: it answers TLS and plain text; allow: the
    same, and the group is told the address in plain text, while not all can ask by TLS."""

    def __post_init__(self) -> None:
        for name in ("metrics_listen", "health_listen", "query_listen"):
            given = getattr(self, name)
            if isinstance(given, str):
                try:
                    object.__setattr__(self, name, Endpoint.parse(given))
                except ValueError as error:
                    raise InvalidConfig(f"{name}: {error}") from error
        tls = (self.query_tls_cert, self.query_tls_key, self.query_tls_ca)
        check(
            self,
            (
                len({one is None for one in tls}) == 1,
                "query_tls_cert, query_tls_key and query_tls_ca are set together: certificate, key, and whom to trust",
            ),
        )

    @property
    def query_tls(self) -> TlsConfig:
        """How ``query_listen`` speaks."""
        given = (self.query_tls_cert, self.query_tls_key, self.query_tls_ca)
        cert, key, ca = (None if file is None else Path(file) for file in given)
        return TlsConfig(cert, key, ca, mode=self.query_tls_mode)

    @property
    def trusted_ms(self) -> int:
        """State whose checkpoint is older may lack deletions that are gone from the changelog."""
        return self.delete_retention_ms // 2

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """
        From keyword arguments.

        Raises:
            InvalidConfig: a name is none of a setting, or a value out of bounds.
        """
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                near = get_close_matches(name, known, 1)
                meant = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
                raise InvalidConfig(f"{name} is not a setting of an app; {meant}")
        return cls(**given)


def from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """
    What variables such as ``HEADRACE_STREAMS_COMMIT_ROWS`` give.

    Raises:
        InvalidConfig: everything that is wrong, one line each.
    """
    config = load_settings(StreamsConfig, service="streams", argv=[], env=environment)
    known = {option.variable("streams"): option.name for option in list_options(StreamsConfig)}
    names = list(known.values())
    for variable in sorted(environment.keys() - known.keys()):
        # Kubernetes sets others that begin so where a service is called headrace-streams.
        if variable.startswith(_PREFIX) and (near := get_close_matches(variable[len(_PREFIX) :].lower(), names, 1)):
            _log.warning("%s is no setting and is ignored; did you mean %s%s?", variable, _PREFIX, near[0].upper())
    return {name: getattr(config, name) for variable, name in known.items() if variable in environment}
