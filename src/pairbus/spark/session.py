"""A SparkSession with Delta: the running one (Databricks, a notebook), or a new one (a laptop, spark-submit)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from pairbus.errors import OptionError

#: Delta for the pinned Spark, whose minor version is part of the name. Maven Central has no 4.4.1.
DELTA = "io.delta:delta-spark_4.2_2.13:4.4.0"
#: Dependencies of Delta that Spark ships itself and that must not be fetched a second time.
SHIPPED_WITH_SPARK = (
    "com.fasterxml.jackson*:*", "com.github.luben:*", "com.google.code.findbugs:*", "io.delta:delta-kernel-defaults",
    "org.apache.hadoop:*", "org.apache.logging.log4j:*", "org.apache.parquet:*", "org.roaringbitmap:*", "org.slf4j:*",
    "org.xerial.snappy:*",
)  # fmt: skip
#: Folder that `tools/delta_jars.py` fills. Without these files Spark fetches Delta at every start.
JARS = Path(sys.prefix) / "jars" / DELTA.replace(":", "_")

_DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_SESSION = {
    "spark.sql.extensions": _DELTA_EXTENSION,
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # The syphon's tables are small: the defaults are 50 tasks for a table's log and 200 after any shuffle.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.shuffle.partitions": "4",
    # Otherwise Delta runs two Spark jobs after every commit, to check the file list that it keeps for small tables.
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
    # A commit has rows of a few days: four open writers are faster than sorting the rows by day.
    "spark.sql.maxConcurrentOutputFileWriters": "4",
    # INT96, the default, is slower to write and has no statistics by which files could be skipped.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
#: Stopping a query during a Python foreachBatch overflows a smaller stack.
_DRIVER_STACK = "-Xss8m"
#: For a local JVM, which only coordinates: messages do not pass through it. The first compiler alone halves its start,
#: and a collector without threads of its own leaves the cores to the Python workers.
_QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def spark_session(app_name: str, **config: str) -> SparkSession:
    """Return the session that is active, or start one with Delta.

    Parameters
    ----------
    app_name
        Name of a new session, as Spark's pages show it.
    config
        Spark settings for a new session, which override those of pairbus. Their names have dots, so pass them as
        `**{"spark.ui.enabled": "false"}`.

    Raises
    ------
    OptionError
        If the session has no Delta. Under spark-submit the JVM runs already, so Delta must come with `--packages` or
        `--jars`.
    """
    active = SparkSession.getActiveSession()
    if active is not None or "DATABRICKS_RUNTIME_VERSION" in os.environ:
        return active or SparkSession.builder.getOrCreate()
    settings = {**_SESSION, **config}
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        settings = {"spark.master": "local[*]", **_jvm_settings(settings), **settings}
        # Workers need this very Python: pairbus, Proton and pyarrow are installed in it.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if not has_delta(spark):
        spark.stop()
        raise OptionError(f"this Spark has no Delta: give spark-submit --packages {DELTA}, or --jars with its files")
    return spark


def has_delta(spark: SparkSession) -> bool:
    """Return True if the session's JVM can load Delta."""
    jvm: Any = spark._jvm
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(_DELTA_EXTENSION)
    except Py4JJavaError:
        return False
    return True


def _jvm_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that a JVM must be started with: Delta, from files or else from Maven, and its options."""
    if jars := delta_jars():
        delta = {"spark.jars": ",".join(map(str, jars))}
    else:
        delta = {"spark.jars.packages": DELTA, "spark.jars.excludes": ",".join(SHIPPED_WITH_SPARK)}
    is_local = settings.get("spark.master", "local").startswith("local")
    options = f"{_DRIVER_STACK} {_QUICK_START}" if is_local else _DRIVER_STACK
    return {"spark.driver.extraJavaOptions": options, **delta}


def delta_jars() -> list[Path]:
    """Return Delta's files; an empty list if `tools/delta_jars.py` has not fetched them."""
    return sorted(JARS.glob("*.jar"))
