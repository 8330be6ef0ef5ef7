"""
The keys of closed local clusters, which programs of the same user find by the address that they go to.

``headrace up`` makes a key at each start and writes it to ``headrace/local/CLUSTER-ID.toml`` in the user's
directory of settings (``$XDG_CONFIG_HOME``, else ``~/.config``), readable by that user alone; ``headrace down`` removes
it. A key dies with its start, so whoever takes over a free port later gains nothing by what is shown there::

    cluster_id = "..."
    addresses = ["127.0.0.1:9292", "127.0.0.1:9490"]
    api_key = "hrk_..."
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from headrace.finding import config_directory
from headrace_common.core.ids import is_loopback
from headrace_common.core.secret import Secret

POD_TOKEN: Final = Path("/var/run/secrets/headrace/token")
"""Where that of a pod's ServiceAccount is mounted."""
_log = logging.getLogger("headrace")


def local_keys_directory(env: Mapping[str, str]) -> Path:
    """Where the files are, one for each cluster."""
    return config_directory(env) / "local"


def write_local_key(
    directory: Path,
    cluster_id: str,
    addresses: Collection[str],
    key: Secret,
    *,
    name: str | None = None,
    more: Mapping[str, str | int | list[str]] = MappingProxyType({}),
) -> Path:
    """
    Have programs of this user find ``key``; on disk whole or not at all, for this user alone. Returns the file. What
    others have left that speaks of one of ``addresses`` goes: those clusters were killed, and their ports are ours now.

    Args:
        name: of the file; without it the cluster's id.
        more: what else it has.

    Raises:
        OSError: it cannot be written.
    """
    name = name or cluster_id
    assert "/" not in name, "it is a name"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = directory / f"{name}.toml"
    draft = file.with_suffix(".new")
    text = (
        f"cluster_id = {json.dumps(cluster_id)}\n"
        f"addresses = {json.dumps(list(addresses))}\n"
        f"api_key = {json.dumps(key.reveal())}\n"
    ) + "".join(f"{name} = {json.dumps(value)}\n" for name, value in more.items())
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(text)
    draft.replace(file)
    for other in directory.glob("*.toml"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            if other != file and not set(addresses).isdisjoint(read_key_file(other)[0]):
                other.unlink()
    return file


def remove_local_key(directory: Path, name: str) -> None:
    """What ``write_local_key`` wrote, if it is there. Raises: OSError: it cannot be removed."""
    (directory / f"{name}.toml").unlink(missing_ok=True)


def read_local_keys(directory: Path) -> dict[str, Secret]:
    """The keys by the addresses on this machine that they are for. A file that cannot be read is left out, and said."""
    keys: dict[str, Secret] = {}
    try:
        files = sorted(directory.glob("*.toml"))
    except OSError:
        return keys
    for file in files:
        try:
            addresses, key = read_key_file(file)
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("%s cannot be read, so the key of that cluster is not known: %s", file, type(error).__name__)
            continue
        keys |= {address: key for address in addresses if is_loopback(address)}
    return keys


def logins_directory(env: Mapping[str, str]) -> Path:
    """Where ``headrace login`` keeps what it has got, one file for each cluster."""
    return config_directory(env) / "logins"


def find_login(directory: Path, targets: Iterable[str]) -> Path | None:
    """The login for a cluster that has one of these addresses; None: there is none."""
    try:
        files = sorted(directory.glob("*.toml"))
    except OSError:
        return None
    wanted = set(targets) if files else set[str]()
    for file in files:
        try:
            addresses, _ = read_key_file(file)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if not wanted.isdisjoint(addresses):
            return file
    return None


def read_key_file(file: Path) -> tuple[list[str], Secret]:
    """
    The addresses and the key that a file has.

    Raises:
        OSError, ValueError, KeyError, TypeError: it cannot be read.
    """
    import tomllib

    said = tomllib.loads(file.read_text())
    addresses, key = said["addresses"], said["api_key"]
    if not isinstance(key, str) or not all(isinstance(address, str) for address in addresses):
        raise TypeError("addresses and api_key are texts")
    return addresses, Secret(key)
