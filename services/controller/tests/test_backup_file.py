"""The form of backups: what was written is read, and anything else is refused with a sentence."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.errors import Conflict, HeadraceError, NotFound, UnsupportedVersion
from headrace_controller.adapters.backup_files import BackupFiles
from headrace_controller.core import records
from headrace_controller.core.backup_file import Backup, BackupDamaged, Row, decode, encode, identity_in

keys = st.text(st.characters(codec="utf-8"), max_size=30)
backups = st.builds(
    Backup,
    cluster=keys,
    revision=st.integers(0, 2**63),
    time_ms=st.integers(0, 2**50),
    rows=st.lists(st.builds(Row, keys, st.binary(max_size=50)), max_size=10).map(tuple),
)


def cluster(identity: str) -> Row:
    return Row(records.CLUSTER_KEY, records.encode(records.Cluster(identity, b"i" * 16)))


ONE = Backup("c", 7, 1_000, (Row("topics/a", b'{"v":1}'), Row("ids/epoch", b"12"), Row("x", bytes(range(256)))))


@given(backups)
def test_what_was_written_is_read(backup: Backup) -> None:
    assert decode(encode(backup)) == backup


@given(backups, st.data())
def test_every_truncation_is_refused(backup: Backup, data: st.DataObject) -> None:
    content = encode(backup)
    with pytest.raises(BackupDamaged):
        decode(content[: data.draw(st.integers(0, len(content) - 1))])


@given(backups, st.data())
def test_every_changed_byte_is_refused(backup: Backup, data: st.DataObject) -> None:
    content = bytearray(encode(backup))
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BackupDamaged):
        decode(bytes(content))


def test_every_single_bit_counts() -> None:
    content = encode(ONE)
    for place in range(len(content) * 8):
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        with pytest.raises(BackupDamaged):
            decode(bytes(changed))


@given(st.binary(max_size=200), st.binary(min_size=1, max_size=20))
def test_noise_is_refused(noise: bytes, more: bytes) -> None:
    with pytest.raises(BackupDamaged):
        decode(noise)
    with pytest.raises(BackupDamaged):
        decode(encode(ONE) + more)


def signed(body: bytes) -> bytes:
    return body + b"sha256 " + hashlib.sha256(body).hexdigest().encode() + b"\n"


@pytest.mark.parametrize("version", [b"2", b"0", b"10", b"", b"1.0", b"\xff"])
def test_another_version_is_refused_with_both_numbers(version: bytes) -> None:
    body = encode(ONE)[: -len(signed(b""))]
    with pytest.raises(UnsupportedVersion, match="knows version 1"):
        decode(signed(body.replace(b"headrace-backup 1", b"headrace-backup " + version, 1)))


@pytest.mark.parametrize(
    "body", [b"", b"{}\n", b"[]\n", b'{"cluster":"c","revision":1,"time_ms":1,"rows":2}\n["a","b"]\n']
)
def test_nonsense_with_a_good_checksum_is_refused(body: bytes) -> None:
    with pytest.raises(HeadraceError):
        decode(signed(b"headrace-backup 1\n" + body))


class TestFiles:
    def made(self, directory: Path, *revisions: int) -> BackupFiles:
        files = BackupFiles(directory, "c")
        for revision in revisions:
            files.write(Backup("c", revision, revision * 1_000, ONE.rows))
        return files

    def test_the_newest_whole_one_is_found(self, tmp_path: Path) -> None:
        files = self.made(tmp_path, 9, 10, 200)
        path, backup, passed_over = files.newest()
        assert (backup.revision, passed_over) == (200, [])
        assert path.name == "c-19700101T000320Z-200.backup"
        path.write_bytes(path.read_bytes()[:-1])
        _, backup, passed_over = files.newest()
        assert backup.revision == 10
        assert len(passed_over) == 1

    def test_there_may_be_none(self, tmp_path: Path) -> None:
        (tmp_path / "other-19700101T000320Z-200.backup").write_bytes(encode(ONE))
        with pytest.raises(NotFound, match="no whole backup of cluster c"):
            self.made(tmp_path).newest()

    def test_only_own_old_ones_are_removed(self, tmp_path: Path) -> None:
        files = self.made(tmp_path, 1, 2, 3, 4)
        others = {
            "c-2-19700101T000001Z-1.backup",
            "notes.txt",
            "c-19700101T000001Z-1.backup.old",
            ".hidden.backup.part",
        }
        for name in others:
            (tmp_path / name).touch()
        (tmp_path / ".c-19700101T000009Z-9.backup.part").touch()  # of a run that crashed
        assert len(files.prune(2, None)) == 3
        left = {"c-19700101T000003Z-3.backup", "c-19700101T000004Z-4.backup"}
        assert {p.name for p in tmp_path.iterdir()} == left | others

    def test_a_cluster_that_was_made_by_mistake_pushes_out_no_backup_of_the_one_before(self, tmp_path: Path) -> None:
        files = BackupFiles(tmp_path, "c")
        for revision in range(1, 4):
            files.write(Backup("c", revision, revision * 1_000, (cluster("lost"),)))
        for revision in range(4, 9):
            files.write(Backup("c", revision, revision * 1_000, (Row("a", b""), cluster("new"), Row("topics/t", b""))))
            files.prune(2, "new")
        left = {int(name.split("-")[2].removesuffix(".backup")) for name in files.names()}
        assert left == {1, 2, 3, 7, 8}
        with pytest.raises(
            Conflict, match=r"2 clusters.*cluster new: newest c-19700101T000008Z-8.backup; cluster lost"
        ):
            files.newest()
        files.prune(1, "lost")
        assert files.names()[-1] == "c-19700101T000003Z-3.backup"

    def test_whose_a_backup_is(self) -> None:
        assert identity_in(encode(Backup("c", 1, 1, (Row("cluster/x", b"1"), cluster("Å-1"), Row("z", b""))))) == "Å-1"
        assert identity_in(encode(ONE)) is None
        whole = encode(Backup("c", 1, 1, (cluster("one"),)))
        for end in range(len(whole)):
            assert identity_in(whole[:end]) in ("one", None)
