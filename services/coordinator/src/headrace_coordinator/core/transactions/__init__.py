"""
Transactional ids as a pure state machine: events in, effects out. No I/O, no clock, no chance.

``shard`` takes the ``events`` and returns the ``effects``, in the nouns of ``values``. It keeps each id's
``transaction`` and each ``owner`` in the ``register``, which also knows whose time is up; ``producers`` decides what
producers ask, ``units`` what owners ask, ``ending`` how every transaction ends, and ``loading`` what the records of a
log mean. Records are written by ``records``. ``settings`` has the limits.
"""
