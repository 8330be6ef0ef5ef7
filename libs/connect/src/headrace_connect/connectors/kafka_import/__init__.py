"""A Kafka cluster as a source: its topics, record by record, with their settings and groups' positions."""

from headrace_connect.connectors.kafka_import.source import KafkaSource as KafkaSource
