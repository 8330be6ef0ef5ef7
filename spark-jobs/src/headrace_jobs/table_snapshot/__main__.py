"""``python -m headrace_jobs.table_snapshot``."""

from headrace_jobs.arguments import begin
from headrace_jobs.table_snapshot.job import main

begin(main)
