"""Feature levels as messages of ``admin.proto`` and as the shapes of REST; decides nothing."""

from __future__ import annotations

from headrace_admin.core.features import FeatureLevels
from headrace_admin.rpc import models_features as shapes
from headrace_common.rpc.convert import role_to_proto
from headrace_proto.v1 import admin_pb2 as pb


def features_message(found: FeatureLevels) -> pb.DescribeFeaturesResponse:
    """For gRPC."""
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


def features_out(found: FeatureLevels) -> shapes.Features:
    """For REST."""
    return shapes.Features(
        level=found.level,
        waits_for=found.waits_for,
        features=[
            shapes.Feature(level=f.level, name=f.name, brings=f.brings, active=found.level >= f.level)
            for f in found.features
        ],
        nodes=[
            shapes.NodeFeatures(
                node=str(node.key),
                feature_level_max=node.feature_level_max,
                fenced=node.fenced,
                version=node.version,
            )
            for node in found.nodes
        ],
    )
