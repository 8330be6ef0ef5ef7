"""Addresses of MariaDB, and what is wrong with them."""

from __future__ import annotations

import pytest

from headrace_connect.connectors.sql.url import DatabaseUrl, MariadbAddress


def test_all_that_an_address_says() -> None:
    url = DatabaseUrl.parse("jdbc:mariadb://me:p%40ss@db:3307/shop?sslMode=verify-full&serverSslCert=/ca.pem")
    found = MariadbAddress.parse(url.text)
    assert found == MariadbAddress("db", 3307, "shop", "me", "p@ss", "verify-full", "/ca.pem")
    assert MariadbAddress.parse("mariadb://db/shop") == MariadbAddress("db", 3306, "shop", "", "")
    assert MariadbAddress.parse("mariadb:///shop?localSocket=/run/db").socket == "/run/db"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mariadb://db", "no database"),
        ("mariadb://db/a/b", "no database"),
        ("mariadb://db:x/shop", "HOST:PORT"),
        ("mariadb://db/shop?useSsl=true", "useSsl is no option"),
        ("mariadb://db/shop?sslMode=on", "sslMode is one of"),
        ("mariadb://db/shop?serverSslCert=/ca.pem", "needs sslMode"),
        ("mysql://db/shop", "other databases"),
    ],
)
def test_addresses_that_cannot_be(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DatabaseUrl.parse(url)
