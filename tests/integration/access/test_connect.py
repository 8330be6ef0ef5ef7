"""A closed local cluster with a Connect worker: its REST asks who calls."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace import AdminClient, access
from headrace_cli import workers
from headrace_cli.exits import CommandFailed
from headrace_cli.local import LocalCluster

pytestmark = pytest.mark.integration
SOURCE = {"connector.class": "files", "format": "lines", "topic": "shop"}


def until(holds: Callable[[], Any], seconds: float = 30.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def test_who_may_sees_its_connector_and_nobody_else_anything(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"connect.files.allowed.paths": str(tmp_path), "connect.command.ms.max": "5000"}
    config = SOURCE | {"path": str(tmp_path / "in")}
    with LocalCluster(tmp_path / "data", brokers=1, connect=True, settings=settings) as cluster:
        assert cluster.options.closed
        url = cluster.state.connect_url
        assert url is not None
        with httpx.Client(base_url=url, timeout=30) as client, AdminClient(cluster.bootstrap_servers) as admin:

            def ask(method: str, path: str, shown: dict[str, str], body: Any = None) -> httpx.Response:
                return client.request(method, path, headers=shown, json=body)

            mine = cluster.authorization
            assert client.get("/health").json().keys() == {"status", "message"}
            for name in ("shop", "hers"):
                wanted = {"name": name, "config": config, "initial_state": "STOPPED"}
                # 409 too while no worker leads yet
                until(lambda wanted=wanted: ask("POST", "/connectors", mine, wanted).status_code == 201)  # type: ignore[misc]
            for shown in ({}, {"authorization": "Bearer hrk_x"}, {"authorization": "Ticket x"}):
                assert ask("GET", "/connectors", shown).status_code == 401
                assert ask("DELETE", "/connectors/shop", shown).status_code == 401

            made = admin.create_key("User:alice")
            hers = {"authorization": f"Bearer {made.key.reveal()}"}
            assert ask("GET", "/connectors", hers).json() == []
            sees = access.allow("User:alice", ["describe", "describe_configs"], "connector", "hers")
            admin.alter_access([access.Put(sees)])
            until(lambda: ask("GET", "/connectors", hers).json() == ["hers"])
            assert ask("GET", "/connectors/hers/config", hers).status_code == 200
            assert ask("GET", "/connectors/shop/config", hers).status_code == 403
            assert ask("DELETE", "/connectors/hers", hers).status_code == 403
            assert ask("POST", "/connectors", hers, {"name": "more", "config": config}).status_code == 403
            files = [path for path in (cluster.directory.path / "audit").rglob("*") if path.is_file()]
            lines = b"".join(path.read_bytes() for path in files).splitlines()
            events = [json.loads(line) for line in lines if b'"Connect/' in line]
            told = {(one["actor"]["principal"], one["rpc"], one["kind"], one["resource"]["name"]) for one in events}
            made_it = "User:admin", "Connect/POST /connectors", "administered"
            assert told == {(*made_it, name) for name in ("shop", "hers")}, "and nothing of who may not"
            admin.delete_keys([made.description.id])
            until(lambda: ask("GET", "/connectors", hers).status_code == 401)

        assert sorted(workers.Workers(url, cluster.address).get("connectors")) == ["hers", "shop"]
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "somebody"))
        with pytest.raises(CommandFailed, match="without a credential"):
            workers.Workers(url, cluster.address).get("connectors")
        assert json.loads(httpx.get(f"{url}/connectors", headers=mine).content) == ["hers", "shop"]
