"""
What every connector must pass, over ports in memory: ``check_source`` and ``check_sink``.

::

    class Case(SourceCase):
        def __init__(self, directory):
            self.directory = directory
            write_files(directory, rows=30)

        def make(self):
            return Files(Settings(self.directory))

        def identify(self, key, value):
            return int(value)

    def test_files(tmp_path_factory):
        check_source(lambda: Case(tmp_path_factory.mktemp("files")))
"""

from headrace_connect.testing.sinks import SinkCase as SinkCase
from headrace_connect.testing.sinks import check_sink as check_sink
from headrace_connect.testing.sources import SourceCase as SourceCase
from headrace_connect.testing.sources import check_source as check_source
