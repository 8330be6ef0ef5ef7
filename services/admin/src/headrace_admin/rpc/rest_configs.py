"""Settings of topics and brokers over REST: one way to read them, one way to change them."""

from __future__ import annotations

from headrace_admin.engine.administration import Administration, one_config
from headrace_admin.rpc import models
from headrace_common.core.errors import Rejected
from headrace_common.rpc import answers
from headrace_common.rpc.json_form import Json
from headrace_proto.v1 import controller_pb2 as pb


async def describe(engine: Administration, kind: pb.ConfigResourceType.ValueType, name: str) -> Json:
    """
    Effective settings of one resource.

    Raises:
        HeadraceError: what the controller says of it.
    """
    resource = pb.ConfigResource(type=kind, name=name)
    answer = await engine.controllers.ask(
        lambda stub: stub.DescribeConfigs, pb.DescribeConfigsRequest(resources=[resource])
    )
    return answers.configs(one_config(answer.results))


async def alter(
    engine: Administration, kind: pb.ConfigResourceType.ValueType, name: str, change: models.ChangeConfigs
) -> Json:
    """
    Change settings of one resource, all or none; the settings as they are then.

    Raises:
        Rejected: nothing is to be changed, or one setting twice.
        HeadraceError: what the controller says of it.
    """
    changes = [
        *_changes(pb.SET, change.set),
        *(pb.AlterConfig(name=name, op=pb.DELETE) for name in change.delete),
        *_changes(pb.APPEND, change.append),
        *_changes(pb.SUBTRACT, change.subtract),
    ]
    if not changes:
        raise Rejected("nothing is to be changed; name settings under set, delete, append or subtract")
    if len({c.name for c in changes}) != len(changes):
        raise Rejected("a setting is changed twice in one request; name each once")
    resource = pb.AlterConfigsResource(resource=pb.ConfigResource(type=kind, name=name), changes=changes)
    answer = await engine.controllers.ask(
        lambda stub: stub.IncrementalAlterConfigs,
        pb.IncrementalAlterConfigsRequest(resources=[resource], validate_only=change.validate_only),
    )
    return answers.configs(one_config(answer.results))


def _changes(op: pb.AlterConfigOp.ValueType, values: dict[str, str]) -> list[pb.AlterConfig]:
    return [pb.AlterConfig(name=name, op=op, value=value) for name, value in values.items()]
