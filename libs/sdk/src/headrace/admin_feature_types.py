"""
What the admin clients return about the cluster's feature level: frozen values, made from messages of the ``Admin``
service here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace._told import Told, told

if TYPE_CHECKING:
    from headrace_proto.v1 import admin_pb2


@dataclass(frozen=True, slots=True)
class FeatureInfo:
    """Something that nodes write or demand only when all of them know it."""

    level: int
    """From which level of the cluster on."""
    name: str
    brings: str
    """One sentence."""


@dataclass(frozen=True, slots=True)
class NodeFeatures:
    """A registered node."""

    node: str
    """Role and id, such as ``broker-1``."""
    feature_level_max: int
    """The highest level that it knows; 0: it is of a version from before there were levels."""
    fenced: bool
    version: str


@dataclass(frozen=True, slots=True)
class FeaturesInfo(Told["admin_pb2.DescribeFeaturesResponse"]):
    """The cluster's feature level, and how it may rise. The controller raises it by itself; it never falls."""

    level: int
    features: tuple[FeatureInfo, ...]
    """All that the admin service knows of, by level."""
    nodes: tuple[NodeFeatures, ...]
    """All registered nodes, by role and id."""
    waits_for: str | None
    """Why the cluster is not at the next level, and what to do; None: there is no next one."""

    @staticmethod
    def of(answer: admin_pb2.DescribeFeaturesResponse) -> FeaturesInfo:
        """From the wire."""
        from headrace_proto.v1 import cluster_pb2

        def name(node: admin_pb2.NodeFeatures) -> str:
            return f"{cluster_pb2.NodeRole.Name(node.role).lower()}-{node.id}"

        return told(
            FeaturesInfo,
            answer,
            features=tuple(told(FeatureInfo, f) for f in answer.features),
            nodes=tuple(told(NodeFeatures, n, node=name(n)) for n in answer.nodes),
        )
