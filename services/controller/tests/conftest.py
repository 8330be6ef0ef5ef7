"""Fixtures of the controller's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from libs.common.tests.kit.api_server import make_account, make_certificates, serving
from services.controller.tests.kit.etcd import EtcdProcess
from services.controller.tests.kit.etcd_trio import Trio
from services.controller.tests.kit.secrets_api import SecretsApi

from headrace_cli.local.certificate_files import EtcdFiles


@pytest.fixture
async def etcd(tmp_path: Path) -> AsyncIterator[EtcdProcess]:
    """A real etcd with an empty data directory."""
    process = EtcdProcess(tmp_path)
    await process.start()
    try:
        yield process
    finally:
        await process.stop(kill=True)


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    """Three members of an etcd that nobody has started yet."""
    made = Trio(tmp_path / "trio")
    try:
        yield made
    finally:
        for number in list(made.processes):
            made.kill(number)


@pytest.fixture
def files(tmp_path: Path) -> EtcdFiles:
    """What an API server of Kubernetes on this machine shows."""
    return make_certificates(tmp_path / "certificates")


@pytest.fixture
def account(tmp_path: Path, files: EtcdFiles) -> Path:
    """That of a pod there."""
    return make_account(tmp_path / "account", files)


@pytest.fixture
def api(files: EtcdFiles) -> Iterator[SecretsApi]:
    """That API server, where Secrets can be made."""
    api = SecretsApi()
    with serving(lambda *given: api.post(*given), files) as api.env:
        yield api
