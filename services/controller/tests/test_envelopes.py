"""Encrypted backups: who has the key reads them, everybody else is told what they are, and a cut one is known."""

from __future__ import annotations

import argparse
import os
import shutil
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
)
from services.controller.tests.kit.backup_keys import certificate_file, certify, key_file

from headrace_common.core.errors import Conflict, NotFound, Rejected
from headrace_controller import restore
from headrace_controller.adapters.backup_files import BackupFiles
from headrace_controller.adapters.envelopes import (
    BackupKey,
    BackupKeyMissing,
    CertificateUnfit,
    Recipients,
    read_backup,
)
from headrace_controller.core import records
from headrace_controller.core.backup_file import Backup, BackupDamaged, Row, encode
from headrace_controller.core.encrypted_backup import (
    decode_encrypted,
    encode_encrypted,
    is_encrypted,
    whose,
)

SECRET = b"held\r\nby nobody\n" + bytes(range(256))


def made(identity: str = "own", revision: int = 7) -> Backup:
    cluster = Row(records.CLUSTER_KEY, records.encode(records.Cluster(identity, b"i" * 16)))
    return Backup("c", revision, revision * 1_000, (cluster, Row("topics/a", SECRET)))


def unasked(prompt: str) -> str:
    raise AssertionError(prompt)


@pytest.fixture(scope="module")
def keys() -> list[rsa.RSAPrivateKey]:
    return [rsa.generate_private_key(65537, 2048) for _ in range(2)]


@pytest.fixture
def recipients(keys: list[rsa.RSAPrivateKey]) -> Recipients:
    return Recipients([certify(key, name) for key, name in zip(keys, ("first", "second"), strict=True)])


def test_each_key_opens_it_and_nothing_of_it_is_plain(recipients: Recipients, keys: list[rsa.RSAPrivateKey]) -> None:
    content = recipients.seal(made())
    assert is_encrypted(content)
    assert b"topics/a" not in content
    assert all(read_backup(content, BackupKey(key)) == made() for key in keys)
    assert whose(content) == "own"


def test_without_the_key_it_says_whose_it_is(recipients: Recipients) -> None:
    content = recipients.seal(made())
    with pytest.raises(BackupKeyMissing, match=r"CN=first \(SHA-256 [0-9a-f]{64}\) and to CN=second.*--decrypt-with"):
        read_backup(content, None)
    with pytest.raises(BackupKeyMissing, match=r"the key is another one.*CN=first"):
        read_backup(content, BackupKey(rsa.generate_private_key(65537, 2048)))


def test_a_plain_one_needs_no_key(keys: list[rsa.RSAPrivateKey]) -> None:
    assert read_backup(encode(made()), BackupKey(keys[0])) == made()


def test_whatever_is_cut_or_changed_is_known_without_a_key(recipients: Recipients) -> None:
    content = recipients.seal(made())
    for end in (*range(0, len(content), 97), len(content) - 1):
        with pytest.raises(BackupDamaged):
            read_backup(content[:end], None)
        changed = bytearray(content)
        changed[end] ^= 1
        with pytest.raises(BackupDamaged):
            read_backup(bytes(changed), None)


def test_whose_never_fails(recipients: Recipients) -> None:
    content = recipients.seal(made())
    assert {whose(content[:end]) for end in range(0, len(content), 11)} == {None, "own"}


def test_what_is_written_on_it_is_what_is_in_it(recipients: Recipients, keys: list[rsa.RSAPrivateKey]) -> None:
    facts, envelope = decode_encrypted(recipients.seal(made()))
    for changed in (replace(facts, revision=8), replace(facts, identity="b"), replace(facts, cluster="d")):
        with pytest.raises(BackupDamaged, match="is not what is in it"):
            read_backup(encode_encrypted(changed, envelope), BackupKey(keys[0]))


@pytest.mark.parametrize("envelope", [b"", b"-----BEGIN PKCS7-----\nAAAA\n-----END PKCS7-----\n"])
def test_an_envelope_that_is_none(recipients: Recipients, keys: list[rsa.RSAPrivateKey], envelope: bytes) -> None:
    facts, _ = decode_encrypted(recipients.seal(made()))
    with pytest.raises(BackupDamaged, match="cannot be opened"):
        read_backup(encode_encrypted(facts, envelope), BackupKey(keys[0]))


def test_certificates_in_it_that_are_none(recipients: Recipients) -> None:
    facts, envelope = decode_encrypted(recipients.seal(made()))
    with pytest.raises(BackupDamaged, match="certificates cannot be read"):
        read_backup(encode_encrypted(replace(facts, certificates=("x",)), envelope), None)


