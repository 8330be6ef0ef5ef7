"""What the routes work with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace_common.core.errors import MetadataUnavailable
from headrace_connect_worker.engine.checking import Checking
from headrace_connect_worker.engine.loggers import Loggers
from headrace_connect_worker.engine.verifying import Verifying
from headrace_connect_worker.ports import Herd
from headrace_connect_worker.rpc.forwarding import AtLeader
from headrace_connect_worker.rpc.views import Views


@dataclass(frozen=True, slots=True)
class About:
    """What ``GET /`` says."""

    version: str
    commit: str
    cluster_id: Callable[[], str | None]
    """Of the cluster of brokers; None: not known yet."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker, as its REST interface has it."""

    herd: Herd
    checking: Checking
    verifying: Verifying
    leading: AtLeader
    loggers: Loggers
    about: About

    @property
    def views(self) -> Views:
        """
        What is known now.

        Raises:
            MetadataUnavailable: it has not read everything yet; what there is would look like what there is not.
        """
        if not self.herd.is_ready:
            raise MetadataUnavailable("this worker still reads what there is; ask again in a moment")
        return Views(self.herd.state, self.herd.statuses)
