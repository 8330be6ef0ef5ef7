"""What one reading of a slot works with."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_common.runtime.clock import Clock
from headrace_connect.connectors.postgres_cdc.beating import Heart
from headrace_connect.connectors.postgres_cdc.copying import Copier
from headrace_connect.connectors.postgres_cdc.publishing import Publisher
from headrace_connect.connectors.postgres_cdc.recording import Recorder
from headrace_connect.connectors.postgres_cdc.replication import Replication
from headrace_connect.connectors.postgres_cdc.reselecting import Reselector
from headrace_connect.connectors.postgres_cdc.retaining import Retained
from headrace_connect.core.assembling import Assembler
from headrace_connect.core.events import Notify
from headrace_connect.core.snapshot import Snapshots


@dataclass(frozen=True, slots=True)
class Parts:
    """What the loop works with; whoever made them closes them."""

    replication: Replication
    assembler: Assembler
    publisher: Publisher
    copier: Copier
    recorder: Recorder
    snapshots: Snapshots
    heart: Heart
    retained: Retained
    clock: Clock
    notify: Notify = lambda event: None
    reselector: Reselector | None = None
    """None: what the server does not send is not read."""
