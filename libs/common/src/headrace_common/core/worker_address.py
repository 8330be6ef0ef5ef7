"""
Where a worker of streams is asked, as it says it to its group: ``host:port``; by TLS ``tls://host:port``, whose
certificate names the kind of worker, ``STREAMS_HOST``, or ``https://host:port``, whose certificate names that host.

Who asks got it from the cluster, so nobody on the way to the worker can take the TLS away. Whoever may join a group may
say any address, so that what a certificate has to name is never said with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from headrace_common.core.ids import Endpoint
from headrace_common.core.node_rules import host_of

CONNECT_HOST: Final = host_of("connect")
"""What certificates of Connect workers name wherever they run, as those of nodes do their role."""
STREAMS_HOST: Final = host_of("streams")
"""The same of workers of streams."""
_BY_KIND: Final = "tls://"
_BY_HOST: Final = "https://"


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """See the module's text; ``str`` is as the group has it."""

    endpoint: Endpoint
    tls: bool = False
    by_kind: bool = False
    """With ``tls``: its certificate names ``STREAMS_HOST``; else the host of ``endpoint``."""

    @override
    def __str__(self) -> str:
        prefix = (_BY_KIND if self.by_kind else _BY_HOST) if self.tls else ""
        return f"{prefix}{self.endpoint}"

    @staticmethod
    def parse(text: str) -> WorkerAddress:
        """
        Raises:
            ValueError: it is no such address; members of a group may say anything.
        """
        for prefix in (_BY_KIND, _BY_HOST):
            if text.startswith(prefix):
                return WorkerAddress(Endpoint.parse(text.removeprefix(prefix)), True, prefix == _BY_KIND)
        return WorkerAddress(Endpoint.parse(text))
