"""
How one etcd member of the cluster comes to life: ``python -m headrace_controller.etcd_member``.

Run before each start of an etcd (on Kubernetes as its init container). It decides whether the member starts on the
data it has, forms a new cluster with the others, or takes the place of a member whose volume was lost, writes etcd's
configuration accordingly, and ends. Decisions are in ``core``; ``program`` carries them out.
"""
