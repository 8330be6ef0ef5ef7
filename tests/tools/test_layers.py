"""No module stands outside the layers that `make arch` holds."""

from __future__ import annotations

from configparser import ConfigParser
from pathlib import Path

from tools import measure

ROOT = Path(__file__).parents[2]
GENERATED = "headrace_proto"
"""Made from proto/: it imports nothing of ours."""


def packages() -> dict[str, Path]:
    found = [*ROOT.glob("*/*/src/*/__init__.py"), *ROOT.glob("*/src/*/__init__.py")]
    return {path.parent.name: path.parent for path in found if path.parent.name != GENERATED}


def contracts() -> ConfigParser:
    parser = ConfigParser()
    parser.read(ROOT / ".importlinter")
    return parser


def exhaustive() -> list[str]:
    """The packages whose every module has a layer."""
    parser = contracts()
    whole = [parser[name] for name in parser.sections() if parser[name].get("exhaustive") == "True"]
    return [name for one in whole if "exhaustive_ignores" not in one for name in one["containers"].split()]


def test_every_package_is_known_to_the_linter() -> None:
    assert sorted(contracts()["importlinter"]["root_packages"].split()) == sorted(packages())


def test_every_package_with_modules_has_all_of_them_in_layers() -> None:
    with_modules = {name for name, path in packages().items() if len(list(path.rglob("*.py"))) > 1}
    assert with_modules - set(exhaustive()) == set()


def test_no_modules_import_each_other() -> None:
    known = measure.link(measure.modules(ROOT))
    assert measure.cycles(known) == []
