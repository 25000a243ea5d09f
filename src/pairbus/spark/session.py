"""A SparkSession with Delta: the one that is there (Databricks, a notebook), or a new one (a laptop, spark-submit)."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import py4j
import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from pairbus.errors import OptionError

#: Delta for the pinned Spark, whose minor version is part of the name; 4.4.1 never came to Maven Central.
DELTA = "io.delta:delta-spark_4.2_2.13:4.4.0"
#: What Spark ships itself, and would otherwise be fetched a second time.
SHIPPED_WITH_SPARK = (
    "com.fasterxml.jackson*:*",
    "com.github.luben:*",
    "com.google.code.findbugs:*",
    "io.delta:delta-kernel-defaults",
    "org.apache.hadoop:*",
    "org.apache.logging.log4j:*",
    "org.apache.parquet:*",
    "org.roaringbitmap:*",
    "org.slf4j:*",
    "org.xerial.snappy:*",
)
#: Where `tools/delta_jars.py` leaves the files; without them Spark fetches them at every start.
JARS = Path(sys.prefix) / "jars" / DELTA.replace(":", "_")

_DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_SESSION = {
    "spark.sql.extensions": _DELTA_EXTENSION,
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # The syphon's tables are small: by default fifty tasks would read a table's log, and 200 run after any shuffle.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.shuffle.partitions": "4",
    # With two Spark jobs after every commit Delta would check a list of files that it keeps for tables of few files.
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
    # Rows of a few days, in any order: that is quicker than sorting them by day before they are written.
    "spark.sql.maxConcurrentOutputFileWriters": "4",
    # As numbers, not as the twelve bytes of old: quicker to write, and files can be left out by time.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
#: Starts a Python process of Spark's in half the time.
_QUICK_PYTHON = Path(__file__).with_name("quick-python")
#: Stopping a query in the midst of a Python foreachBatch overflows a smaller stack.
_DRIVER_STACK = "-Xss8m"
#: No message passes through the JVM: it only conducts. The quick compiler alone halves what its start costs, and a
#: collector without threads of its own leaves the cores to those who move messages.
_QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def spark_session(app_name: str, **config: str) -> SparkSession:
    """The session that runs already, or a new one with Delta.

    `config` goes before what is set here; its names have dots (`**{"spark.ui.enabled": "false"}`). Under spark-submit
    the JVM runs already, so Delta must have come with it: `--packages` or `--jars`.
    """
    running = SparkSession.getActiveSession()
    if running is not None or "DATABRICKS_RUNTIME_VERSION" in os.environ:
        return running or SparkSession.builder.getOrCreate()
    settings = {**_SESSION, **config}
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        spark = _made(app_name, settings)
    else:
        settings = {"spark.master": "local[*]", **_jvm_settings(settings), **settings}
        # The executors' Python must be this one: it has pairbus, Proton and pyarrow in it.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        spark = _made_with_quick_python(app_name, settings) if _is_quicker(settings) else _made(app_name, settings)
    if not has_delta(spark):
        spark.stop()
        raise OptionError(f"Delta is not there: spark-submit needs --packages {DELTA}, or --jars with its files")
    return spark


def _made(app_name: str, settings: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder.appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _is_quicker(settings: Mapping[str, str]) -> bool:
    """Whether `_QUICK_PYTHON` may start this Python: only where Spark's archives hold what is installed beside pairbus,
    nobody has named a Python or a Spark of theirs, and all happens on this machine."""
    installed = Path(sysconfig.get_path("purelib"))
    return (
        settings["spark.master"].startswith("local")
        and os.environ["PYSPARK_PYTHON"] == sys.executable
        and "SPARK_HOME" not in os.environ
        and all(Path(str(each.__file__)).parents[1] == installed for each in (pyspark, py4j))
        and os.name == "posix"
        and os.access(_QUICK_PYTHON, os.X_OK)
    )


def _made_with_quick_python(app_name: str, settings: Mapping[str, str]) -> SparkSession:
    """The variables are for this session and its JVM: whatever else this process starts is to start Python itself."""
    os.environ |= {"PYSPARK_PYTHON": str(_QUICK_PYTHON), "PAIRBUS_PYTHON": sys.executable}
    try:
        # A JVM that was there before knows them from the session alone.
        return _made(app_name, {**settings, "spark.executorEnv.PAIRBUS_PYTHON": sys.executable})
    finally:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        del os.environ["PAIRBUS_PYTHON"]


def has_delta(spark: SparkSession) -> bool:
    """Whether the session's JVM knows Delta."""
    jvm: Any = spark._jvm
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(_DELTA_EXTENSION)
    except Py4JJavaError:
        return False
    return True


def _jvm_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """What must be known before a JVM starts: Delta, from files if they are there, else from Maven; and its options."""
    if jars := delta_jars():
        delta = {"spark.jars": ",".join(map(str, jars))}
    else:
        delta = {"spark.jars.packages": DELTA, "spark.jars.excludes": ",".join(SHIPPED_WITH_SPARK)}
    is_local = settings.get("spark.master", "local").startswith("local")
    options = f"{_DRIVER_STACK} {_QUICK_START}" if is_local else _DRIVER_STACK
    return {"spark.driver.extraJavaOptions": options, **delta}


def delta_jars() -> list[Path]:
    """Delta's files, if they have been fetched."""
    return sorted(JARS.glob("*.jar"))
