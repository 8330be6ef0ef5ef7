"""Feature levels as messages of ``admin.proto``; decides nothing."""

from __future__ import annotations

from headrace_admin.core.features import FeatureLevels
from headrace_common.rpc.convert import role_to_proto
from headrace_proto.v1 import admin_pb2 as pb


def features_message(found: FeatureLevels) -> pb.DescribeFeaturesResponse:
    """As the wire has them."""
    return pb.DescribeFeaturesResponse(
        level=found.level,
        features=[pb.Feature(level=f.level, name=f.name, brings=f.brings) for f in found.features],
        nodes=[
            pb.NodeFeatures(
                role=role_to_proto(node.key.role),
                id=node.key.id,
                feature_level_max=node.feature_level_max,
                fenced=node.fenced,
                version=node.version,
            )
            for node in found.nodes
        ],
        waits_for=found.waits_for,
    )
