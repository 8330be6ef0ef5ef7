"""Where the certificates of a local cluster are, all PEM; ``certificates`` makes them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

LEAF_LIFE: Final = timedelta(days=1_095)
"""Of pairs that a CA has signed."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """One CA and what it has signed."""

    directory: Path

    @property
    def ca(self) -> Path:
        """The CA of all of them, made here."""
        return self.directory / "ca.pem"

    @staticmethod
    def key(certificate: Path) -> Path:
        """Of a certificate, or of the CA."""
        return certificate.with_suffix(".key")


@dataclass(frozen=True, slots=True)
class EtcdFiles(CertificateFiles):
    """Of etcd; its CA is known nowhere else."""

    @property
    def member(self) -> Path:
        """What members show to controllers and to each other."""
        return self.directory / "etcd.pem"

    @property
    def controller(self) -> Path:
        """What controllers show, and whoever makes or restores a backup."""
        return self.directory / "controller.pem"


@dataclass(frozen=True, slots=True)
class NodeFiles(CertificateFiles):
    """Of the services; clients trust the CA too."""

    @property
    def next_ca(self) -> Path:
        """The CA that takes the place of ``ca``, while that is being done."""
        return self.directory / "next-ca.pem"

    def of(self, role: str) -> Path:
        """What the services of ``role`` show to clients and to each other."""
        return self.directory / f"{role}.pem"
