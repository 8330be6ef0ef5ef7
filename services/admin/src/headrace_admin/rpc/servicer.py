"""The gRPC face: the messages of the ``Admin`` service are those of controller and broker, so most pass through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typing_extensions import override

from headrace_admin.rpc import access_out, certificates_out, observed_out, transactions_out
from headrace_admin.rpc import groups_out as out
from headrace_admin.rpc.engines import Engines
from headrace_admin.rpc.features_out import features_message
from headrace_admin.rpc.messages_out import (
    leaving_message,
    progress_message,
    rebalance_message,
    seen_from,
    status_message,
)
from headrace_common.core.ids import TopicPartition
from headrace_common.core.image import Listener
from headrace_common.rpc.convert import partition_id_from_proto
from headrace_common.rpc.peers import peer_of
from headrace_common.runtime.access_gate import current_rights, current_shown
from headrace_common.runtime.admission import address_of
from headrace_proto.v1 import access_pb2, admin_pb2, broker_pb2, cluster_pb2, coordinator_pb2
from headrace_proto.v1 import controller_pb2 as pb
from headrace_proto.v1 import transaction_pb2 as txn
from headrace_proto.v1.admin_pb2_grpc import AdminServicer as GeneratedServicer

Context = Any


def _forward(method: Callable[[Any], Any]) -> Any:
    """A method that answers what the active controller answers."""

    async def answer(servicer: AdminServicer, request: Any, context: Context) -> Any:
        return await servicer._controllers.ask(method, request)

    return answer


class AdminServicer(GeneratedServicer):
    """
    One engine call per RPC; errors pass to the interceptor.

    ``listener``: where its clients ask, and whose addresses they are told.
    """

    def __init__(self, engines: Engines, listener: Listener = Listener.CLIENT) -> None:
        self._listener = listener
        self._engine = engines.administration
        self._reassignments = engines.reassignments
        self._statuses = engines.statuses
        self._groups = engines.groups
        self._resets = engines.resets
        self._transactions = engines.transactions
        self._open = engines.open_transactions
        self._accesses = engines.accesses
        self._observations = engines.observations
        self._certificates = engines.certificates
        self._controllers = engines.administration.controllers

    CreateTopics = _forward(lambda stub: stub.CreateTopics)
    DeleteTopics = _forward(lambda stub: stub.DeleteTopics)
    ListTopics = _forward(lambda stub: stub.ListTopics)
    DescribeTopics = _forward(lambda stub: stub.DescribeTopics)
    CreatePartitions = _forward(lambda stub: stub.CreatePartitions)
    DescribeConfigs = _forward(lambda stub: stub.DescribeConfigs)
    IncrementalAlterConfigs = _forward(lambda stub: stub.IncrementalAlterConfigs)
    ElectLeaders = _forward(lambda stub: stub.ElectLeaders)
    AlterReassignments = _forward(lambda stub: stub.AlterReassignments)
    ListReassignments = _forward(lambda stub: stub.ListReassignments)
    DrainBroker = _forward(lambda stub: stub.DrainBroker)
    DescribeRestore = _forward(lambda stub: stub.DescribeRestore)
    AdoptTopic = _forward(lambda stub: stub.AdoptTopic)
    CreateKey = _forward(lambda stub: stub.CreateKey)
    DeleteKeys = _forward(lambda stub: stub.DeleteKeys)
    AlterQuotas = _forward(lambda stub: stub.AlterQuotas)
    CreateUser = _forward(lambda stub: stub.CreateUser)
    ChangePassword = _forward(lambda stub: stub.ChangePassword)
    DeleteUser = _forward(lambda stub: stub.DeleteUser)

    @override
    async def DescribeCluster(self, request: pb.DescribeClusterRequest, context: Context) -> pb.DescribeClusterResponse:
        answer = await self._controllers.ask(lambda stub: stub.DescribeCluster, request)
        return seen_from(self._listener, answer)

    @override
    async def DeleteRecords(
        self, request: broker_pb2.DeleteRecordsRequest, context: Context
    ) -> broker_pb2.DeleteRecordsResponse:
        return await self._engine.delete_records(request, current_rights())

    @override
    async def DescribeLogs(
        self, request: admin_pb2.DescribeClusterLogsRequest, context: Context
    ) -> admin_pb2.DescribeClusterLogsResponse:
        return await self._engine.describe_logs(request)

    @override
    async def UnregisterNode(self, request: pb.UnregisterNodeRequest, context: Context) -> pb.UnregisterNodeResponse:
        if request.role == cluster_pb2.BROKER:
            await self._reassignments.unregister(request.id)
            return pb.UnregisterNodeResponse()
        return await self._controllers.ask(lambda stub: stub.UnregisterNode, request)

    @override
    async def DescribeFeatures(
        self, request: admin_pb2.DescribeFeaturesRequest, context: Context
    ) -> admin_pb2.DescribeFeaturesResponse:
        return features_message(await self._engine.feature_levels())

    @override
    async def DescribeStatus(
        self, request: admin_pb2.DescribeStatusRequest, context: Context
    ) -> admin_pb2.DescribeStatusResponse:
        return status_message(await self._statuses.now())

    @override
    async def DescribeCertificates(
        self, request: admin_pb2.DescribeCertificatesRequest, context: Context
    ) -> admin_pb2.DescribeCertificatesResponse:
        return await certificates_out.described(self._certificates, request)

    @override
    async def DescribeReassignments(
        self, request: admin_pb2.DescribeReassignmentsRequest, context: Context
    ) -> admin_pb2.DescribeReassignmentsResponse:
        wanted = [partition_id_from_proto(p) for p in request.partitions]
        found = await self._reassignments.progress(wanted, measure_ms=request.measure_ms)
        return progress_message(found, self._engine.cluster.image, self._reassignments.throttle)

    @override
    async def RebalanceCluster(
        self, request: admin_pb2.RebalanceClusterRequest, context: Context
    ) -> admin_pb2.RebalanceClusterResponse:
        outcome = await self._reassignments.rebalance(
            request.topics, validate_only=request.validate_only, throttle_bytes_per_s=_throttle(request)
        )
        return rebalance_message(outcome, self._engine.cluster.image)

    @override
    async def DecommissionBroker(
        self, request: admin_pb2.DecommissionBrokerRequest, context: Context
    ) -> admin_pb2.DecommissionBrokerResponse:
        leaving = await self._reassignments.decommission(
            request.broker_id, validate_only=request.validate_only, throttle_bytes_per_s=_throttle(request)
        )
        return leaving_message(leaving, self._engine.cluster.image)

    @override
    async def ListGroups(
        self, request: admin_pb2.ListClusterGroupsRequest, context: Context
    ) -> admin_pb2.ListClusterGroupsResponse:
        return out.listing_message(await self._groups.listing(request.states))

    @override
    async def DescribeGroups(
        self, request: coordinator_pb2.DescribeGroupsRequest, context: Context
    ) -> coordinator_pb2.DescribeGroupsResponse:
        described = await self._groups.describe(request.group_ids)
        return coordinator_pb2.DescribeGroupsResponse(
            groups=[out.described_message(i, described[i]) for i in request.group_ids]
        )

    @override
    async def DescribeGroupLag(
        self, request: admin_pb2.DescribeGroupLagRequest, context: Context
    ) -> admin_pb2.DescribeGroupLagResponse:
        group, lags = await self._groups.lag(request.group_id, request.topics, ages=not request.without_age)
        return out.lag_message(group, lags)

    @override
    async def ResetOffsets(
        self, request: admin_pb2.ResetOffsetsRequest, context: Context
    ) -> admin_pb2.ResetOffsetsResponse:
        reset = await self._resets.reset(
            request.group_id, out.named(request.partitions), out.target_of(request), execute=request.execute
        )
        return out.reset_message(reset)

    @override
    async def DeleteGroups(
        self, request: coordinator_pb2.DeleteGroupsRequest, context: Context
    ) -> coordinator_pb2.DeleteGroupsResponse:
        results = await self._groups.delete(request.group_ids)
        return coordinator_pb2.DeleteGroupsResponse(groups=[out.group_result(i, e) for i, e in results.items()])

    @override
    async def DeleteOffsets(
        self, request: coordinator_pb2.DeleteOffsetsRequest, context: Context
    ) -> coordinator_pb2.DeleteOffsetsResponse:
        return out.offset_results(await self._groups.delete_offsets(request.group_id, out.named(request.partitions)))

    # --- transactions ---------------------------------------------------------------------------------------------

    @override
    async def ListTransactions(
        self, request: txn.ListTransactionsRequest, context: Context
    ) -> admin_pb2.ListClusterTransactionsResponse:
        return transactions_out.listing_message(await self._transactions.listing(request))

    @override
    async def DescribeTransactions(
        self, request: txn.DescribeTransactionsRequest, context: Context
    ) -> admin_pb2.DescribeClusterTransactionsResponse:
        described = await self._transactions.describe(request.transactional_ids, current_rights())
        messages = [transactions_out.described_message(i, described[i]) for i in request.transactional_ids]
        return admin_pb2.DescribeClusterTransactionsResponse(transactions=messages)

    @override
    async def ListPreparedTransactions(
        self, request: admin_pb2.ListPreparedTransactionsRequest, context: Context
    ) -> admin_pb2.ListPreparedTransactionsResponse:
        listing = await self._transactions.prepared(request.older_than_ms, current_rights())
        return transactions_out.prepared_message(listing, self._transactions.limits.transaction_prepared_max_ms)

    @override
    async def ListOpenTransactions(
        self, request: admin_pb2.ListOpenTransactionsRequest, context: Context
    ) -> admin_pb2.ListOpenTransactionsResponse:
        older_than_ms = request.older_than_ms if request.HasField("older_than_ms") else None
        listing = await self._open.listing(
            list(request.topics),
            older_than_ms=older_than_ms,
            hanging_only=request.hanging_only,
            rights=current_rights(),
        )
        return transactions_out.open_message(listing)

    @override
    async def DecidePrepared(self, request: txn.DecidePreparedRequest, context: Context) -> txn.DecidePreparedResponse:
        return await self._transactions.decide(request)

    @override
    async def AbortTransaction(
        self, request: admin_pb2.AbortClusterTransactionRequest, context: Context
    ) -> admin_pb2.AbortClusterTransactionResponse:
        aborted = await self._transactions.abort(
            request.transactional_id,
            request.producer_id if request.HasField("producer_id") else None,
            request.producer_epoch if request.HasField("producer_epoch") else None,
            validate_only=request.validate_only,
        )
        return transactions_out.aborted_message(aborted)

    @override
    async def AbortHangingTransaction(
        self, request: admin_pb2.AbortHangingTransactionRequest, context: Context
    ) -> admin_pb2.AbortHangingTransactionResponse:
        ended = await self._open.abort_hanging(
            TopicPartition(request.topic, request.partition),
            request.producer_id if request.HasField("producer_id") else None,
            validate_only=request.validate_only,
            force=request.force,
        )
        return transactions_out.ended_message(ended)

    # --- access ---------------------------------------------------------------------------------------------------

    @override
    async def AlterAccess(
        self, request: access_pb2.AlterAccessRequest, context: Context
    ) -> access_pb2.AlterAccessResponse:
        return await observed_out.altered(self._observations, self._controllers, request, current_rights())

    @override
    async def Observed(self, request: access_pb2.ObservedRequest, context: Context) -> access_pb2.ObservedResponse:
        return await observed_out.observed(self._observations, request, current_rights())

    @override
    async def DescribeAccess(
        self, request: access_pb2.DescribeAccessRequest, context: Context
    ) -> access_pb2.DescribeAccessResponse:
        return access_out.described_message(
            self._accesses.describe(current_rights(), request.principal, limit=request.limit, after=request.after)
        )

    @override
    async def ExplainAccess(
        self, request: access_pb2.ExplainAccessRequest, context: Context
    ) -> access_pb2.ExplainAccessResponse:
        return access_out.explained(self._accesses, request)

    @override
    async def WhoCan(self, request: access_pb2.WhoCanRequest, context: Context) -> access_pb2.WhoCanResponse:
        return access_out.holders(self._accesses, current_rights(), request)

    @override
    async def WhyRefused(
        self, request: access_pb2.WhyRefusedRequest, context: Context
    ) -> access_pb2.WhyRefusedResponse:
        return await observed_out.why_refused(self._observations, request.id, current_rights())

    @override
    async def ListKeys(self, request: access_pb2.ListKeysRequest, context: Context) -> access_pb2.ListKeysResponse:
        return access_out.keys_message(self._accesses.keys(current_rights(), request.owner))

    @override
    async def DescribeQuotas(
        self, request: access_pb2.DescribeQuotasRequest, context: Context
    ) -> access_pb2.DescribeQuotasResponse:
        return access_out.quotas_message(self._accesses.quotas(request.entity))

    @override
    async def ListUsers(self, request: access_pb2.ListUsersRequest, context: Context) -> access_pb2.ListUsersResponse:
        return access_out.users_message(self._accesses.users(current_rights(), request.name))

    @override
    async def Login(self, request: access_pb2.LoginRequest, context: Context) -> access_pb2.LoginResponse:
        request.host = address_of(peer_of(context))
        return await self._controllers.ask(lambda stub: stub.Login, request)

    @override
    async def WhoAmI(self, request: access_pb2.WhoAmIRequest, context: Context) -> access_pb2.WhoAmIResponse:
        return access_out.who_am_i(self._accesses, current_shown())


def _throttle(request: admin_pb2.RebalanceClusterRequest | admin_pb2.DecommissionBrokerRequest) -> int | None:
    return request.throttle_bytes_per_s if request.HasField("throttle_bytes_per_s") else None
