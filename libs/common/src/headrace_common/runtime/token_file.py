"""
The file with the cluster's node token: makes one and reads it. ``python -m headrace_common.runtime.token_file FILE``.

Imports nothing of a service: the command makes the file of a local cluster too.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
from pathlib import Path
from typing import Final

from headrace_common.core.credential_forms import NODE_TOKEN_FORM
from headrace_common.core.errors import InvalidConfig

FILE_BYTES_MAX: Final = 1_024
TOKENS_MAX: Final = 2
_TOKEN: Final = re.compile(NODE_TOKEN_FORM)


def new_token() -> str:
    """A token of 256 random bits."""
    return f"hrn_{secrets.token_urlsafe(32)}"


def make_file(path: Path) -> bool:
    """
    Have a file with a token there, for this user alone; whether it was made. One that is there is left as it is.

    It is on disk before it has its name: a power cut leaves no empty file.

    Raises:
        OSError: it cannot be written.
    """
    if os.path.lexists(path):
        return False
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(f"{new_token()}\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(partial, path)  # unlike a rename it never replaces what another process has made meanwhile
    except FileExistsError:
        return False
    finally:
        partial.unlink()
    return True


def read_tokens(path: Path) -> tuple[bytes, ...]:
    """
    One token or two, the one to show first.

    Raises:
        InvalidConfig: the file cannot be read, or holds something else.
    """
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX + 1).decode("ascii")
    except OSError as error:
        raise InvalidConfig(f"cannot read the node token file {path}: {error.strerror}") from error
    except ValueError as error:
        raise InvalidConfig(f"the node token file {path} is no text of tokens") from error
    tokens = [line.strip() for line in text.splitlines() if line.strip()]
    if not 1 <= len(tokens) <= TOKENS_MAX or not all(map(_TOKEN.fullmatch, tokens)):
        raise InvalidConfig(
            f"the node token file {path} takes one token or two, a line each, of the form hrn_ and 43 characters"
        )
    return tuple(token.encode() for token in tokens)


def _main(arguments: list[str]) -> int:
    """Make a file with a new token; one that is there stays, and has to hold a token."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m headrace_common.runtime.token_file FILE\n")
        return 2
    path = Path(arguments[0])
    try:
        made = make_file(path)
        read_tokens(path)
    except OSError as error:
        sys.stderr.write(f"error: cannot write {path}: {error.strerror}; its directory has to be there\n")
        return 1
    except InvalidConfig as error:
        sys.stderr.write(f"error: {error}; name another file, or remove this one to have it made\n")
        return 1
    sys.stdout.write(f"{path}: {'a new node token' if made else 'it has a node token already, and stays as it is'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
