"""Rows of PostgreSQL's tables to their topics, for a postgres-cdc that goes on with the changes; all at once."""
