"""A CA of a test, and the files of a process that has a certificate of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from headrace_common.runtime.certificates import Leaf, Pair, make_ca, make_pair, write_pair, write_private
from headrace_common.runtime.tls_config import TlsFiles

BROKER: Final = Leaf("broker", frozenset({"127.0.0.1", "broker.headrace"}), "spiffe://headrace/broker")


class Authority:
    """Makes pairs of one CA."""

    def __init__(self, name: str = "CA of a test", now: datetime | None = None) -> None:
        self.now = now or datetime.now(UTC)
        self.ca = make_ca(name, self.now)

    def make(self, leaf: Leaf = BROKER, *, age: timedelta = timedelta(0), life: timedelta = timedelta(days=1)) -> Pair:
        """A pair that is valid from a day before ``age`` ago, for ``life`` and that day."""
        return make_pair(self.ca, leaf, self.now - age, life)

    def files(self, directory: Path, leaf: Leaf = BROKER) -> TlsFiles:
        """A new pair, in a directory of its own, with the CA."""
        directory.mkdir(exist_ok=True)
        files = TlsFiles(directory / "tls.crt", directory / "tls.key", directory / "ca.crt")
        self.write(files, self.make(leaf))
        return files

    def write(self, files: TlsFiles, pair: Pair, *also: Authority) -> None:
        """Replace what is there by ``pair``, this CA and those of ``also``."""
        write_pair(files.cert, files.key, pair)
        write_private(files.ca, b"".join(one.ca.certificate_pem for one in (self, *also)))


def of_client(name: str = "coordinator") -> Leaf:
    """A node that shows its certificate to servers alone."""
    return replace(BROKER, name=name, hosts=frozenset(), uri=f"spiffe://headrace/{name}")
