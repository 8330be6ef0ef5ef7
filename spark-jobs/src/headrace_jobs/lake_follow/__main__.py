"""``python -m headrace_jobs.lake_follow``."""

from headrace_jobs.arguments import begin
from headrace_jobs.lake_follow.job import main

begin(main)
