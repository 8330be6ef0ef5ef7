"""The source ``mirror``."""

from __future__ import annotations

from headrace_connect.connectors.copying.port import SourceCluster
from headrace_connect.connectors.copying.settings import CopySettings
from headrace_connect.connectors.copying.source import CopySource
from headrace_connect.connectors.mirror.cluster import SdkCluster
from headrace_connect.connectors.mirror.settings import MirrorSettings


class MirrorSource(CopySource):
    """Topics of another Headrace cluster."""

    settings_type = MirrorSettings

    def connect(self, settings: CopySettings) -> SourceCluster:
        """See ``CopySource``."""
        assert isinstance(settings, MirrorSettings), "these are its settings"
        return SdkCluster(settings.servers, settings.batch_max_rows, settings.timeout_ms)
