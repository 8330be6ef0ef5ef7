"""Settings of the source ``mirror``."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.finding import ClusterAddress, bootstrap_addresses
from headrace_connect.connectors.copying.settings import SERVERS, CopySettings


@dataclass(frozen=True, slots=True)
class MirrorSettings(CopySettings):
    """Of the source ``mirror``."""

    def __post_init__(self) -> None:
        super(MirrorSettings, self).__post_init__()
        _ = self.servers

    @property
    def servers(self) -> ClusterAddress:
        """
        Brokers of the source.

        Raises:
            InvalidConfig: one is no ``host:port``.
        """
        return bootstrap_addresses(self.source_cluster_bootstrap_servers, SERVERS)
