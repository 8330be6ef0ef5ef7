"""A whole cluster of the real services in one process: virtual time, a network and disks with faults, one seed."""
