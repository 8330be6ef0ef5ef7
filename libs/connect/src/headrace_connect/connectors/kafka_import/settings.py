"""Settings of the source ``kafka-import``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace_connect.connectors.copying.settings import CopySettings
from headrace_connect.settings import Importance, setting

_CLUSTER: Final = "source.cluster."
_CONSUMER: Final = "source.consumer."
_OWN: Final = frozenset({"alias", "bootstrap.servers"})
"""Behind ``source.cluster.``: settings of this connector."""
_FIXED: Final[Mapping[str, Any]] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "allow.auto.create.topics": False,
}
"""Without these records would be copied that were never committed, or left out."""
_PROGRAMS: Final = ("plugin.library.paths", "ssl.engine.location", "sasl.kerberos.")
"""Begin so: what the client would load or run."""
_QUIET: Final = 2
"""Of syslog, critical: what a client says of connections, at each try, is in the error of what fails for it."""
_DEFAULTS: Final[Mapping[str, Any]] = {
    "fetch.queue.backoff.ms": 5,
    "fetch.wait.max.ms": 100,
}
"""The client's own: a full queue is fetched on after a second, and the end of a log is told after half of one."""


@dataclass(frozen=True, slots=True)
class ImportSettings(CopySettings):
    """Of the source ``kafka-import``."""

    source_cluster: Mapping[str, str] = setting(prefix=_CLUSTER)
    """Properties of librdkafka for each client of the source, as ``source.cluster.security.protocol`` and
    ``source.cluster.sasl.password``."""
    source_consumer: Mapping[str, str] = setting(prefix=_CONSUMER, importance=Importance.LOW)
    """The same for the consumer alone, as ``source.consumer.fetch.message.max.bytes``."""

    def __post_init__(self) -> None:
        super(ImportSettings, self).__post_init__()
        for prefix, given in ((_CLUSTER, self.source_cluster), (_CONSUMER, self.source_consumer)):
            fixed = sorted(_FIXED.keys() & given.keys())
            if fixed:
                raise ValueError(f"{prefix}{fixed[0]} has to be {_FIXED[fixed[0]]} here, and is: leave it out")
            code = sorted(key for key in given if key.startswith(_PROGRAMS))
            if code:
                raise ValueError(f"{prefix}{code[0]} has the client run programs, which it may not here: leave it out")
        if "bootstrap.servers" in self.source_consumer:
            raise ValueError(f"{_CONSUMER}bootstrap.servers: leave it out; {_CLUSTER}bootstrap.servers says it for all")

    def key_of(self, name: str) -> str:
        """The key that gives a client the property ``name``."""
        return f"{_CONSUMER if name in self.source_consumer else _CLUSTER}{name}"

    def of_client(self) -> dict[str, Any]:
        """Properties of a client that asks."""
        given = {key: value for key, value in self.source_cluster.items() if key not in _OWN}
        return {"log_level": _QUIET, **given, "bootstrap.servers": self.source_cluster_bootstrap_servers}

    def of_consumer(self) -> dict[str, Any]:
        """Properties of the consumer. librdkafka wants a group, but nothing is ever committed under it."""
        group = {"group.id": f"headrace-import-{self.source_cluster_alias}"}
        return {**_DEFAULTS, **group, **self.of_client(), **self.source_consumer, **_FIXED}
