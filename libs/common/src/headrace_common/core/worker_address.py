"""
Where a worker of streams is asked, as it says it to its group: ``host:port``, or ``https://host:port`` by TLS.

Who asks got it from the cluster, so nobody on the way to the worker can take the TLS away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from headrace_common.core.ids import Endpoint

_BY_TLS: Final = "https://"


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """See the module's text; ``str`` is as the group has it."""

    endpoint: Endpoint
    tls: bool = False
    """Its certificate names the host of ``endpoint``."""

    @override
    def __str__(self) -> str:
        return f"{_BY_TLS if self.tls else ''}{self.endpoint}"

    @staticmethod
    def parse(text: str) -> WorkerAddress:
        """
        Raises:
            ValueError: it is no such address; members of a group may say anything.
        """
        bare = text.removeprefix(_BY_TLS)
        return WorkerAddress(Endpoint.parse(bare), bare != text)
