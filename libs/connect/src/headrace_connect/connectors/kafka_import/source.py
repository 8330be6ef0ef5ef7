"""The source ``kafka-import``."""

from __future__ import annotations

from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.copying.port import SourceCluster
from headrace_connect.connectors.copying.settings import CopySettings
from headrace_connect.connectors.copying.source import CopySource
from headrace_connect.connectors.kafka_import.settings import ImportSettings


class KafkaSource(CopySource):
    """Topics of a Kafka cluster."""

    settings_type = ImportSettings

    def connect(self, settings: CopySettings) -> SourceCluster:
        """
        See ``CopySource``.

        Raises:
            InvalidConfig: the client of Kafka is not installed.
        """
        assert isinstance(settings, ImportSettings), "they are of settings_type"
        try:
            from headrace_connect.connectors.kafka_import.cluster import KafkaCluster
        except ImportError as error:
            message = f"kafka-import needs Kafka's client: pip install 'headrace-connect[kafka]' ({error})"
            raise InvalidConfig(message) from error
        return KafkaCluster(settings)
