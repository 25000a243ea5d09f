"""The run that used a checkpoint last, noted in the checkpoint's folder, so that the next one knows whose journals it
must fold first.

Read and written by Spark's own file systems, not by Arrow's: where Spark can keep a checkpoint, this can be kept too,
with the credentials that Spark has for it.
"""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from .ledger import cause_of

_RUN_FILE = "pairbus-run"


class CheckpointError(OSError):
    """The checkpoint's folder cannot be read or written."""


class CheckpointNote:
    """The file in a checkpoint's folder that names a run."""

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        context: Any = spark.sparkContext
        self._jvm = context._jvm
        self._configuration = context._jsc.hadoopConfiguration()
        self._checkpoint = checkpoint

    def read(self) -> str | None:
        """The run that was noted last, if there was one."""
        try:
            files, path = self._opened()
            if not files.exists(path):
                return None
            stream = files.open(path)
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")).strip() or None
            finally:
                stream.close()
        except Py4JJavaError as error:
            raise self._told(error) from error

    def write(self, run: str) -> None:
        """Note a run; when this returns it is there."""
        try:
            files, path = self._opened()
            stream = files.create(path, True)
            try:
                stream.write(bytearray(f"{run}\n".encode()))
            finally:
                stream.close()
        except Py4JJavaError as error:
            raise self._told(error) from error

    def _opened(self) -> tuple[Any, Any]:
        path = self._jvm.org.apache.hadoop.fs.Path(self._checkpoint, _RUN_FILE)
        return path.getFileSystem(self._configuration), path

    def _told(self, error: Py4JJavaError) -> CheckpointError:
        return CheckpointError(f"{self._checkpoint}: {cause_of(error)}")
