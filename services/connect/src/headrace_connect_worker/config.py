"""Settings of one Connect worker, checked once at its start."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from headrace.finding import DEFAULT_BOOTSTRAP
from headrace_common.core.bounds import LOG_LEVELS, check, setting
from headrace_common.core.ids import Endpoint
from headrace_common.runtime.env import inline
from headrace_common.runtime.service import ServerConfig
from headrace_common.runtime.tls_config import TlsConfig
from headrace_connect_worker.core.policy import Policy


@dataclass(frozen=True)
class Topics:
    """Where the workers of a Connect cluster keep what they share; made by the first one."""

    config_storage_topic: str = "connect-configs"
    """Configurations and tasks: one partition, compacted."""
    status_storage_topic: str = "connect-status"
    """How connectors and tasks are: compacted."""
    event_storage_topic: str = "connect-events"
    """What connectors tell, and what becomes of them: kept for seven days. Connect clusters may share it."""
    offset_storage_topic: str = "connect-offsets"
    """Positions of sources, unless a connector has its own: compacted."""
    status_storage_partitions: int = setting(5, low=1, high=1_000)
    """Partitions of the status topic, when it is made."""
    offset_storage_partitions: int = setting(25, low=1, high=1_000)
    """Partitions of the offset topic, when it is made."""

    def __post_init__(self) -> None:
        names = [
            self.config_storage_topic,
            self.status_storage_topic,
            self.offset_storage_topic,
            self.event_storage_topic,
        ]
        check(
            self,
            (
                all(names),
                "config_storage_topic, status_storage_topic, offset_storage_topic and event_storage_topic are names of "
                "topics",
            ),
            (len(set(names)) == len(names), "the four topics must have different names"),
        )


@dataclass(frozen=True)
class HostLimits:
    """What host processes may take."""

    worker_hosts_max: int = setting(32, low=1, high=1_000)
    """Host processes of this worker at one time."""
    host_silence_ms_max: int = setting(30_000, low=1_000, high=600_000)
    """A host that says nothing for so long is killed and started again, in ms."""
    task_stop_ms_max: int = setting(20_000, low=100, high=600_000)
    """How long a task may take to commit and end before its host is killed, in ms."""
    plugin_ms_max: int = setting(60_000, low=1_000, high=600_000)
    """How long validation, a preview or the description of a plugin may take, in ms."""
    verify_ms_max: int = setting(3_600_000, low=1_000, high=86_400_000)
    """How long a verification may take before its host is killed, in ms."""
    plugin_path: tuple[str, ...] = ()
    """Folders of virtual environments with connectors of their own, with commas; a connector that the worker does not
    have runs under the Python of the first one that has it."""
    spark_application: str = ""
    """File with the SparkApplication, in JSON and without a name, as which jobs are run that read for connectors.
    Without it their commands are logged, for people."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class Reach:
    """What configurations that come by REST may reach on the machines of workers: nothing but what is named here."""

    plugins_allowed: tuple[str, ...] = ()
    """Connectors that have no name: package.module:Class, with commas."""
    transforms_python_allowed: tuple[str, ...] = ()
    """Functions that transforms may be: module:function, with commas."""
    config_providers_file_allowed_paths: tuple[str, ...] = ()
    """Directories of secrets, for ${file:...} and ${dir:...}, with commas."""
    env_allowed: tuple[str, ...] = ()
    """Variables of the environment, for ${env:...}, with commas."""
    files_allowed_paths: tuple[str, ...] = ()
    """Directories that connectors and converters may read and write, with commas."""
    executables_allowed: tuple[str, ...] = ()
    """Programs that connectors may start, as Singer taps: names or paths as configurations have them, with commas."""

    def __post_init__(self) -> None:
        directories = (*self.config_providers_file_allowed_paths, *self.files_allowed_paths)
        bad = [path for path in directories if not path.startswith("/")]
        check(self, (not bad, f"directories are absolute paths, not {bad}"))

    @property
    def policy(self) -> Policy:
        """The same, for who decides."""
        return Policy(
            self.plugins_allowed,
            self.transforms_python_allowed,
            self.config_providers_file_allowed_paths,
            self.env_allowed,
            self.files_allowed_paths,
            self.executables_allowed,
        )


