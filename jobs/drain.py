"""Drain the backlog with Spark: the same file for spark-submit and for Databricks.

    spark-submit … jobs/drain.py --config conf/pairbus.toml [--once | --continuous] [--queues 0-9] [--max-rate N]

Ends with 0 if the backlog is empty or holds only messages that their destinations do not take (they are listed), or if
one that goes on was told to stop; with 1 if it could not; with 2 if the command line or the configuration is wrong.
"""

import argparse
import logging
import signal
import sys
import threading

from pairbus.config.syphon_config import OF_A_JOB, SyphonConfig
from pairbus.errors import OptionError
from pairbus.spark import Syphon, SyphonError, spark_session, syphon
from pairbus.spark.shutdown import before_spark_ends


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="drain.py", description="Bring parked messages home, with Spark.")
    parser.add_argument("--config", required=True, metavar="FILE", help="the syphon's configuration, TOML")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="empty the backlog and end (default)")
    how.add_argument("--continuous", action="store_true", help="go on until told to stop (SIGTERM, Ctrl-C)")
    parser.add_argument("--queues", metavar="LIST", help="indexes of backlog queues, for example 0-4,7")
    parser.add_argument("--max-rate", type=float, metavar="N", help="messages a second at the most, over all queues")
    return parser.parse_args()


def run(job: Syphon, once: bool, stop: threading.Event) -> int:
    """Drain; the exit code."""
    if once:
        held = job.run_once(stop.is_set)
        for destination, count, reason in job.dead_letters():
            print(f"dead-lettered in the backlog: {count} for {destination}: {reason}")
        for each in held:
            print(f"held back in the backlog: {each.count} for {each.destination}: {each.reason}")
        what = "what was asked for of the backlog" if job.left_out else "the backlog"
        print(f"nothing else is in {what}" if held else f"{what} is empty")
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
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for noisy in ("py4j", "azure"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        # All that is wrong is told at once, and before Spark starts: a secret that is not there, too.
        config = SyphonConfig.for_command(
            options.config, queues=options.queues, max_rate=options.max_rate, needs=OF_A_JOB
        )
        spark = spark_session("pairbus-syphon")
        job = syphon(spark, config)
    except OptionError as error:
        print(f"drain.py: {error}", file=sys.stderr)
        return 2
    except SyphonError as error:
        print(f"drain.py: {error}", file=sys.stderr)
        return 1
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # now: a SparkContext has set a handler of its own
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
