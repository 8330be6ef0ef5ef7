"""The shapes of REST for the cluster's feature level. See ``models`` for what they share."""

from __future__ import annotations

from pydantic import Field

from headrace_admin.rpc.models import Answer


class Feature(Answer):
    """Something that nodes write or demand only when all of them know it."""

    level: int = Field(description="From which level of the cluster on.")
    name: str
    brings: str
    active: bool = Field(description="The cluster has that level.")


class NodeFeatures(Answer):
    """A registered node."""

    node: str = Field(description="Role and id, such as broker-1.")
    feature_level_max: int = Field(description="The highest level that it knows; 0: a version from before levels.")
    fenced: bool
    version: str


class Features(Answer):
    """The cluster's feature level, and how it may rise."""

    level: int
    waits_for: str | None = Field(description="Why it is not at the next level, and what to do. Null: there is none.")
    features: list[Feature]
    nodes: list[NodeFeatures]
