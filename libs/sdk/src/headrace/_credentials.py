"""
Decides what a client shows of itself: an API key, from its settings, from a file, or of a local cluster. A token of an
issuer that the cluster takes stands for a key wherever one is given.

A transport has one, and asks it at the start of each call and stream. A key never goes out in plain text but to this
machine.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from headrace.errors import CredentialInPlainText
from headrace.finding import ClusterAddress
from headrace.local_keys import local_keys_directory, read_local_keys
from headrace_common.core.errors import InvalidConfig, Rejected
from headrace_common.core.ids import is_loopback
from headrace_common.core.secret import Secret
from headrace_common.rpc.channels import Metadata

FILE_BYTES_MAX: Final = 8_200
"""The longest token, and the end of its line."""
_TOKEN: Final = re.compile(r"eyJ[A-Za-z0-9_-]*\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_HEADER: Final = "authorization"

_log = logging.getLogger("headrace")


class Credentials:
    """What one client shows. Any thread."""

    def __init__(self, *, tls: bool) -> None:
        self._tls = tls
        self.number = 0
        """Of what is shown now; another one is counted up."""

    def metadata(self, target: str) -> Metadata:
        """
        What a call to ``host:port`` has beside its own metadata.

        Raises:
            CredentialInPlainText: it would show a key to another machine, and not by TLS.
        """
        key = self._key_for(target)
        if key is None:
            return ()
        if not self._tls and not is_loopback(target):
            raise CredentialInPlainText.to(target)
        return ((_HEADER, f"Bearer {key.reveal()}"),)

    def changed_since(self, number: int) -> bool:
        """A call that was begun with ``number`` was refused for what it showed: whether it would show another now."""
        self._look_again()
        return self.number != number

    def _key_for(self, target: str) -> Secret | None:
        raise NotImplementedError

    def _look_again(self) -> None:
        """Whether there is something else to show."""


class FixedKey(Credentials):
    """One that the settings name."""

    def __init__(self, key: Secret, *, tls: bool) -> None:
        super().__init__(tls=tls)
        self._key = checked(key, "api_key")

    def _key_for(self, target: str) -> Secret | None:
        return self._key


class KeyFile(Credentials):
    """
    The one that is in a file, which is looked at with each call: that costs a few microseconds.

    Raises:
        InvalidConfig: it cannot be read, or has no key. When that is so later, the key of before stays in use.
    """

    def __init__(self, file: Path, *, tls: bool) -> None:
        super().__init__(tls=tls)
        self._file = file
        self._seen = _stamp(file)
        self._key = read_key(file)

    def _key_for(self, target: str) -> Secret | None:
        if _stamp(self._file) != self._seen:
            self._look_again()
        return self._key

    def _look_again(self) -> None:
        self._seen = _stamp(self._file)
        try:
            key = read_key(self._file)
        except InvalidConfig as error:
            _log.warning("%s; the key of before stays in use", error)
            return
        if key != self._key:
            self._key = key
            self.number += 1


class LocalKeys(Credentials):
    """Those of the closed clusters that the same user has started on this machine, each for its own addresses."""

    def __init__(self, directory: Path, *, tls: bool) -> None:
        super().__init__(tls=tls)
        self._directory = directory
        self._keys: Mapping[str, Secret] | None = None

    def _key_for(self, target: str) -> Secret | None:
        if not is_loopback(target):
            return None
        if self._keys is None:
            self._keys = read_local_keys(self._directory)
        return self._keys.get(target)

    def _look_again(self) -> None:
        keys = read_local_keys(self._directory)
        if keys != self._keys:
            self._keys = keys
            self.number += 1


def credentials_for(address: ClusterAddress | None, targets: Iterable[str], env: Mapping[str, str]) -> Credentials:
    """
    What a client shows to the cluster at ``targets``.

    Raises:
        InvalidConfig: what is named for it is no key.
        CredentialInPlainText: one of ``targets`` would be shown a key in plain text.
    """
    tls = address is not None and address.ca is not None
    found: Credentials
    if address is not None and address.api_key is not None:
        found = FixedKey(address.api_key, tls=tls)
    elif address is not None and address.api_key_file is not None:
        found = KeyFile(Path(address.api_key_file).expanduser(), tls=tls)
    else:
        return LocalKeys(local_keys_directory(env), tls=tls)
    for target in targets:
        found.metadata(target)
    return found


def read_key(file: Path) -> Secret:
    """
    The key that is in a file.

    Raises:
        InvalidConfig: it cannot be read, or holds no key. What it holds is not in the error.
    """
    try:
        with file.open("rb") as opened:
            text = opened.read(FILE_BYTES_MAX + 1).decode("ascii")
    except OSError as error:
        raise InvalidConfig(f"the file with the API key, {file}, cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidConfig(f"the file {file} is no text with an API key") from error
    return checked(Secret(text.strip()), str(file))


def checked(key: Secret, where: str) -> Secret:
    """``key``, which may be a token. Raises: InvalidConfig: it is neither, or was cut or mistyped."""
    from headrace_common.core.access.api_keys import parse_key

    if _TOKEN.fullmatch(key.reveal()):
        return key
    try:
        parse_key(key.reveal())
    except Rejected as error:
        raise InvalidConfig(f"{where}: {error}") from None
    return key


def _stamp(file: Path) -> tuple[int, ...] | None:
    """Another one: the file is another, or has other content. Links are followed, so a volume's swap is seen."""
    try:
        at = os.stat(file)
    except OSError:
        return None
    return at.st_dev, at.st_ino, at.st_mtime_ns, at.st_size
