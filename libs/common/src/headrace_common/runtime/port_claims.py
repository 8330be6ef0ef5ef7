"""
Who may listen on a port, agreed between processes before any of them listens.

A claim is a UDP socket on the loopback's port of that number, which nobody sends to: a process of ours listens by TCP,
so the claim is not in its way. It ends with the process that holds it, however that ends, and holds for exactly those
who share its ports.
"""

from __future__ import annotations

import socket


def claim_port(port: int) -> socket.socket | None:
    """The claim, which lasts until it is closed; None: somebody else has it. Says nothing of who listens there."""
    claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        claim.bind(("127.0.0.1", port))
    except OSError:
        claim.close()
        return None
    return claim
