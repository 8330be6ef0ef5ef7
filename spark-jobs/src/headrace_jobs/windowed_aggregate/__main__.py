"""``python -m headrace_jobs.windowed_aggregate``."""

from headrace_jobs.arguments import begin
from headrace_jobs.windowed_aggregate.job import main

begin(main)
