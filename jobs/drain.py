"""Drain the backlog with Spark: the same file for spark-submit and for Databricks.

    spark-submit … jobs/drain.py --config conf/pairbus.toml [--once | --continuous] [--queues 0-9] [--max-rate N]

The exit code is 0 if the backlog is empty or holds only messages that their destinations do not take (they are listed),
or if a continuous drain was stopped; 1 if the drain failed; 2 if the command line or the configuration is wrong.
"""

import argparse
import logging
import signal
import sys
import threading

from pairbus.cli.drain_arguments import add_arguments, load_config, log_to_stderr
from pairbus.config.syphon_config import JOB_NEEDS
from pairbus.errors import OptionError
from pairbus.spark import Syphon, SyphonError, spark_session, syphon
from pairbus.spark.shutdown import before_spark_ends


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="drain.py", description="Deliver parked messages with Spark.")
    add_arguments(parser)
    return parser.parse_args()


def run(job: Syphon, once: bool, stop: threading.Event) -> int:
    """Drain, and return the exit code; raises `SyphonError` if the drain failed."""
    if once:
        held = job.run_once(stop.is_set)
        for destination, count, reason in job.dead_letters():
            print(f"dead-lettered in the backlog: {count} for {destination}: {reason}")
        for each in held:
            print(f"held back in the backlog: {each.count} for {each.destination}: {each.reason}")
        drained = "the requested part of the backlog" if job.left_out else "the backlog"
        print(f"nothing else is in {drained}" if held else f"{drained} is empty")
        return 0
    query = job.start()
    while query.isActive and not stop.wait(0.2):
        pass
    job.stop()
    if (error := query.exception()) is not None:
        raise SyphonError(f"the query ended: {error}")
    return 0


def main() -> int:
    options = arguments()
    log_to_stderr("py4j")
    try:
        config = load_config(options, JOB_NEEDS)  # before Spark starts, which takes a while
        spark = spark_session("pairbus-syphon")
        job = syphon(spark, config)
    except OptionError as error:
        print(f"drain.py: {error}", file=sys.stderr)
        return 2
    except SyphonError as error:
        print(f"drain.py: {error}", file=sys.stderr)
        return 1
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # only now: starting a SparkContext sets a handler of its own
        signal.signal(number, lambda *_: stop.set())
    with before_spark_ends(spark, stop) as ending:
        try:
            ending.code = run(job, once=not options.continuous, stop=stop)
        except Exception as error:
            logging.getLogger("pairbus.syphon").error("%s", error, exc_info=not isinstance(error, SyphonError))
            ending.code = 1
    return ending.code


if __name__ == "__main__":
    sys.exit(main())
