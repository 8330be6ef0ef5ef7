"""A plan as people read it: as a picture (Mermaid), and as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace_streams.core.operators.base import OUT
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


@dataclass(frozen=True, slots=True)
class _Drawing:
    """What every picture of a plan shows: sub-topologies, topics by name with their ids, and links."""

    parts: list[SubTopology]
    topics: dict[str, str]
    links: list[tuple[str, str, str]]
    """From, to, and the name of the way, if it has one."""


def as_mermaid(app: str, plan: Plan) -> str:
    """A flow chart: topics as cylinders, state as a double frame, one box for each sub-topology."""
    drawing = _draw(app, plan)
    lines = ["flowchart TD"]
    for place, part in enumerate(drawing.parts):
        lines.append(f'  subgraph s{place}["{part.name}"]')
        for node in part.nodes:
            text = _text(node)
            lines.append(f'    n{node.id}[["{text}"]]' if node.stateful else f'    n{node.id}["{text}"]')
        lines.append("  end")
    lines += [f'  {of}[("{name}")]' for name, of in drawing.topics.items()]
    lines += [f"  {a} -- {way} --> {b}" if way else f"  {a} --> {b}" for a, b, way in drawing.links]
    return "\n".join(lines) + "\n"


def as_dot(app: str, plan: Plan) -> str:
    """The same chart in the language of Graphviz."""
    drawing = _draw(app, plan)
    lines = [f"digraph {_quoted(app)} {{", "  node [shape=box]"]
    for place, part in enumerate(drawing.parts):
        lines += [f"  subgraph cluster_{place} {{", f"    label={_quoted(part.name)}"]
        for node in part.nodes:
            frame = ", peripheries=2" if node.stateful else ""
            lines.append(f"    n{node.id} [label={_quoted(_text(node))}{frame}]")
        lines.append("  }")
    lines += [f"  {of} [label={_quoted(name)}, shape=cylinder]" for name, of in drawing.topics.items()]
    lines += [f"  {a} -> {b}" + (f" [label={_quoted(way)}]" if way else "") for a, b, way in drawing.links]
    return "\n".join([*lines, "}"]) + "\n"


def _draw(app: str, plan: Plan) -> _Drawing:
    topics: dict[str, str] = {}

    def topic(name: str) -> str:
        return topics.setdefault(name, f"t{len(topics)}")

    parts = sub_topologies(plan)
    links: list[tuple[str, str, str]] = []
    for node in (node for part in parts for node in part.nodes):
        to = f"n{node.id}"
        for i in node.inputs:
            source = plan.nodes[i.node]
            if source.kind == REPARTITION:
                links.append((topic(repartition_topic(app, source.name)), to, ""))
            else:
                links.append((f"n{source.id}", to, "" if i.edge == OUT else i.edge))
        links += [(topic(name), to, "") for name in _topics(node) if node.kind == SOURCE]
        links += [(to, topic(name), "") for name in node.topics if node.kind == SINK]
        if node.kind == REPARTITION:
            links.append((to, topic(repartition_topic(app, node.name)), ""))
    return _Drawing(parts, topics, list(dict.fromkeys(links)))


def _text(node: Node) -> str:
    return f"{node.kind} {node.name}".strip()


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
