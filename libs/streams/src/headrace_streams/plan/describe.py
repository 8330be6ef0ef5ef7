"""A plan as people read it: as a picture (Mermaid), and as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace_streams.plan.cut import SubTopology, sub_topologies
from headrace_streams.plan.nodes import REPARTITION, SINK, SOURCE, Node, Plan, changelog_topic, repartition_topic


def as_data(app: str, plan: Plan, partitions: Mapping[str, int] | None = None) -> dict[str, Any]:
    """
    Sub-topologies with their nodes and stores, as JSON can say it.

    Args:
        partitions: of the app's internal topics, where it is known which topics it reads.
    """
    parts = [_part_as_data(app, part) for part in sub_topologies(plan)]
    return {"app": app, "topics": dict(partitions or {}), "sub_topologies": parts}


def _part_as_data(app: str, part: SubTopology) -> dict[str, Any]:
    return {
        "name": part.name,
        "reads": [*part.topics, *_patterns(part.nodes), *(repartition_topic(app, hop.name) for hop in part.hops)],
        "changelog": changelog_topic(app, part.name) if part.stateful else None,
        "stores": part.form,
        "nodes": [_node_as_data(app, node) for node in part.nodes],
    }


def _topics(node: Node) -> list[str]:
    return list(node.topics) or _patterns([node])


def _patterns(nodes: Iterable[Node]) -> list[str]:
    """Patterns whose topics are not known here."""
    return [node.pattern.pattern for node in nodes if node.pattern is not None and not node.topics]


def _node_as_data(app: str, node: Node) -> dict[str, Any]:
    return {
        "id": node.id,
        "kind": node.kind,
        "name": node.name or None,
        "where": node.where,
        "inputs": [{"node": i.node, "edge": i.edge} for i in node.inputs],
        "topics": [repartition_topic(app, node.name)] if node.kind == REPARTITION else _topics(node),
        "settings": dict(node.settings),
    }


def as_mermaid(app: str, plan: Plan) -> str:
    """A flow chart: topics as cylinders, state as a double frame, one box for each sub-topology."""
    lines = ["flowchart TD"]
    topics: dict[str, str] = {}

    def topic(name: str) -> str:
        return topics.setdefault(name, f"t{len(topics)}")

    links: list[str] = []
    for place, part in enumerate(sub_topologies(plan)):
        lines.append(f'  subgraph s{place}["{part.name}"]')
        for node in part.nodes:
            lines.append(f"    {_box(node)}")
            links += [_link(plan, app, i.node, node, topic) for i in node.inputs]
            links += [f"{topic(name)} --> n{node.id}" for name in _topics(node) if node.kind == SOURCE]
            links += [f"n{node.id} --> {topic(name)}" for name in node.topics if node.kind == SINK]
            if node.kind == REPARTITION:
                links.append(f"n{node.id} --> {topic(repartition_topic(app, node.name))}")
        lines.append("  end")
    lines += [f'  {of}[("{name}")]' for name, of in topics.items()]
    return "\n".join([*lines, *(f"  {link}" for link in dict.fromkeys(links))]) + "\n"


def _link(plan: Plan, app: str, source: int, node: Node, topic: Any) -> str:
    if plan.nodes[source].kind == REPARTITION:
        return f"{topic(repartition_topic(app, plan.nodes[source].name))} --> n{node.id}"
    edges = [i.edge for i in node.inputs if i.node == source and i.edge != "out"]
    return f"n{source} -- {edges[0]} --> n{node.id}" if edges else f"n{source} --> n{node.id}"


def _box(node: Node) -> str:
    text = f"{node.kind} {node.name}".strip()
    return f'n{node.id}[["{text}"]]' if node.stateful else f'n{node.id}["{text}"]'
