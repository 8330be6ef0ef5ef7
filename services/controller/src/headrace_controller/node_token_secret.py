"""
``python -m headrace_controller.node_token_secret NAME``: have a Secret with a node token there. For Kubernetes.

One that is there stays as it is. Prints one line, without the token; 0 if the Secret is there now, 1 if it cannot be
made.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from headrace_common.runtime.kubernetes import ACCOUNT
from headrace_common.runtime.token_file import new_token
from headrace_controller.new_secret import NewSecret, run

KEY: Final = "node-token"
"""Of the Secret; the file that pods mount has this name too."""
SECRET: Final = NewSecret(
    "headrace_controller.node_token_secret",
    "a new node token",
    lambda: {KEY: f"{new_token()}\n"},
    f"make it yourself, with the key {KEY}, and name it in nodeToken.existingSecret",
)


def main(argv: Sequence[str], env: Mapping[str, str], account: Path = ACCOUNT) -> int:
    """Do it; the exit code."""
    return run(SECRET, argv, env, account)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
