"""What ``sql-sink`` and ``sql-source`` share: where a database is, a connection to it, and its failures told apart."""
