"""``/v1/brokers/{id}/drain``, ``…/decommission`` and ``/v1/cluster/nodes/{name}``: what empties or forgets a node."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, status

from headrace_admin.engine.administration import Administration
from headrace_admin.engine.reassignments import Reassignments
from headrace_admin.rpc import answer_types
from headrace_admin.rpc import models_replication as shapes
from headrace_admin.rpc.messages_out import leaving_message
from headrace_admin.rpc.rest_cluster import BrokerId
from headrace_common.core.errors import Rejected
from headrace_common.core.image import Role
from headrace_common.core.node_rules import node_key_of
from headrace_common.rpc import answers
from headrace_common.rpc.convert import role_to_proto
from headrace_common.rpc.json_form import json_of
from headrace_proto.v1 import controller_pb2 as pb


def broker_change_routes(engine: Administration, reassignments: Reassignments) -> APIRouter:
    """All routes of this module."""
    routes = APIRouter(prefix="/v1/brokers/{broker}", tags=["cluster"])
    _drain(routes, engine)
    _decommission(routes, engine, reassignments)

    @routes.delete("", operation_id="unregister_broker", status_code=status.HTTP_204_NO_CONTENT)
    async def unregister_broker(
        broker: BrokerId, confirm: Annotated[str, Query(max_length=20, description="The id once more.")] = ""
    ) -> None:
        """Forget a broker that is stopped and holds nothing."""
        if confirm != str(broker):
            raise Rejected(f"broker {broker} would be forgotten; to confirm it, add ?confirm={broker}")
        await reassignments.unregister(broker)

    return routes


def node_routes(engine: Administration, reassignments: Reassignments) -> APIRouter:
    """``/v1/cluster/nodes/{node}``: nodes of any role, by names such as coordinator-2."""
    routes = APIRouter(prefix="/v1/cluster/nodes/{node}", tags=["cluster"])

    @routes.delete("", operation_id="forget_node", status_code=status.HTTP_204_NO_CONTENT)
    async def forget_node(
        node: Annotated[str, Path(max_length=30, description="Role and id, such as coordinator-2.")],
        confirm: Annotated[str, Query(max_length=30, description="The name once more.")] = "",
    ) -> None:
        """Forget a node that is stopped and will not come back; a broker holds nothing any more."""
        key = node_key_of(node)
        if confirm != node:
            raise Rejected(f"{node} would be forgotten; to confirm it, add ?confirm={node}")
        if key.role is Role.BROKER:
            await reassignments.unregister(key.id)
        else:
            request = pb.UnregisterNodeRequest(role=role_to_proto(key.role), id=key.id)
            await engine.controllers.ask(lambda stub: stub.UnregisterNode, request)

    return routes


def _drain(routes: APIRouter, engine: Administration) -> None:
    @routes.post("/drain", operation_id="drain_broker")
    async def drain_broker(broker: BrokerId, body: shapes.Drain | None = None) -> answer_types.Drained:
        """Move leaders away and keep them away; the broker goes on copying."""
        del body  # refused where it says anything
        answer = await engine.controllers.ask(
            lambda stub: stub.DrainBroker, pb.DrainBrokerRequest(broker_id=broker, drained=True)
        )
        return json_of(answer) | {"drained": True}

    @routes.delete("/drain", operation_id="undrain_broker")
    async def undrain_broker(broker: BrokerId) -> answer_types.Drained:
        """Let leaders come back; an election of preferred leaders brings them back at once."""
        answer = await engine.controllers.ask(
            lambda stub: stub.DrainBroker, pb.DrainBrokerRequest(broker_id=broker, drained=False)
        )
        return json_of(answer) | {"drained": False}


def _decommission(routes: APIRouter, engine: Administration, reassignments: Reassignments) -> None:
    @routes.get("/decommission", operation_id="plan_decommission")
    async def plan_decommission(broker: BrokerId) -> answer_types.Leaving:
        """What would have to move, or has still to move, until the broker holds nothing. Changes nothing."""
        leaving = await reassignments.decommission(broker, validate_only=True)
        return answers.plan(leaving_message(leaving, engine.cluster.image))

    @routes.post("/decommission", operation_id="decommission_broker")
    async def decommission_broker(broker: BrokerId, body: shapes.Decommission) -> answer_types.Leaving:
        """Drain a broker and move what it holds to others; asked again, what is still to be done."""
        leaving = await reassignments.decommission(
            broker, validate_only=body.validate_only, throttle_bytes_per_s=body.throttle_bytes_per_s
        )
        return answers.plan(leaving_message(leaving, engine.cluster.image))
