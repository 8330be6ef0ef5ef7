"""The source ``mirror``."""

from __future__ import annotations

from headrace_connect.connectors.copying.port import SourceCluster
from headrace_connect.connectors.copying.settings import CopySettings
from headrace_connect.connectors.copying.source import CopySource
from headrace_connect.connectors.mirror.cluster import SdkCluster


class MirrorSource(CopySource):
    """Topics of another Headrace cluster."""

    settings_type = CopySettings

    def connect(self, settings: CopySettings) -> SourceCluster:
        """See ``CopySource``."""
        return SdkCluster(settings.source_cluster_bootstrap_servers, settings.batch_max_rows, settings.timeout_ms)
