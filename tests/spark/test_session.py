"""What a session that `spark_session` makes starts for Python."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from pyspark.sql import SparkSession

from pairbus.spark.session import _QUICK_PYTHON, _is_quicker


def test_workers_are_this_python_without_sparks_archives(spark: SparkSession) -> None:
    """What is in them is installed, and compiled there: a process starts in half the time."""

    def look(_: int) -> tuple[str, str, str]:
        import sys

        import pyspark

        return sys.executable, str(pyspark.__file__), " ".join(each for each in sys.path if "/pyspark/" in each)

    executable, module, archives = spark.sparkContext.parallelize([0], 1).map(look).first()
    assert executable == sys.executable
    assert not archives
    assert ".zip" not in module


def test_other_folders_arguments_and_the_exit_code_are_passed_on() -> None:
    archives = "/x/pyspark/python/lib/pyspark.zip", "/x/pyspark/python/lib/py4j-1-src.zip", "/x/pyspark/jars/core.jar"
    kept = ["/a folder", "/b/*", "/c/pyspark.zip"]
    path = ":".join((archives[0], kept[0], *archives[1:], *kept[1:]))
    code = "import os, sys; print(os.environ['PYTHONPATH'], sys.argv[1:], sys.executable, sep='|'); sys.exit(3)"
    environment = {**os.environ, "PYTHONPATH": path, "PAIRBUS_PYTHON": sys.executable}
    ran = subprocess.run([_QUICK_PYTHON, "-c", code, "two words", "*"], env=environment, capture_output=True, text=True)
    assert ran.returncode == 3
    assert ran.stdout.strip().split("|") == [":".join(kept), "['two words', '*']", sys.executable]


def test_without_knowing_which_python_it_is_none() -> None:
    """Rather than another one, which may have no pairbus."""
    environment = {name: value for name, value in os.environ.items() if name != "PAIRBUS_PYTHON"}
    ran = subprocess.run([_QUICK_PYTHON, "-c", "print(1)"], env=environment, capture_output=True, text=True)
    assert ran.returncode != 0
    assert "PAIRBUS_PYTHON" in ran.stderr
    assert not ran.stdout


@pytest.mark.parametrize(
    ("master", "variables"),
    [
        ("spark://somewhere:7077", {}),
        ("local[2]", {"SPARK_HOME": "/opt/spark"}),
        ("local[2]", {"PYSPARK_PYTHON": "/opt/python"}),
    ],
    ids=["a cluster", "a Spark of its own", "a Python of its own"],
)
def test_elsewhere_it_is_python_itself(master: str, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors of other machines have no such file, and another Spark's archives are not what is installed here."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert _is_quicker({"spark.master": "local[*]"})
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert not _is_quicker({"spark.master": master})


_LOOK = """
look = lambda _: __import__("sys").executable
assert spark.sparkContext.parallelize([0], 1).map(look).first() == sys.executable
from pairbus.spark.source import BacklogSource
spark.dataSource.register(BacklogSource)  # for which Spark asks Python, too, what sources there are
assert os.environ["PYSPARK_PYTHON"] == sys.executable
assert "PAIRBUS_PYTHON" not in os.environ
spark.stop()
"""
_FIRST = """
import os, sys
from pairbus.spark.session import spark_session
spark = spark_session("first", **{"spark.ui.enabled": "false", "spark.master": "local[1]"})
"""
_AFTER_ANOTHER = """
import os, sys
from pyspark.sql import SparkSession
from pairbus.spark.session import _jvm_settings, spark_session
quiet = {"spark.ui.enabled": "false", "spark.master": "local[1]"}
builder = SparkSession.builder
for name, value in (quiet | _jvm_settings(quiet)).items():
    builder = builder.config(name, value)
builder.getOrCreate().stop()
spark = spark_session("another", **quiet)
"""


@pytest.mark.parametrize("program", [_FIRST, _AFTER_ANOTHER], ids=["its own JVM", "a JVM that was there before"])
def test_every_process_finds_its_python(program: str) -> None:
    """Also those that Spark starts for itself; and in a JVM that has the variables of another session's time, as in a
    notebook."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYSPARK_PYTHON", "SPARK_HOME")}
    ran = subprocess.run([sys.executable, "-c", program + _LOOK], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "PAIRBUS_PYTHON" not in ran.stderr
