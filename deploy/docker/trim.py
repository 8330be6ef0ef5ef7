"""
Removes from an environment what no service and no command of Headrace loads, and prints what that saved.

    python trim.py /opt/headrace

Each rule says what goes and why nothing misses it; the images' tests import, produce and consume without it.
"""

import pathlib
import shutil
import sys

RULES = (
    ("numpy/**/tests", "the package's own tests"),
    ("numpy/f2py", "a Fortran wrapper generator; never imported"),
    ("numpy/distutils", "builds extensions; never imported"),
    ("numpy/_core/include", "C headers"),
    ("numpy/**/*.a", "static libraries"),
    ("pyarrow/tests", "the package's own tests"),
    ("pyarrow/_pyarrow_cpp_tests*", "the package's own tests"),
    ("pyarrow/include", "C++ headers"),
    ("pyarrow/includes", "Cython declarations"),
    ("pyarrow/src", "C++ sources of the bindings"),
    ("pyarrow/libarrow_flight.so*", "Arrow Flight; only _flight links to it"),
    ("pyarrow/libarrow_python_flight.so*", "Arrow Flight; only _flight links to it"),
    ("pyarrow/_flight*", "Arrow Flight; imported by pyarrow.flight alone"),
    ("pyarrow/libarrow_s3.so*", "S3; only _s3fs links to it, and only programs of streams and connectors load that"),
    ("pyarrow/_s3fs*", "S3; pyarrow.fs does without"),
    ("pyarrow/libarrow_python.so", "a copy for linkers; what is loaded is libarrow_python.so.NNNN"),
    ("pyarrow/libarrow_python.so.*.*.*", "a copy; what is loaded is libarrow_python.so.NNNN"),
    ("pyarrow/libarrow_python_parquet_encryption.so", "a copy for linkers"),
    ("pyarrow/libarrow_python_parquet_encryption.so.*.*.*", "a copy"),
    ("pydantic/v1", "pydantic of before; FastAPI loads it at its start if it is there, to see that nobody uses it"),
    ("**/*.pyx", "Cython sources"),
    ("**/*.pxd", "Cython declarations"),
    ("**/*.pyi", "types, for checkers"),
)
COMMANDS = ("python*", "headrace")
"""What stays in ``bin``: the others are of libraries, and of shells."""


def size_of(path: pathlib.Path) -> int:
    """Bytes of a file, or of all files below a directory."""
    files = path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]
    return sum(f.lstat().st_size for f in files if not f.is_dir() or f.is_symlink())


def main(environment: str) -> None:
    """Apply the rules to each ``site-packages`` of ``environment``, and clear its ``bin``."""
    total = 0
    for packages in pathlib.Path(environment).glob("lib/python*/site-packages"):
        for pattern, why in RULES:
            found = sorted(packages.glob(pattern))
            saved = 0
            for path in found:
                if not path.exists():  # it went with its directory
                    continue
                saved += size_of(path)
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            total += saved
            if saved > 1_000_000:
                print(f"{saved / 1e6:7.1f} MB  {pattern}: {why}")
    for command in pathlib.Path(environment, "bin").glob("*"):
        if not any(command.match(kept) for kept in COMMANDS):
            command.unlink()
    print(f"{total / 1e6:7.1f} MB less")


if __name__ == "__main__":
    main(sys.argv[1])
