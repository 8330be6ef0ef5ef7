"""
What each route answers, as its annotation and REST's document say it; ``headrace_common.rpc.answers`` makes it.

Names of members come from the messages; what is said here is only what an answer has besides.
"""

from __future__ import annotations

from typing import Annotated, Final, get_args

from headrace_admin.rpc.schemas import Answer, Schema, flag, list_of, number, or_null, ref_to, text
from headrace_common.rpc.json_form import Json
from headrace_proto.v1 import access_pb2, admin_pb2, broker_pb2, cluster_pb2, coordinator_pb2, transaction_pb2
from headrace_proto.v1 import controller_pb2 as pb

TOPIC_NAME: Final = or_null(text("Null: no topic has this id."))
BROKER: Final = number("Its id.")
GROUP: Final[dict[str, Schema]] = {"group": text("Its id.")}
_FEATURE: Final = Answer("Feature", message=admin_pb2.Feature, more={"active": flag("The cluster has that level.")})
_LOG: Final = Answer("Log", message=broker_pb2.LogDescription, more={"topic": TOPIC_NAME})
_TOPIC_LOG: Final = Answer("TopicLog", message=broker_pb2.LogDescription, more={"topic": TOPIC_NAME, "broker": BROKER})
_UNANSWERED: Final = Answer(
    "Unanswered",
    "A broker that could not be asked.",
    more={"broker": BROKER, "error": {"$ref": "#/components/schemas/Problem"}},
)
_TRIMMED: Final = Answer(
    "Trimmed",
    "What became of one partition.",
    broker_pb2.DeleteRecordsResult,
    more={"log_start_offset": or_null(number("Null: it was not trimmed."))},
)
_OUTCOME: Final = Answer("Outcome", "What became of one partition.", pb.PartitionOutcome, more={"topic": text()})
_RESTORED: Final = Answer(
    "Restored",
    message=pb.Restore,
    more={"silent_brokers": list_of(number(), "Those that are there and do not say what they have.")},
)

# --- cluster ----------------------------------------------------------------------------------------------------------

Cluster = Annotated[
    Json,
    Answer(
        "Cluster",
        "The cluster at a glance.",
        pb.DescribeClusterResponse,
        more={"brokers": list_of(cluster_pb2.Node), "other_nodes": list_of(cluster_pb2.Node)},
    ),
]
Brokers = Annotated[
    Json, Answer("Brokers", "All registered brokers.", more={"brokers": list_of(cluster_pb2.Node, "By id.")})
]
Node = Annotated[Json, Answer("Node", message=cluster_pb2.Node)]
Status = Annotated[Json, Answer("Status", "How the cluster is.", admin_pb2.DescribeStatusResponse)]
ClusterHealth = Annotated[
    Json,
    Answer(
        "ClusterHealth",
        "The verdict alone.",
        admin_pb2.DescribeStatusResponse,
        only=frozenset({"state", "verdict"}),
    ),
]
Certificates = Annotated[
    Json,
    Answer("Certificates", "Which certificates nodes show, by node.", admin_pb2.DescribeCertificatesResponse),
]
Features = Annotated[
    Json,
    Answer(
        "Features",
        "The cluster's feature level, and how it may rise.",
        admin_pb2.DescribeFeaturesResponse,
        more={"features": list_of(ref_to(_FEATURE), "All that the answering service knows, by level.")},
    ),
]
Drained = Annotated[
    Json, Answer("Drained", "What draining did.", pb.DrainBrokerResponse, more={"drained": flag("As it is now.")})
]
RestoreStatus = Annotated[
    Json,
    Answer(
        "RestoreStatus",
        "Whether the metadata was restored, and how far that is.",
        more={"restore": or_null(ref_to(_RESTORED) | {"description": "Null: it was never restored."})},
    ),
]
Strays = Annotated[Json, Answer("Strays", "All stray logs, by topic.", pb.DescribeRestoreResponse)]
ConfigEntries = Annotated[
    Json, Answer("ConfigEntries", "Effective settings.", more={"configs": list_of(pb.ConfigEntry, "By name.")})
]

# --- topics and partitions --------------------------------------------------------------------------------------------

