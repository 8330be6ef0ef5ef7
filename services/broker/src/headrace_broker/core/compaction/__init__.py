"""
Compaction of one log: which part of it, what goes, and in which writes.

The cleaner asks ``plan`` which log is next and up to where, gives the keys of the dirty part to ``dirty_keys``, which
fills an ``offset_map``, and then every batch of the log to ``cleaning``, which answers with ``steps`` to write. What
stays is decided in ``rules``; how long deletions stay told in ``clean_points``. The rules are those of Kafka's
LogCleaner (KIP-58, KIP-98, KIP-354, KIP-534), but for what each module says.
"""
