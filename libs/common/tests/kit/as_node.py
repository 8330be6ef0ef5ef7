"""For tests and benchmarks that ask nodes of a local cluster what only nodes may ask."""

from __future__ import annotations

from pathlib import Path

from headrace_common.core.ids import NodeId
from headrace_common.core.image import NodeKey, Role
from headrace_common.rpc.channels import Security
from headrace_common.rpc.node_gate import NODE_KEY, TOKEN_KEY
from headrace_common.runtime.token_file import read_tokens


def as_node(data_dir: Path, role: Role = Role.ADMIN) -> Security:
    """How a node of the cluster that ``headrace up`` keeps in ``data_dir`` shows who it is."""
    shown = read_tokens(data_dir / "node-token")[0].decode()
    name = str(NodeKey(role, NodeId(1)))
    return Security(lambda target: ((NODE_KEY, name), (TOKEN_KEY, shown)))
