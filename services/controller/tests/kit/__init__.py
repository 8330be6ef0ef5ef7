"""Real processes for tests: etcd and controllers. Nothing of the service imports this."""
