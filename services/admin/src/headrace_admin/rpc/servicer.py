"""The gRPC face: the messages of the ``Admin`` service are those of controller and broker, so most pass through."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from headrace_admin.engine.administration import Administration
from headrace_proto.v1 import admin_pb2, broker_pb2
from headrace_proto.v1 import controller_pb2 as pb
from headrace_proto.v1.admin_pb2_grpc import AdminServicer as GeneratedServicer

Context = Any


class AdminServicer(GeneratedServicer):
    """One engine call per RPC; errors pass to the interceptor."""

    def __init__(self, engine: Administration) -> None:
        self._engine = engine
        self._controllers = engine.controllers

    @override
    async def DescribeCluster(self, request: pb.DescribeClusterRequest, context: Context) -> pb.DescribeClusterResponse:
        return await self._controllers.describe_cluster(request)

    @override
    async def CreateTopics(self, request: pb.CreateTopicsRequest, context: Context) -> pb.CreateTopicsResponse:
        return await self._controllers.create_topics(request)

    @override
    async def DeleteTopics(self, request: pb.DeleteTopicsRequest, context: Context) -> pb.DeleteTopicsResponse:
        return await self._controllers.delete_topics(request)

    @override
    async def ListTopics(self, request: pb.ListTopicsRequest, context: Context) -> pb.ListTopicsResponse:
        return await self._controllers.list_topics(request)

    @override
    async def DescribeTopics(self, request: pb.DescribeTopicsRequest, context: Context) -> pb.DescribeTopicsResponse:
        return await self._controllers.describe_topics(request)

    @override
    async def CreatePartitions(
        self, request: pb.CreatePartitionsRequest, context: Context
    ) -> pb.CreatePartitionsResponse:
        return await self._controllers.create_partitions(request)

    @override
    async def DescribeConfigs(self, request: pb.DescribeConfigsRequest, context: Context) -> pb.DescribeConfigsResponse:
        return await self._controllers.describe_configs(request)

    @override
    async def IncrementalAlterConfigs(
        self, request: pb.IncrementalAlterConfigsRequest, context: Context
    ) -> pb.IncrementalAlterConfigsResponse:
        return await self._controllers.alter_configs(request)

    @override
    async def DeleteRecords(
        self, request: broker_pb2.DeleteRecordsRequest, context: Context
    ) -> broker_pb2.DeleteRecordsResponse:
        return await self._engine.delete_records(request)

    @override
    async def DescribeLogs(
        self, request: admin_pb2.DescribeClusterLogsRequest, context: Context
    ) -> admin_pb2.DescribeClusterLogsResponse:
        return await self._engine.describe_logs(request)

    @override
    async def UnregisterNode(self, request: pb.UnregisterNodeRequest, context: Context) -> pb.UnregisterNodeResponse:
        return await self._controllers.unregister_node(request)
