"""Which ciphers of TLS 1.2 are taken, by everything of a cluster: ECDHE with AEAD only. All of 1.3 are of this kind."""

from __future__ import annotations

from typing import Final

CIPHERS: Final = (
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES256-GCM-SHA384",
)
"""As OpenSSL calls them."""
OF_ETCD: Final = (
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
)
"""The same as Go calls them. By itself etcd takes those with CBC too."""
