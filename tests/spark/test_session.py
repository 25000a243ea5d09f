"""What a session that `spark_session` makes starts for Python."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from pyspark.sql import SparkSession

from pairbus.spark.session import _QUICK_PYTHON, _python


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


@pytest.mark.parametrize(
    ("master", "home"),
    [("spark://somewhere:7077", None), ("local[2]", "/opt/spark")],
    ids=["a cluster", "its own Spark"],
)
def test_elsewhere_it_is_python_itself(master: str, home: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors of other machines have no such file, and another Spark's archives are not what is installed here."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert _python("local[*]") == str(_QUICK_PYTHON)
    if home is not None:
        monkeypatch.setenv("SPARK_HOME", home)
    assert _python(master) == sys.executable