Topics = Annotated[
    Json,
    Answer(
        "Topics",
        "One page of topics.",
        pb.ListTopicsResponse,
        more={"next": or_null(text("Give it as `after` to get the next page. Null: this was the last."))},
    ),
]
Topic = Annotated[Json, Answer("Topic", message=pb.TopicDescription)]
TopicLogs = Annotated[
    Json,
    Answer(
        "TopicLogs",
        "All replicas of a topic.",
        more={
            "logs": list_of(ref_to(_TOPIC_LOG), "By partition and broker."),
            "unanswered": list_of(ref_to(_UNANSWERED), "Brokers whose logs are not in the list."),
        },
    ),
]
Logs = Annotated[
    Json,
    Answer(
        "Logs",
        "What a broker keeps.",
        broker_pb2.DescribeLogsResponse,
        more={"broker": BROKER, "logs": list_of(ref_to(_LOG))},
    ),
]
TrimResult = Annotated[
    Json, Answer("TrimResult", "What became of each partition.", more={"partitions": list_of(ref_to(_TRIMMED))})
]
Outcomes = Annotated[
    Json, Answer("Outcomes", "What became of each partition.", more={"partitions": list_of(ref_to(_OUTCOME))})
]
Reassignments = Annotated[
    Json, Answer("Reassignments", "All that are under way.", admin_pb2.DescribeReassignmentsResponse)
]
Throttle = Annotated[
    Json,
    Answer(
        "ThrottleOut",
        "How fast reassignments copy, per broker.",
        more={"bytes_per_s": or_null(number("Null: no bound."))},
    ),
]
Plan = Annotated[Json, Answer("Plan", "What moves.", admin_pb2.RebalanceClusterResponse)]
Leaving = Annotated[
    Json,
    Answer(
        "Leaving", "What moves, and how far the broker is from holding nothing.", admin_pb2.DecommissionBrokerResponse
    ),
]

# --- groups and transactions ------------------------------------------------------------------------------------------

Groups = Annotated[Json, Answer("GroupList", "Groups by id.", admin_pb2.ListClusterGroupsResponse)]
Group = Annotated[Json, Answer("Group", message=coordinator_pb2.GroupDescription)]
GroupLag = Annotated[
    Json,
    Answer(
        "GroupLag",
        "How far a group is behind.",
        admin_pb2.DescribeGroupLagResponse,
        more=GROUP
        | {
            "total_lag": number("Of the partitions where it is known."),
            "lag_seconds_max": or_null({"type": "number", "description": "Of the partitions where it is known."}),
        },
    ),
]
ResetPlan = Annotated[
    Json, Answer("ResetPlan", "A plan, or what became of it.", admin_pb2.ResetOffsetsResponse, more=GROUP)
]
OffsetOutcomes = Annotated[
    Json, Answer("OffsetOutcomes", "What became of each partition.", coordinator_pb2.DeleteOffsetsResponse)
]
Transactions = Annotated[
    Json, Answer("TransactionList", "Transactional ids by name.", admin_pb2.ListClusterTransactionsResponse)
]
Transaction = Annotated[Json, Answer("Transaction", message=admin_pb2.DescribedTransaction)]
Prepared = Annotated[
    Json, Answer("PreparedList", "Prepared transactions, oldest first.", admin_pb2.ListPreparedTransactionsResponse)
]
Open = Annotated[Json, Answer("OpenList", "What is open, oldest first.", admin_pb2.ListOpenTransactionsResponse)]
Aborted = Annotated[
    Json,
    Answer("AbortedTransaction", "What was aborted, or would be.", admin_pb2.AbortClusterTransactionResponse),
]
Ended = Annotated[
    Json, Answer("EndedHanging", "What was ended, or would be.", admin_pb2.AbortHangingTransactionResponse)
]
Decided = Annotated[
    Json,
    Answer(
        "Decided",
        "The verdict of a prepared transaction.",
        transaction_pb2.DecidePreparedResponse,
        only=frozenset({"committed"}),
        more={"transactional_id": text()},
    ),
]

# --- access -----------------------------------------------------------------------------------------------------------

Access = Annotated[Json, Answer("Access", "Who may do what.", access_pb2.DescribeAccessResponse)]
AccessChanged = Annotated[Json, Answer("AccessChanged", "Who gains and loses what.", access_pb2.AlterAccessResponse)]
ObservedAccess = Annotated[
    Json, Answer("ObservedAccess", "What nodes have seen of who calls.", access_pb2.ObservedResponse)
]
Explained = Annotated[Json, Answer("Explained", "Whether somebody may, and why.", access_pb2.ExplainAccessResponse)]
Holders = Annotated[Json, Answer("Holders", "Who may do something.", access_pb2.WhoCanResponse)]
WhyRefused = Annotated[Json, Answer("WhyRefused", "What nodes know of a refusal.", access_pb2.WhyRefusedResponse)]
Keys = Annotated[Json, Answer("Keys", "API keys, without their secrets.", access_pb2.ListKeysResponse)]
NewKey = Annotated[Json, Answer("NewKey", "A key, which is shown this once.", access_pb2.CreateKeyResponse)]
Quotas = Annotated[Json, Answer("Quotas", "What is set of quotas.", access_pb2.DescribeQuotasResponse)]
Users = Annotated[Json, Answer("Users", "Users with passwords, without those.", access_pb2.ListUsersResponse)]
WhoAmI = Annotated[Json, Answer("WhoAmI", "Who asks.", access_pb2.WhoAmIResponse)]

_TYPES: Final = [part for named in list(globals().values()) for part in (named, *get_args(named))]
ANSWERS: Final = [part for part in _TYPES if isinstance(part, Answer)]
"""All that stand above, for the document."""
