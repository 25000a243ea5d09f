"""The Python that a session of `spark_session` starts its workers with."""

from __future__ import annotations

import os
import subprocess
import sys

from pyspark.sql import SparkSession


def test_workers_run_this_python(spark: SparkSession) -> None:
    """pairbus and its dependencies are installed in it, and perhaps in no other Python of the machine."""

    def executable(_: int) -> str:
        import sys

        return sys.executable

    assert spark.sparkContext.parallelize([0], 1).map(executable).first() == sys.executable


_WITHOUT_A_PYTHON_NAMED = """
import os, sys
from pairbus.spark.session import spark_session
spark = spark_session("first", **{"spark.ui.enabled": "false", "spark.master": "local[1]"})
executable = lambda _: __import__("sys").executable
assert spark.sparkContext.parallelize([0], 1).map(executable).first() == sys.executable
from pairbus.spark.source import BacklogSource
spark.dataSource.register(BacklogSource)  # Spark starts Python for this as well
spark.stop()
"""


def test_a_new_session_finds_its_python_by_itself() -> None:
    """Neither PYSPARK_PYTHON nor a `python3` on the path needs to name it."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYSPARK_PYTHON", "SPARK_HOME")}
    command = [sys.executable, "-c", _WITHOUT_A_PYTHON_NAMED]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
