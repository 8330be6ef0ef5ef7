"""HTTP for services: the server with bounded connections, the gate in front of routes, problems (RFC 9457)."""
