"""What the driver and every Python worker of Spark load, again and again, must be light."""

from __future__ import annotations

import subprocess
import sys


def test_nothing_heavy_comes_with_options_and_offsets() -> None:
    modules = ("options", "stream", "batch", "packing", "units", "sink_task", "task_keys")
    code = "".join(f"import headrace_spark.core.{name}\n" for name in modules)
    code += (
        "import sys\nprint(sorted({'pyarrow', 'numpy', 'pyspark', 'grpc', 'google', 'headrace'} & set(sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
