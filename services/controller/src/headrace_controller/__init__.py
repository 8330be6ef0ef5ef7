"""The controller: cluster metadata in etcd, liveness, placement, leadership, configs and ids."""
