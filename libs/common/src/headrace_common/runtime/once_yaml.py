"""YAML in which no name comes twice, and that is data alone: no tags, no anchors that grow. Loaded where it is read."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml


class OnceLoader(yaml.SafeLoader):
    """``yaml.SafeLoader`` that refuses a name that is twice in a mapping, and aliases, as JSON has neither."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuse ``*alias``: ten lines of them make a billion values."""
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not taken; write the value out")
        node: yaml.Node | None = super().compose_node(parent, index)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Refuse what YAML readers settle silently: the last one would win."""
        names = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise yaml.YAMLError(f"{twice[0]!r} is there twice")
        return super().construct_mapping(node, deep)


# Dates stay as they are written: no setting is one, and a text of a topic may look like one.
OnceLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag != "tag:yaml.org,2002:timestamp"]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
