"""
Quotas: how fast clients may be, and how much they may have. Nothing in here does I/O; time is an argument.

``kinds`` names the quotas and what they take, ``entities`` whom one is set for. ``state.Quotas`` is all that is set: it
is read from rows (``access.rows``), is ``View.quotas`` in every process, and finds which one holds. ``meters`` count
what is used, ``windows`` and ``token_bucket`` as Kafka counts; ``metered`` is what a stream holds of one caller.

Nothing asks for them yet. These will: in brokers ``ProduceSession.room`` (``producer_byte_rate``), answers of fetches
(``consumer_byte_rate``) and both for ``request_percentage``; in controllers changes of topics
(``controller_mutation_rate``) and the limits on counts; listeners (``connection_creation_rate``, ``streams.max``).
Before a row is written, a feature level has to say that every node can read it: to an older one it is a fault.
"""
