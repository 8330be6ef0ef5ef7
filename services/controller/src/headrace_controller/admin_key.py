"""
``python -m headrace_controller.admin_key``: print a new API key for the administrator, and below it the line by which
controllers know it: ``ID SHA256HEX``, for their ``admin_key_file``. Nothing keeps either.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from headrace_common.core.access.api_keys import verifier_of
from headrace_common.runtime.entropy import new_api_key


class AdminKey(NamedTuple):
    """A new one."""

    key: str
    """A secret."""
    verifier: str
    """No secret: nobody finds the key by it."""


def new_admin_key() -> AdminKey:
    """Another with each call."""
    key = new_api_key()
    return AdminKey(key, verifier_of(key))


def main(argv: Sequence[str]) -> int:
    """Do it; the exit code."""
    if argv:
        sys.stderr.write(
            "usage: python -m headrace_controller.admin_key; prints a key and its line of admin_key_file\n"
        )
        return 2
    sys.stdout.write("{}\n{}\n".format(*new_admin_key()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
