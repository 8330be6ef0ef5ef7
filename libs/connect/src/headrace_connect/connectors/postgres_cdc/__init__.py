"""Changes of a PostgreSQL database into topics, each once, with the rows that were there before."""

from headrace_connect.settings import Problem, invalid

try:
    from headrace_connect.connectors.postgres_cdc.source import PostgresSource as PostgresSource
except ImportError as error:
    message = f"postgres-cdc needs psycopg: pip install 'headrace-connect[postgres]' ({error})"
    raise invalid([Problem("connector.class", message)]) from error
