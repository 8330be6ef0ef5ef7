"""
``python -m headrace_controller.admin_key_secret NAME``: have a Secret with the administrator's key there. For
Kubernetes.

One that is there stays as it is. Prints one line, without the key; 0 if the Secret is there now, 1 if it cannot be
made.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from headrace_common.runtime.kubernetes import ACCOUNT
from headrace_controller.admin_key import new_admin_key
from headrace_controller.new_secret import NewSecret, run

API_KEY: Final = "api-key"
"""Of the Secret: the key itself, for who is the administrator. The file that pods mount has this name too."""
VERIFIER: Final = "verifier"
"""And what controllers know it by."""


def main(argv: Sequence[str], env: Mapping[str, str], account: Path = ACCOUNT) -> int:
    """Do it; the exit code."""
    return run(SECRET, argv, env, account)


def _new() -> Mapping[str, str]:
    made = new_admin_key()
    return {API_KEY: f"{made.key}\n", VERIFIER: f"{made.verifier}\n"}


SECRET: Final = NewSecret(
    "headrace_controller.admin_key_secret",
    "a new key of the administrator",
    _new,
    f"make it yourself, with the keys {API_KEY} and {VERIFIER}, and name it in security.admin.existingSecret",
)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
