"""Download of Delta's jars into .venv/jars, with Spark's own Ivy, unless they are there.

Spark can download them at every start of a session (`spark.jars.packages`), which takes seconds and needs a network.
`pairbus.spark.session` uses these files instead if they exist.

    .venv/bin/python tools/delta_jars.py           download the jars if they are missing
    .venv/bin/python tools/delta_jars.py --list    also print their paths, for `spark-submit --jars`
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from pairbus.spark.session import DELTA, JARS, SHIPPED_WITH_SPARK, delta_jars


def say(text: str) -> None:
    print(f"pairbus: {text}", file=sys.stderr, flush=True)


def fetch() -> None:
    """Download all jars or none, because a half-filled folder would look complete."""
    say(f"fetching {DELTA} from Maven Central into {JARS.parent} (13 MB, once)")
    JARS.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=JARS.parent) as scratch:
        nothing = Path(scratch) / "nothing.py"
        nothing.write_text("")
        submit = [
            str(Path(_find_spark_home()) / "bin" / "spark-submit"),
            f"--packages={DELTA}",
            f"--exclude-packages={','.join(SHIPPED_WITH_SPARK)}",
            f"--conf=spark.jars.ivy={scratch}/ivy",
            str(nothing),
        ]
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        answer = subprocess.run(submit, env=environment, capture_output=True, text=True)
        found = sorted((Path(scratch) / "ivy" / "jars").glob("*.jar"))
        if answer.returncode != 0 or not any("delta-spark" in jar.name for jar in found):
            sys.stderr.write(answer.stdout + answer.stderr)
            say("Spark could not fetch Delta (see above); correct that and run make again")
            sys.exit(1)
        filled = Path(scratch) / "filled"
        filled.mkdir()
        for jar in found:
            shutil.move(jar, filled / jar.name)
        shutil.rmtree(JARS, ignore_errors=True)
        filled.rename(JARS)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fetch Delta's jars for Spark, once.")
    parser.add_argument("--list", action="store_true", help="print the files, separated by commas")
    options = parser.parse_args()
    if not delta_jars():
        fetch()
    if options.list:
        print(",".join(map(str, delta_jars())))


if __name__ == "__main__":
    main()