@dataclass(frozen=True)
class ConnectConfig:
    """A Connect worker: shares connectors and their tasks with the other workers of its group, and answers REST."""

    bootstrap_servers: str = DEFAULT_BOOTSTRAP
    """Brokers, host:port with commas."""
    group_id: str = setting("connect-cluster")
    """The Connect cluster: workers with the same one share connectors. Also in the names of transactional ids."""
    http_listen: Endpoint = Endpoint("127.0.0.1", 8083)
    """Address of REST; port 0 takes a free one. Only this machine reaches 127.0.0.1."""
    hosts: tuple[str, ...] = ()
    """Further names by which people reach REST, with commas, without ports; its own, localhost and addresses are known.
    *: any, which lets a web page reach it by a name of its own."""
    commands_max: int = setting(100, low=1)
    """Changes that wait for the leader; more are refused with 409."""
    command_ms_max: int = setting(30_000, low=100, high=600_000)
    """How long a change may take to be in the config topic, in ms."""
    call_ms_max: int = setting(60_000, low=1_000)
    """How long the cluster may be unreachable before calls fail, in ms."""
    topics: Topics = inline(Topics)
    """Where the workers keep what they share."""
    processes: HostLimits = inline(HostLimits)
    """What host processes may take."""
    reach: Reach = inline(Reach)
    """What configurations may reach here."""
    advertise_host: str | None = None
    """Host by which other workers reach this one; without it the listen host (or this machine's name for 0.0.0.0)."""
    http_connections_max: int = setting(1_000, low=1)
    """Open HTTP connections, and at most a quarter of the descriptors that the process may have."""
    http_connections_per_address_max: int = setting(64, low=0)
    """Open HTTP connections of one address, for IPv6 of one /64; 0 behind a proxy: only the sum is bounded then."""
    tls: TlsConfig = field(default_factory=TlsConfig)
    """Its certificates."""
    metrics_listen: Endpoint | None = None
    """Address of the Prometheus endpoint; port 0 takes a free one. Without it metrics are off."""
    health_listen: Endpoint | None = None
    """Address of the gRPC health port, for probes: services live and ready. Without it there is none."""
    otlp_endpoint: str | None = None
    """Where traces of what connectors do go (OTLP over gRPC); without it there are none."""
    drain_ms_max: int = setting(10_000, low=0, high=600_000)
    """How long requests under way may take when the process stops, in ms."""
    ready_file: Path | None = None
    """File to write, as JSON with name, addresses and pid, once the worker has read what there is."""
    log_level: str = setting("info", choices=LOG_LEVELS)
    """From which level on it logs."""

    def __post_init__(self) -> None:
        bad = [name for name in self.hosts if not name or any(c in name for c in "/:@ ")]
        check(
            self,
            (bool(self.bootstrap_servers.strip()), "bootstrap_servers is empty; name at least one broker as host:port"),
            (1 <= len(self.group_id) <= 100, "group_id has 1 to 100 characters"),
            (not bad, f"hosts takes names such as connect.example, without scheme and port, not {bad}"),
        )

    @property
    def answer_ms_max(self) -> int:
        """How long a change may take here: it is validated, then written."""
        return self.processes.plugin_ms_max + self.command_ms_max

    @property
    def server(self) -> ServerConfig:
        """The same, for what all services share; it serves no gRPC but health."""
        return ServerConfig(
            self.http_listen,
            advertise_host=self.advertise_host,
            metrics_listen=self.metrics_listen,
            health_listen=self.health_listen,
            drain_ms_max=self.drain_ms_max,
            ready_file=self.ready_file,
            log_level=self.log_level,
            tls=self.tls,
        )
