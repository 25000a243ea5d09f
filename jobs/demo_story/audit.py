"""A program that reads the ledger with Spark: `python audit.py LEDGER ANSWER` writes the JSON file ANSWER."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import functions as F

from pairbus.spark import Ledger, spark_session, verify

_SMALL = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-Xss8m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
}


def main() -> None:
    folder, answer = sys.argv[1:]
    spark = spark_session("pairbus-demo", **_SMALL)
    ledger = Ledger(spark, folder)
    # The job has reported an empty backlog, so `verify` need not look there.
    found = verify(spark, folder)
    rows = ledger.outcomes().select("message_id", "destination", "outcome").collect()
    total = ledger.batches().agg(F.sum("operations").alias("operations")).first()
    assert total is not None
    told = {
        "ok": found.ok,
        "verification": str(found),
        "rows": [list(row) for row in rows],
        "operations": total.operations or 0,
    }
    Path(answer).write_text(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main()
