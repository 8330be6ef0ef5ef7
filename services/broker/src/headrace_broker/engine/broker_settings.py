"""The broker's dynamic settings as they are now: its own, else the cluster's, else the default. Upkeep tasks ask."""

from __future__ import annotations

from headrace_broker.engine.replicas import Replicas
from headrace_common.core.configs import BROKER_SETTINGS


class BrokerSettings:
    """One for the broker; every look is at the newest image."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def text(self, name: str) -> str:
        """The value as it was set."""
        image = self._replicas.image
        own = image.broker_configs.get(self._replicas.broker_id, {})
        return own.get(name, image.cluster_configs.get(name, BROKER_SETTINGS[name].default))

    def whole(self, name: str) -> int:
        """Of a setting that takes whole numbers."""
        return int(self.text(name))

    def number(self, name: str) -> float:
        """Of one that takes any number."""
        return float(self.text(name))

    def flag(self, name: str) -> bool:
        """Of one that is true or false."""
        return self.text(name).lower() == "true"