class TestFiles:
    def test_what_is_encrypted_to(self, tmp_path: Path, keys: list[rsa.RSAPrivateKey]) -> None:
        path = certificate_file(tmp_path / "c.crt", *map(certify, keys))
        assert len(Recipients.read(path).names()) == 2
        curve = ec.generate_private_key(ec.SECP256R1())
        for content, says in (
            (b"", "holds no certificate in PEM"),
            (certify(curve).public_bytes(Encoding.PEM), "c.crt: the key of CN=backups .* is no RSA key"),
            (certify(rsa.generate_private_key(65537, 1024)).public_bytes(Encoding.PEM), "1024 bits, not 2048"),
            (path.read_bytes() * 5, "1 to 8 certificates, not 10"),
            (path.read_bytes() + key_file(tmp_path / "k", keys[0]).read_bytes(), "holds a private key"),
        ):
            path.write_bytes(content)
            with pytest.raises(CertificateUnfit, match=says):
                Recipients.read(path)

    def test_keys(self, tmp_path: Path, keys: list[rsa.RSAPrivateKey], recipients: Recipients) -> None:
        content = recipients.seal(made())
        asked: list[str] = []

        def ask(prompt: str) -> str:
            asked.append(prompt)
            return "pass"

        plain = key_file(tmp_path / "plain.key", keys[0])
        assert read_backup(content, BackupKey.read(plain, unasked)) == made()
        kept = key_file(tmp_path / "kept.key", keys[1], BestAvailableEncryption(b"pass"))
        assert read_backup(content, BackupKey.read(kept, ask)) == made()
        assert asked == [f"password of {kept}: "]
        for path, says in (
            (key_file(tmp_path / "1", keys[1], BestAvailableEncryption(b"p")), "its password is another"),
            (certificate_file(tmp_path / "2", certify(keys[0])), "cannot be read as a private key"),
            (key_file(tmp_path / "3", ec.generate_private_key(ec.SECP256R1())), "no RSA key"),
        ):
            with pytest.raises(Rejected, match=says):
                BackupKey.read(path, ask)
        with pytest.raises(Rejected, match="asked for in a terminal alone"):  # no test has one
            restore.ask_password("")

    def test_the_newest_is_meant_and_no_older_one_that_is_plain(
        self, tmp_path: Path, keys: list[rsa.RSAPrivateKey], recipients: Recipients
    ) -> None:
        BackupFiles(tmp_path, "c").write(made(revision=1))
        path = BackupFiles(tmp_path, "c", recipients=recipients).write(made(revision=2))
        with pytest.raises(BackupKeyMissing, match=r"c-19700101T000002Z-2.backup: the backup is encrypted"):
            BackupFiles(tmp_path, "c").newest()
        files = BackupFiles(tmp_path, "c", key=BackupKey(keys[0]))
        assert files.newest()[1].revision == 2
        path.write_bytes(path.read_bytes()[:-9])
        _, backup, passed_over = BackupFiles(tmp_path, "c").newest()
        assert (backup.revision, len(passed_over)) == (1, 1)

    def test_old_ones_are_removed_of_the_same_cluster(
        self, tmp_path: Path, keys: list[rsa.RSAPrivateKey], recipients: Recipients
    ) -> None:
        files = BackupFiles(tmp_path, "c", recipients=recipients)
        for revision, identity in enumerate(("own", "other", "own", "own"), 1):
            files.write(made(identity, revision))
        assert [path.name for path in files.prune(1, "own")] == [
            "c-19700101T000003Z-3.backup",
            "c-19700101T000001Z-1.backup",
        ]
        with pytest.raises(Conflict, match="2 clusters"):
            BackupFiles(tmp_path, "c", key=BackupKey(keys[0])).newest()

    def test_they_are_for_one_user_alone_whatever_the_umask_and_never_plain(
        self, tmp_path: Path, recipients: Recipients, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        written: list[bytes] = []
        monkeypatch.setattr(os, "fsync", lambda _: written.extend(p.read_bytes() for p in tmp_path.glob(".*.part")))
        (tmp_path / ".c-19700101T000007Z-7.backup.part").touch(0o666)
        before = os.umask(0)
        try:
            paths = [BackupFiles(tmp_path, "c").write(made(revision=7))]
            paths.append(BackupFiles(tmp_path, "c", recipients=recipients).write(made(revision=8)))
        finally:
            os.umask(before)
        assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}
        assert [is_encrypted(content) for content in written] == [False, True]


def test_restore_names_the_file(tmp_path: Path, keys: list[rsa.RSAPrivateKey], recipients: Recipients) -> None:
    path = BackupFiles(tmp_path, "c", recipients=recipients).write(made())
    given = argparse.Namespace(file=path, cluster="c", decrypt_with=None)
    with pytest.raises(BackupKeyMissing, match=f"{path}: the backup is encrypted"):
        restore.find_backup(given)
    given.decrypt_with = key_file(tmp_path / "key", keys[1])
    assert restore.find_backup(given) == (path, made())
    given.file = tmp_path
    assert restore.find_backup(given) == (path, made())
    path.unlink()
    with pytest.raises(NotFound):
        restore.find_backup(given)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="without openssl")
def test_openssl_opens_it(tmp_path: Path, keys: list[rsa.RSAPrivateKey]) -> None:
    key_file(tmp_path / "backup.key", keys[1])
    certificates = [certify(key) for key in keys]
    certificate_file(tmp_path / "backup.crt", certificates[1])
    for recipients in (Recipients(certificates[1:]), Recipients(certificates)):
        (tmp_path / "one.backup").write_bytes(recipients.seal(made()))
        command = "openssl cms -decrypt -inform PEM -in one.backup -inkey backup.key -recip backup.crt"
        assert subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True).stdout == encode(made())
