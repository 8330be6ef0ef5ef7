"""
What was done by whom, so that nobody can change it unseen: events, their chain, seals, and the proof. No I/O in here.

``journal.Journal`` takes what has happened and says what is to be written; ``verification.Verifier`` reads it again and
says what was changed, removed or added. Nothing uses this yet. Each service is to have one journal behind its access
gate and its engines, with an adapter that writes the lines to a spool file and from there to the topic ``__audit``;
``headrace audit verify`` is to read that topic.
"""
