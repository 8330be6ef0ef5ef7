"""
Quotas: how fast clients may be, and how much they may have. Nothing in here does I/O; time is an argument.

``kinds`` names the quotas and what they take, ``entities`` whom one is set for. ``state.Quotas`` is all that is set: it
is read from rows (``access.rows``), is ``View.quotas`` in every process, and finds which one holds. ``meters`` count
what is used, each group of callers in a ``token_bucket``; ``metered`` is what a stream holds of one caller.

Brokers count bytes of records (``producer_byte_rate``, ``consumer_byte_rate``), the active controller counts partitions
that are made and deleted (``controller_mutation_rate``), and topics below a prefix. The others are read and not set:
``kinds.ENFORCED`` has those that hold.
"""
