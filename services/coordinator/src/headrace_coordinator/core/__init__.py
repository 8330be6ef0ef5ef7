"""
Groups, offsets and shards as pure state machines: events in, effects out.

``shard`` takes the ``events`` and returns the ``effects``, in the nouns of ``values``. What is asked about offsets, in
transactions too, it gives to ``shard_offsets``. It keeps ``groups``: each has ``offsets`` and the members' state
machine, ``classic_group`` (with ``classic_members``) or ``consumer_group`` (with ``reconcile``, ``targets``). What
members ask of them is in ``classic_requests`` and ``consumer_requests``; both ask ``identity`` who speaks, and over
which of the ``streams``. What must outlive the process is written by ``records`` in the forms of ``binary``.
``settings`` has the limits.
"""
