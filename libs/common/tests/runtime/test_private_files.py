"""What a process writes is for its own user alone, and what was open is narrowed as far as it is ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace_common.runtime.private_files import NAMED_MAX, foreign_owner, narrow


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A data directory of before: 0755, files 0644."""
    made = tmp_path / "data"
    (made / "db").mkdir(parents=True)
    for path in (made / "identity", made / "db" / "000001.sst"):
        path.write_text("records")
        path.chmod(0o644)
    for path in (made, made / "db"):
        path.chmod(0o755)
    return made


def test_a_directory_of_before_is_narrowed_once(top: Path) -> None:
    narrowed = narrow(top)
    assert (narrowed.count, narrowed.left) == (4, [])
    assert str(narrowed) == "4 of its files and directories were open to other users, and are not any more"
    assert {mode(top), mode(top / "db")} == {0o700}
    assert {mode(top / "identity"), mode(top / "db" / "000001.sst")} == {0o600}
    assert str(narrow(top)) == ""


def test_a_closed_directory_is_not_looked_into(top: Path) -> None:
    top.chmod(0o700)
    assert narrow(top).count == 0
    assert mode(top / "identity") == 0o644


def test_the_group_of_a_volume_stays_and_only_its_rights_go(top: Path) -> None:
    """Kubernetes gives volumes to a group (fsGroup) and marks directories so that new files belong to it."""
    top.chmod(0o2775)
    narrow(top)
    assert mode(top) == 0o2700


def test_what_somebody_else_owns_is_named_and_left(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2 * NAMED_MAX):
        (top / f"file-{number}").touch()
        (top / f"file-{number}").chmod(0o640)
    monkeypatch.setattr(os, "geteuid", lambda: top.stat().st_uid + 1)
    before = mode(top)
    narrowed = narrow(top)
    assert (narrowed.count, len(narrowed.left)) == (0, NAMED_MAX)
    assert str(narrowed).startswith(f"these stay open to other users, because another user owns them: {top}, ")
    assert mode(top) == before


def test_a_volume_that_root_owns_with_what_is_ours_in_it(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    for path in (top / "db", top / "db" / "000001.sst", top / "identity"):
        os.chown(path, 10_001, 10_001)
    monkeypatch.setattr(os, "geteuid", lambda: 10_001)
    narrowed = narrow(top)
    assert (narrowed.count, narrowed.left) == (3, [top])
    assert mode(top) == 0o755
    assert mode(top / "db") == 0o700


def test_links_are_not_followed_but_at_the_top(top: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    elsewhere.chmod(0o755)
    (top / "link").symlink_to(elsewhere)
    (tmp_path / "way-in").symlink_to(top)
    assert narrow(tmp_path / "way-in").count == 4
    assert mode(elsewhere) == 0o755


def test_only_what_is_meant(top: Path) -> None:
    assert narrow(top, only=lambda name: name == "identity").count == 2
    assert mode(top / "db") == 0o755
    assert mode(top / "db" / "000001.sst") == 0o644


def test_a_service_writes_privately_before_it_has_imported_itself(tmp_path: Path) -> None:
    program = "from headrace_common.runtime.early import starting\nwith starting():\n    open('f', 'w')\nopen('g', 'w')"
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, umask=0o022, timeout=60)
    assert {mode(tmp_path / name) for name in "fg"} == {0o600}


def test_another_user_owns_what_is_neither_ours_nor_roots(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = 10_001
    monkeypatch.setattr("headrace_common.runtime.private_files._owner_of", lambda path, _: owner)
    monkeypatch.setattr(os, "geteuid", lambda: 10_002)
    assert foreign_owner(top) == 10_001
    owner = 10_002
    assert foreign_owner(top) is None
    owner = 0
    assert foreign_owner(top) is None, "root may do all of it anyway"


def test_nobody_owns_what_is_not_there(top: Path) -> None:
    assert foreign_owner(top) is None
    assert foreign_owner(top / "nothing") is None
    (top / "loop").symlink_to(top / "loop")
    assert foreign_owner(top / "loop") is None
