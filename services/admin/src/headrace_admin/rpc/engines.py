"""What both faces call: every engine, over the ports that a process has. Made once, by ``main``."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_admin.config import TransactionLimits
from headrace_admin.engine.absences import Absences
from headrace_admin.engine.accesses import Accesses, Views
from headrace_admin.engine.administration import Administration
from headrace_admin.engine.certificates import NodeCertificates
from headrace_admin.engine.coordination import Coordination
from headrace_admin.engine.groups import Groups
from headrace_admin.engine.log_offsets import LogOffsets
from headrace_admin.engine.messages import Messages
from headrace_admin.engine.observations import Observations
from headrace_admin.engine.open_transactions import OpenTransactions
from headrace_admin.engine.reassignments import Reassignments
from headrace_admin.engine.resets import Resets
from headrace_admin.engine.statuses import Statuses
from headrace_admin.engine.stored_logs import StoredLogs
from headrace_admin.engine.streams import Streams
from headrace_admin.engine.transactions import Transactions
from headrace_admin.ports import Coordinators, Nodes, Workers
from headrace_common.core.access.rows import View
from headrace_common.core.image import ShardKind
from headrace_common.runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class Engines:
    """What the routes and the servicer call."""

    administration: Administration
    messages: Messages
    reassignments: Reassignments
    statuses: Statuses
    groups: Groups
    resets: Resets
    transactions: Transactions
    open_transactions: OpenTransactions
    streams: Streams
    accesses: Accesses
    observations: Observations
    certificates: NodeCertificates

    @staticmethod
    def over(
        administration: Administration,
        messages: Messages,
        coordinators: Coordinators,
        workers: Workers,
        nodes: Nodes,
        limits: TransactionLimits,
        clock: Clock,
        views: Views = View,
    ) -> Engines:
        """All of them, over these ports and those that ``administration`` has; ``views``: an open cluster's."""
        cluster, brokers = administration.cluster, administration.brokers
        logs = LogOffsets(cluster, brokers)
        groups = Groups(cluster, coordinators, Coordination(ShardKind.GROUPS, cluster, brokers, clock), logs, clock)
        of_transactions = Coordination(ShardKind.TRANSACTIONS, cluster, brokers, clock)
        transactions = Transactions(cluster, coordinators, of_transactions, limits, clock)
        open_transactions = OpenTransactions(transactions, logs)
        certificates = NodeCertificates(cluster, nodes, clock)
        return Engines(
            administration=administration,
            messages=messages,
            reassignments=Reassignments(administration, clock),
            statuses=Statuses(
                cluster,
                administration.controllers,
                Absences(clock),
                open_transactions,
                StoredLogs(cluster, brokers),
                certificates,
                views,
                clock,
            ),
            groups=groups,
            resets=Resets(groups, clock),
            transactions=transactions,
            open_transactions=open_transactions,
            streams=Streams(cluster, groups, workers, clock),
            accesses=Accesses(views),
            observations=Observations(cluster, nodes, views, clock),
            certificates=certificates,
        )
