"""etcd's pods are known by names that are not there at first: each attempt asks for them anew."""

from __future__ import annotations

import grpc.aio
import pytest
from libs.common.tests.kit.names import FakeNames

from headrace_common.core.ids import Endpoint
from headrace_common.rpc.channels import open_channel
from headrace_controller.adapters import etcd_store
from headrace_controller.adapters.etcd_store import EtcdStore
from headrace_controller.ports import StoreUnavailable


async def test_names_that_come_late_are_found_by_the_next_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeNames.serve() as names:

        def opened(target: str, tls: None) -> grpc.aio.Channel:
            assert tls is None
            return open_channel(names.target(target), own_connection=True)

        monkeypatch.setattr(etcd_store, "open_channel", opened)
        etcd = [Endpoint(f"etcd-{n}.example", 1) for n in range(2)]
        async with EtcdStore.open(etcd, "/headrace/c/") as store:
            for _ in range(6):
                with pytest.raises(StoreUnavailable, match="etcd cannot be reached"):
                    await store.list_all()
            for endpoint in etcd:
                assert names.asked.count(endpoint.host) >= 3
                names.addresses[endpoint.host] = "127.0.0.1"
            with pytest.raises(StoreUnavailable, match=r"refused|failed to connect"):
                await store.list_all()
