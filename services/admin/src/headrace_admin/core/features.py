"""What is said of the cluster's feature level: what comes with each, who knows which, and what the next waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace_common.core.features import FEATURES, HIGHEST, Feature
from headrace_common.core.image import Node, Role


@dataclass(frozen=True, slots=True)
class FeatureLevels:
    """The cluster's level, and how it may rise."""

    level: int
    features: tuple[Feature, ...]
    """All that this version knows, by level."""
    nodes: tuple[Node, ...]
    """All registered nodes, by role and id."""
    waits_for: str | None
    """Why the cluster is not at the next level, and what to do; None: there is no next one."""


def feature_levels(level: int, nodes: Sequence[Node]) -> FeatureLevels:
    """What is to be said of a cluster at ``level`` with these nodes registered."""
    ordered = tuple(sorted(nodes, key=lambda node: (node.key.role.value, node.key.id)))
    return FeatureLevels(level, FEATURES, ordered, _waits_for(level, ordered))


def _waits_for(level: int, nodes: Sequence[Node]) -> str | None:
    if level >= max((node.feature_level_max for node in nodes), default=HIGHEST):
        return None
    below = [node for node in nodes if node.feature_level_max <= level]
    if not below:
        return (
            f"every node knows level {level + 1}: the active controller raises the cluster in a moment, or once a "
            "restore of the metadata is finished (`headrace cluster restore-status`)"
        )
    names = ", ".join(f"{node.key}{' (away)' if node.fenced else ''}" for node in below)
    text = (
        f"level {level + 1} waits for {names}: start {'it' if len(below) == 1 else 'each'} with a version that knows it"
    )
    lost = [node for node in below if node.fenced]
    return f"{text}; what does not come back is forgotten with `{_forget(lost[0])}`" if lost else text


def _forget(node: Node) -> str:
    if node.key.role is Role.BROKER:
        return f"headrace broker unregister {node.key.id}"
    return f"headrace cluster forget {node.key}"
