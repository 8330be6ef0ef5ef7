"""For tests and benchmarks that ask nodes of a local cluster what only nodes may ask."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace_cli.local.plan import node_files
from headrace_common.core.ids import NodeId
from headrace_common.core.image import NodeKey, Role
from headrace_common.rpc.channels import Security
from headrace_common.rpc.credentials import Pem
from headrace_common.rpc.node_gate import FORWARDED_KEY, NODE_KEY, TOKEN_KEY
from headrace_common.runtime.token_file import read_tokens


def as_node(
    data_dir: Path, role: Role = Role.ADMIN, asking_for: Mapping[str, str] | None = None, *, tls: bool = False
) -> Security:
    """
    How a node of the cluster that ``headrace up`` keeps in ``data_dir`` shows who it is.

    Args:
        asking_for: what ``LocalCluster.authorization`` says, so that an admin node asks for the administrator.
        tls: by its certificate, on listeners for nodes; else by the node token.
    """
    said: tuple[tuple[str, str | bytes], ...] = ((NODE_KEY, str(NodeKey(role, NodeId(1)))),)
    for value in (asking_for or {}).values():
        said = (*said, (FORWARDED_KEY, value.removeprefix("Bearer ").encode()))
    if tls:
        files = node_files(data_dir)
        own = files.of(role.value)
        return Security(lambda target: said, Pem(files.ca.read_bytes(), own.read_bytes(), files.key(own).read_bytes()))
    said = (*said, (TOKEN_KEY, read_tokens(data_dir / "node-token")[0].decode()))
    return Security(lambda target: said)
