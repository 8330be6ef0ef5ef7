"""
What the admin clients return about the cluster's feature level: frozen values, made from messages of the ``Admin``
service here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace._told import Made, Told

if TYPE_CHECKING:
    from headrace_proto.v1 import admin_pb2


@dataclass(frozen=True, slots=True)
class FeatureInfo(Made["admin_pb2.Feature"]):
    """Something that nodes write or demand only when all of them know it."""

    level: int
    """From which level of the cluster on."""
    name: str
    brings: str
    """One sentence."""


def _name_node(node: admin_pb2.NodeFeatures) -> str:
    from headrace_proto.v1 import cluster_pb2

    return f"{cluster_pb2.NodeRole.Name(node.role).lower()}-{node.id}"


@dataclass(frozen=True, slots=True)
class NodeFeatures(Made["admin_pb2.NodeFeatures"], node=_name_node):
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
