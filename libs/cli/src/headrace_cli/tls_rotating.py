"""Changes the certificates of a local cluster that runs: after each step it waits until all nodes use what is there."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives import hashes

from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.local.rotation import Rotation
from headrace_common.runtime.certificates import read_pair

if TYPE_CHECKING:
    from headrace import AdminClient
    from headrace.admin_certificate_types import CertificateBundle, NodeCertificates
    from headrace_cli.local.certificate_files import NodeFiles

Say = Callable[[str], None]
Uses = Callable[[str, "CertificateBundle"], bool]
"""Whether a node, by its name, uses what it is to use."""

ASK_AGAIN_S: Final = 0.5
LOOKS_S: Final = 12.0
"""By then those have looked at their files that are no nodes, and cannot be asked: Connect workers."""
SERVICE: Final = "service"


class Rotating:
    """One run of ``headrace tls rotate``."""

    def __init__(
        self, admin: AdminClient, files: NodeFiles, rotation: Rotation, say: Say, *, timeout_s: float, others: bool
    ) -> None:
        """
        Args:
            timeout_s: how long nodes may take for a step.
            others: there are processes with certificates that are no nodes.
        """
        self._admin = admin
        self._files = files
        self._rotation = rotation
        self._say = say
        self._timeout_s = timeout_s
        self._others = others

    def pairs(self) -> None:
        """New pairs of the CA there is. Raises: CommandFailed: a node does not take its pair in time."""
        made = self._rotation.make_pairs()
        self._wait("its new certificate", self._shows_its_file)
        self._say(f"all nodes show new certificates: {', '.join(made)}")

    def ca(self) -> None:
        """Another CA, in steps. Raises: CommandFailed: a node does not follow in time; the next run goes on."""
        if self._rotation.is_begun:
            self._say("a change that was cut goes on")
        new = self._rotation.add()
        self._wait("the new CA among those it trusts", lambda _, bundle: new in _trusted(bundle))
        self._let_others_look()
        self._say("1 of 3: all nodes trust the new CA, too")
        self._rotation.sign()
        self._wait(
            "a certificate of the new CA",
            lambda node, bundle: bundle.issuer.fingerprint == new and self._shows_its_file(node, bundle),
        )
        self._let_others_look()
        self._say("2 of 3: all nodes show certificates of the new CA")
        self._rotation.drop()
        self._wait("the new CA alone among those it trusts", lambda _, bundle: _trusted(bundle) == {new})
        self._rotation.end()
        self._say(
            "3 of 3: the CA of before is trusted no more; connections of before were cut, and clients make new ones"
        )

    def _wait(self, what: str, uses: Uses) -> None:
        end = time.monotonic() + self._timeout_s
        while lacking := self._lacking(uses):
            if time.monotonic() > end:
                raise CommandFailed(
                    f"{lacking[0]} has not got {what} in {self._timeout_s:.0f} s",
                    ExitCode.TIMED_OUT,
                    "`headrace tls list` says more. Mend that, then give the command again: it goes on from here.",
                )
            time.sleep(ASK_AGAIN_S)

    def _lacking(self, uses: Uses) -> list[str]:
        nodes = self._admin.describe_certificates(look=True)
        return [node.node for node in nodes if not _of_all(node, uses)] or ([] if nodes else ["the cluster"])

    def _shows_its_file(self, node: str, bundle: CertificateBundle) -> bool:
        path = self._files.of(node.rpartition("-")[0])
        pair = read_pair(path, self._files.key(path))
        return (
            pair is not None and pair.certificate.fingerprint(hashes.SHA256()).hex() == bundle.certificate.fingerprint
        )

    def _let_others_look(self) -> None:
        if self._others:
            self._say(f"{LOOKS_S:.0f} s for Connect's worker, which cannot be asked")
            time.sleep(LOOKS_S)


def files_of(data_dir: Path) -> NodeFiles:
    """Of the cluster that runs on ``data_dir``."""
    from headrace_cli.local.plan import node_files

    return node_files(data_dir)


def _of_all(node: NodeCertificates, uses: Uses) -> bool:
    """Whether it uses what it is to use at all listeners, but those that trust clients' CAs."""
    bundles = [bundle for bundle in node.bundles if bundle.name == SERVICE]
    return bool(bundles) and all(uses(node.node, bundle) and not bundle.behind for bundle in bundles)


def _trusted(bundle: CertificateBundle) -> set[str]:
    return {ca.fingerprint for ca in bundle.trusted}
