"""Settings of imports."""

from __future__ import annotations

from typing import Any

from headrace_connect.connectors.kafka_import.settings import ImportSettings


def made(servers: str, *topics: str, **changes: Any) -> ImportSettings:
    return ImportSettings(
        source_cluster_alias="kafka",
        source_cluster_bootstrap_servers=servers,
        topics=topics or (".*",),
        **({"source_cluster": {}, "source_consumer": {}} | changes),
    )
