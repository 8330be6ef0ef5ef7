"""
Small text files in the file systems that Spark's paths name: local, HDFS, S3, whatever the session can open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class HadoopFiles:
    """Files through the session's JVM; paths are Spark's: URIs, or plain paths of the default file system."""

    spark: SparkSession

    def read(self, path: str) -> str | None:
        """A file's text in UTF-8; None where there is none."""
        system, name = self._open(path)
        if not system.exists(name):
            return None
        stream = system.open(name)
        try:
            return str(self._io().toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        """Put a file there whole: readers see the old one or the new one. Durable as far as the file system is."""
        system, name = self._open(path)
        hidden = self._path(f"{name.getParent().toString()}/.{name.getName()}.tmp")
        stream = system.create(hidden, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        hadoop = self._jvm().org.apache.hadoop.fs
        whole = system.makeQualified(name)
        files = hadoop.FileContext.getFileContext(whole.toUri(), system.getConf())
        gateway: Any = self.spark.sparkContext._gateway
        overwrite = gateway.new_array(getattr(hadoop, "Options$Rename"), 1)
        overwrite[0] = getattr(hadoop, "Options$Rename").OVERWRITE
        files.rename(system.makeQualified(hidden), whole, overwrite)

    def list_names(self, path: str) -> list[str]:
        """Names in a directory; empty where there is none."""
        system, name = self._open(path)
        if not system.exists(name):
            return []
        return [str(status.getPath().getName()) for status in system.listStatus(name)]

    def _open(self, path: str) -> tuple[Any, Any]:
        name = self._path(path)
        return name.getFileSystem(self._session().sessionState().newHadoopConf()), name

    def _session(self) -> Any:
        return self.spark._jsparkSession

    def _path(self, path: str) -> Any:
        return self._jvm().org.apache.hadoop.fs.Path(path)

    def _io(self) -> Any:
        return self._jvm().org.apache.commons.io.IOUtils

    def _jvm(self) -> Any:
        jvm = self.spark.sparkContext._jvm
        assert jvm is not None, "jobs run with a JVM of their own, not through Spark Connect"
        return jvm
