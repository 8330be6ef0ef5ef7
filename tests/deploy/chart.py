"""Runs Helm over our chart, as users do: values go in, objects or a refusal come out. Renders are kept per values."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.deploy import manifests
from tests.deploy.manifests import Manifest

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "headrace"
DEV = CHART / "values-dev.yaml"
NAMESPACE = "streams"
"""Another than the release's name, so that one in place of the other is seen."""


class Refused(Exception):
    """Helm would not; the text is what it said."""


@functools.cache
def helm() -> str:
    """Where Helm is. Raises: AssertionError, with what is to be installed."""
    found = subprocess.run([ROOT / "tools" / "helm.sh"], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def run(*arguments: str | Path, values: Mapping[str, Any] | None = None) -> str:
    """
    What ``helm ARGUMENTS`` prints.

    Raises:
        Refused: with what it says.
    """
    given = ["--values", "-"] if values is not None else []
    # Settings of the person who runs the tests (contexts, plugins, repositories) have no say here.
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HELM_", "KUBE"))}
    env |= {"KUBECONFIG": os.devnull, "GOGC": "off"}  # a render ends before collecting garbage pays: a third less
    done = subprocess.run(
        [helm(), *map(str, arguments), *given],
        input=json.dumps(values) if values is not None else "",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=env,
    )
    if done.returncode:
        raise Refused(done.stdout + done.stderr)
    return done.stdout


def text(values: Mapping[str, Any] | None = None, *, release: str = "headrace", dev: bool = False) -> str:
    """The manifests as Helm writes them, hooks and tests too. Raises: Refused."""
    files = ["--values", DEV] if dev else []
    return run("template", release, CHART, "--namespace", NAMESPACE, *files, values=values or {})


@functools.lru_cache(maxsize=256)  # each combination is rendered once, whatever other files render between
def _kept(values: str, release: str, dev: bool) -> str:
    return json.dumps(manifests.read_all(text(json.loads(values), release=release, dev=dev)))


def render(values: Mapping[str, Any] | None = None, *, release: str = "headrace", dev: bool = False) -> list[Manifest]:
    """The objects; yours, to change as you like. Raises: Refused."""
    found: list[Manifest] = json.loads(_kept(json.dumps(values or {}, sort_keys=True), release, dev))
    return found


def default_values() -> dict[str, Any]:
    found: dict[str, Any] = manifests.read((CHART / "values.yaml").read_text())
    return found


@functools.cache
def schema() -> dict[str, Any]:
    """Everybody's: not to be changed."""
    found: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    return found
