"""
What was done by whom, so that nobody can change it unseen: events, their chain, seals, and the proof. No I/O in here.

``journal.Journal`` takes what has happened and says what is to be written; ``verification.Verifier`` reads it again and
says what was changed, removed or added. Each service has one journal behind its gates and engines (``runtime.audit``),
which writes the lines to files, and from there to the topic ``__audit``; ``headrace audit verify`` reads either.
"""
