"""The controller as the coordinator's engine sees it: ``Cluster`` over the controller client."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator

from headrace_common.adapters.controller_client import ControllerClient
from headrace_common.core.image import ClusterImage


class ControllerCluster:
    """See ``Cluster``."""

    def __init__(self, client: ControllerClient) -> None:
        self._client = client

    @property
    def image(self) -> ClusterImage:
        """See ``Cluster``."""
        return self._client.image

    def images(self) -> AsyncIterator[ClusterImage]:
        """See ``Cluster``."""
        return self._client.images()

    @property
    def tenure_until_ms(self) -> float:
        """See ``Cluster``."""
        client = self._client
        registered, contact = client.registered, client.contact_ms
        if registered is None or contact is None or client.fenced or client.image.revision < registered.revision:
            return -math.inf
        return contact + registered.session_timeout_ms
