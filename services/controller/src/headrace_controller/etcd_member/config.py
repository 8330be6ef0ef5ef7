"""Settings of the program, checked once at start."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headrace_common.core.bounds import LOG_LEVELS, check, setting
from headrace_common.core.ids import Endpoint
from headrace_common.runtime.tls_config import TlsFiles
from headrace_controller.etcd_member.core.etcd_file import OWN
from headrace_controller.etcd_member.core.rendezvous import Site
from headrace_controller.etcd_member.core.roster import Peer


@dataclass(frozen=True)
class EtcdMemberConfig:
    """
    Decides how an etcd member starts and writes etcd's configuration. Run it before each start of the etcd.

    It ends with 0 when the file is written; until then it waits and says for what.
    """

    name: str
    """Name of this member; one of those in peers."""
    peers: tuple[str, ...]
    """All members, this one too, as NAME=http://HOST:PORT (their peer addresses); with TLS as NAME=https://HOST:PORT."""
    data_dir: Path
    """etcd's data directory. What the member must remember is kept beside it, on the same volume."""
    config_out: Path
    """Where to write etcd's configuration (YAML)."""
    cluster: str = "headrace-etcd"
    """Name of the cluster, the same for all members: those of another name are not talked to."""
    tls_cert: Path | None = None
    """File with this member's certificate (PEM), for servers and clients; it names the host of its peer address. With
    it clients and members have to show one too, also before etcd runs, while members meet."""
    tls_key: Path | None = None
    """File with the key of tls_cert (PEM)."""
    tls_ca: Path | None = None
    """File with the CAs of all members' and clients' certificates (PEM)."""
    listen_host: str = "0.0.0.0"
    """Host that the member listens on."""
    client_port: int = setting(2379, low=1, high=65_535)
    """Port for clients; they reach it at the host of the peer address."""
    metrics_listen: Endpoint | None = None
    """Address for etcd's metrics and health (/metrics, /livez, /readyz) beside the client port, where they are too."""
    quota_bytes: int = setting(2 * 1024**3, low=64 * 1024**2)
    """Size of the database at which etcd refuses writes, in bytes."""
    compaction_period: str = "1h"
    """How long etcd keeps history at least (periodic compaction); a controller that was away longer reads all anew."""
    settings: str = "{}"
    """More of etcd's settings by etcd's names, as a JSON object: {"heartbeat-interval": 200}."""
    log_level: str = setting("info", choices=LOG_LEVELS)
    """From which level on it logs."""

    def __post_init__(self) -> None:
        check(self, *self._rules())

    @cached_property
    def members(self) -> tuple[Peer, ...]:
        """All members, by name."""
        return tuple(sorted(Peer(*_split(text)) for text in self.peers))

    @cached_property
    def site(self) -> Site:
        """This member and the others."""
        (me,) = (p for p in self.members if p.name == self.name)
        return Site(me, tuple(p for p in self.members if p != me), self.cluster)

    @cached_property
    def more(self) -> dict[str, Any]:
        """All settings of etcd that are not decided here."""
        given = {
            "auto-compaction-mode": "periodic",
            "auto-compaction-retention": self.compaction_period,
            "quota-backend-bytes": self.quota_bytes,
        }
        found = json.loads(self.settings)
        return {**given, **found}

    @property
    def tls(self) -> TlsFiles | None:
        """Where the certificates are."""
        if self.tls_cert is None or self.tls_key is None or self.tls_ca is None:
            return None
        return TlsFiles(self.tls_cert, self.tls_key, self.tls_ca)

    @property
    def facts_file(self) -> Path:
        return self.data_dir.parent / "headrace-member.json"

    def _rules(self) -> list[tuple[bool, str]]:
        scheme = "http" if self.tls_cert is None else "https"
        bad = [text for text in self.peers if not _usable(text, scheme)]
        with_tls = {self.tls_cert is None, self.tls_key is None, self.tls_ca is None}
        names = [_split(text)[0] for text in self.peers]
        urls = [_split(text)[1] for text in self.peers]
        return [
            (len(with_tls) == 1, "tls_cert, tls_key and tls_ca are set together: certificate, key, and whom to trust"),
            (bool(self.peers), f"peers needs at least this member, as NAME={scheme}://HOST:PORT"),
            (
                not bad,
                f"peers takes NAME={scheme}://HOST:PORT with commas between "
                f"({'with' if self.tls_cert else 'without'} tls_cert), not {', '.join(map(repr, bad))}",
            ),
            (len(set(names)) == len(names) and len(set(urls)) == len(urls), "peers has a name or an address twice"),
            (self.name in names, f"name takes one of the names in peers ({', '.join(names)}), not {self.name!r}"),
            (
                bool(self.cluster)
                and self.cluster.isascii()
                and self.cluster.isprintable()
                and " " not in self.cluster,
                f"cluster takes a name without spaces, not {self.cluster!r}",
            ),
            (self.data_dir.parent != self.data_dir, "data_dir must be below the top of its volume"),
            *_settings_rules(self.settings),
        ]


def _settings_rules(text: str) -> list[tuple[bool, str]]:
    try:
        found = json.loads(text)
    except ValueError as error:
        return [(False, f"settings is no JSON: {error}")]
    if not isinstance(found, dict):
        return [(False, "settings takes a JSON object with etcd's settings")]
    taken = sorted(OWN & found.keys())
    return [(not taken, f"settings cannot change {', '.join(taken)}: the program decides them")]


def _split(text: str) -> tuple[str, str]:
    name, _, url = text.partition("=")
    return name, url


def _usable(text: str, scheme: str) -> bool:
    name, url = _split(text)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    plain = not (parts.path or parts.query or parts.username)
    return bool(name) and parts.scheme == scheme and bool(parts.hostname) and port is not None and plain
