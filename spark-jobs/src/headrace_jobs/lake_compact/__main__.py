"""``python -m headrace_jobs.lake_compact``."""

from headrace_jobs.arguments import begin
from headrace_jobs.lake_compact.job import main

begin(main)
