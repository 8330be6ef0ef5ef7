"""
Decides what is in the files of a local cluster's certificates while its CA is changed: in three steps, so that nobody
meets a certificate that it does not trust. Called by ``headrace tls rotate``, which waits between them until all nodes
use what is there.

The file of the CA may hold several: the first one signs, by its key beside it, and all are trusted. The new CA is kept
in files of its own until the end, so what was cut anywhere is done again from the beginning, and ends the same.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from headrace_cli.local.certificate_files import LEAF_LIFE, NodeFiles
from headrace_cli.local.certificates import CA_NAME, writing
from headrace_cli.local.failures import LocalClusterFailed
from headrace_common.runtime.certificates import (
    Leaf,
    Pair,
    lasts,
    make_ca,
    make_pair,
    names_of,
    read_pair,
    write_pair,
    write_private,
)

_SPIFFE: Final = "spiffe://"


class Rotation:
    """The files of one cluster. Each step may be done again, and is whole under the lock of the directory."""

    def __init__(self, files: NodeFiles, now: datetime, life: timedelta = LEAF_LIFE) -> None:
        self._files = files
        self._now = now
        self._life = life

    @property
    def is_begun(self) -> bool:
        """A change of the CA was cut."""
        return self._files.next_ca.exists()

    def make_pairs(self) -> list[str]:
        """
        New pairs of the CA that there is; the names of the files.

        Raises:
            LocalClusterFailed: there is none, or files cannot be read or written.
        """
        if self.is_begun:
            raise LocalClusterFailed("a change of the CA was cut; `headrace tls rotate --ca` ends it first")
        with writing(self._files.directory):
            return self._sign(self._signing(), anew=True)

    def add(self) -> str:
        """All trust the new CA, too; its SHA-256. Raises: as ``make_pairs``."""
        with writing(self._files.directory):
            self._signing()
            new = read_pair(self._files.next_ca, self._files.key(self._files.next_ca))
            if new is None or not lasts(new, new, self._now):
                new = make_ca(CA_NAME, self._now)
                write_pair(self._files.next_ca, self._files.key(self._files.next_ca), new)
            there = self._trusted()
            if new.certificate not in there:
                self._trust([*there, new.certificate])
            return new.certificate.fingerprint(hashes.SHA256()).hex()

    def sign(self) -> list[str]:
        """The new CA signs, and all have certificates of it; the names of what was made. Raises: as ``make_pairs``."""
        with writing(self._files.directory):
            new = self._new()
            others = [one for one in self._trusted() if one != new.certificate]
            self._trust([new.certificate, *others])
            write_private(self._files.key(self._files.ca), new.key_pem)
            return self._sign(new, anew=False)

    def drop(self) -> None:
        """The new CA alone is trusted. Raises: as ``make_pairs``."""
        with writing(self._files.directory):
            self._trust([self._new().certificate])

    def end(self) -> None:
        """All of it is done. Raises: as ``make_pairs``."""
        with writing(self._files.directory):
            self._files.key(self._files.next_ca).unlink(missing_ok=True)
            self._files.next_ca.unlink(missing_ok=True)

    def _signing(self) -> Pair:
        ca = read_pair(self._files.ca, self._files.key(self._files.ca))
        if ca is None:
            raise LocalClusterFailed(
                f"{self._files.ca} is no CA, or its key is missing; `headrace down` and `headrace up --tls` make one"
            )
        return ca

    def _new(self) -> Pair:
        new = read_pair(self._files.next_ca, self._files.key(self._files.next_ca))
        if new is None:
            raise LocalClusterFailed(f"{self._files.next_ca} is not there any more; give the command again")
        return new

    def _trusted(self) -> list[x509.Certificate]:
        try:
            return x509.load_pem_x509_certificates(self._files.ca.read_bytes())
        except ValueError as error:
            raise LocalClusterFailed(f"{self._files.ca} cannot be read: {error}") from error

    def _trust(self, cas: list[x509.Certificate]) -> None:
        write_private(self._files.ca, b"".join(ca.public_bytes(serialization.Encoding.PEM) for ca in cas))

    def _sign(self, ca: Pair, *, anew: bool) -> list[str]:
        """Pairs that say what those of before say; ``anew``: also in the place of those that are of ``ca`` and last."""
        made = []
        for path in sorted(self._files.directory.glob("*.pem")):
            key = self._files.key(path)
            pair = None if path in (self._files.ca, self._files.next_ca) else read_pair(path, key)
            if pair is not None and (anew or not lasts(pair, ca, self._now)):
                write_pair(path, key, make_pair(ca, _leaf_of(path.stem, pair.certificate), self._now, self._life))
                made.append(path.name)
        return made


def _leaf_of(role: str, certificate: x509.Certificate) -> Leaf:
    names = names_of(certificate)
    uris = {name for name in names if name.startswith(_SPIFFE)}
    return Leaf(role, names - uris, next(iter(uris), None))
