"""Six thousand messages in six backlog queues, a job that delivers them, and the checks of its result."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

from proton import Message
from pyspark.sql import SparkSession

from pairbus.domain.amqp import sections
from pairbus.localbus import LocalBus
from pairbus.spark import Ledger, verify
from pairbus.spark.session import delta_jars
from tests.cluster.processes import Process, connected_to
from tests.cluster.spark_cluster import MASTER, Cluster, Submission
from tests.support.backlog import Backlog, encoded
from tests.support.counting import Came, assert_in_order, park_many, repeats
from tests.support.pairing import Pair
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
QUEUES, EXECUTORS = 6, 3
#: Messages of one queue that may be in flight, and so be repeated after a kill.
WINDOW = 100
#: Short, because a killed task leaves its window locked: the default would add a minute to each test.
LOCK = timedelta(seconds=10)
#: Latency (seconds each way) with which a destination takes seconds rather than an instant.
SLOW = 0.2
_SESSIONS, _BLOCKS, _BLOCK = 5, 10, 100
#: Seconds that any step may take: many times as long as on two idle cores.
_LIMIT = 300.0


def say(text: str) -> None:
    print(f"cluster: {text}", flush=True)


class ClusterDrain:
    """The drain of one test: its messages, its jobs, and the checks afterwards."""

    def __init__(self, pair: Pair, cluster: Cluster, archive: Path, home: Path, folder: Path) -> None:
        self.pair = pair
        self.cluster = cluster
        self.folder = folder
        self._archive = archive
        self._home = home
        self._backlog = Backlog(pair)
        topic, subscription = pair.topic()
        #: Path that messages are sent to -> path at which they arrive.
        self._destinations = {queue: queue for queue in (pair.queue(), pair.queue())} | {topic: subscription}
        #: Destination -> its messages, in the order in which they were parked.
        self._parked: dict[str, list[bytes]] = {each: [] for each in self._destinations}
        self._submissions: list[Submission] = []
        self._begun = time.monotonic()

    # --- before ------------------------------------------------------------------------------------------

    def park(self) -> int:
        """Fill the backlog, and return the number of messages in it."""
        for index in range(QUEUES):
            for block in range(_BLOCKS):
                destination = list(self._destinations)[(index + block) % len(self._destinations)]
                messages = [self._message(index, block, number) for number in range(_BLOCK)]
                park_many(self._backlog, destination, messages, index, lock_duration=LOCK)
                self._parked[destination] += messages
        parked = self.pair.parked()
        assert parked == QUEUES * _BLOCKS * _BLOCK
        self._say(f"{parked} messages are parked in {QUEUES} queues")
        return parked

    @staticmethod
    def _message(index: int, block: int, number: int) -> bytes:
        """Return a message. Half of them have sessions, each of which is parked in one queue, as by a sender."""
        session = f"{index}-{number % _SESSIONS}" if number % 2 else None
        return encoded(
            bytes(range(256)) * (1 + number % 4),
            id=f"{index}-{block}-{number}",
            session=session,
            properties={"queue": index, "of": f"block {block}", "odd": bool(number % 2)},
        )

    def slow_down(self) -> None:
        """Delay the destinations' answers, so that windows are full in the middle of the drain."""
        for destination in self._destinations:
            self.pair.primary.faults.latency(SLOW, destination)

    def hurry(self) -> None:
        self.pair.primary.faults.clear()

    # --- the job -----------------------------------------------------------------------------------------

    def submit(self, how: str = "--once") -> Submission:
        """Start the job with spark-submit, as the documentation does."""
        events = self.folder / "events"
        events.mkdir(exist_ok=True)
        settings = {
            "spark.pyspark.python": "./environment/bin/python",
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.cores.max": str(EXECUTORS),
            "spark.driver.memory": "768m",
            "spark.driver.host": MASTER,
            "spark.driver.bindAddress": MASTER,
            "spark.driver.extraJavaOptions": "-Xss8m",
            "spark.ui.enabled": "false",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",  # so that it can be searched
            "spark.eventLog.dir": events.as_uri(),
        }
        arguments = ["--archives", f"{self._archive}#environment", "--jars", ",".join(map(str, delta_jars()))]
        arguments += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        arguments += [str(ROOT / "jobs" / "drain.py"), "--config", str(self._config()), how]
        log = self.folder / f"driver-{len(self._submissions)}.log"
        self._submissions.append(Submission(self.cluster, arguments, cwd=self._home, log=log))
        self._say(f"spark-submit {how} has process id {self._submissions[-1].pid}")
        return self._submissions[-1]

    def _config(self) -> Path:
        file = self.folder / "pairbus.toml"
        lines = []
        for kind, bus, name in (
            ("primary", self.pair.primary, self.pair.name),
            ("secondary", self.pair.secondary, "backup"),
        ):
            secret = self.folder / "secrets" / kind
            secret.parent.mkdir(exist_ok=True)
            secret.touch(0o600)
            secret.write_text(bus.connection_string)
            lines += [f"[{kind}]", f'connection = "file:{secret}"', f'name = "{name}"', f'ca_file = "{bus.ca_file}"']
        lines += ["[syphon]", f"queues = {QUEUES}", f"window_messages = {WINDOW}", 'task_budget = "10s"']
        lines += ["[ledger]", f'path = "{self.ledger}"', f'checkpoint = "{self.folder / "checkpoint"}"']
        file.write_text("\n".join(lines) + "\n")
        return file

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    def wait(self, what: Callable[[], Any], why: str) -> Any:
        """Poll until a condition is true, and return its value; fail with the logs on a time-out or the job's end."""
        job = self._submissions[-1]
        deadline = time.monotonic() + _LIMIT
        while not (found := what()):
            ended = not job.is_running and not what()
            if ended or time.monotonic() > deadline:
                text = "the job ended before" if ended else f"within {_LIMIT:.0f} s it did not happen that"
                raise AssertionError(f"{text} {why}\n{self.describe()}")
            time.sleep(0.1)
        return found

    def wait_for_the_middle(self) -> None:
        """Wait until all executors drain, and a tenth of the messages has arrived."""
        self.wait(lambda: len(self.draining()) == EXECUTORS, f"{EXECUTORS} processes drain")
        tenth = QUEUES * _BLOCKS * _BLOCK // 10
        arrived = self.wait(lambda: (n := self.arrived()) >= tenth and n, f"{tenth} messages have arrived")
        self._say(f"in mid-drain: {arrived} have arrived, {self.pair.parked()} are in the backlog")

    def finish(self) -> None:
        """Wait until the job has ended by itself, with exit code 0 and without a process left behind."""
        job = self._submissions[-1]
        self.wait(lambda: not job.is_running, "the job ends")
        assert job.process.returncode == 0, self.describe()
        wait_until(lambda: not job.family(), 60, lambda: [str(each) for each in job.family()])
        self.cluster.wait_until_idle()
        self._say("the job has ended, and nothing of it is left")

    def stop(self) -> None:
        """Stop a continuous job once the backlog is empty."""
        self.wait(lambda: not self.pair.parked(), "the backlog is empty")
        self._submissions[-1].terminate()
        self.finish()

    def draining(self) -> list[Process]:
        """Return the Python workers that are connected to the secondary."""
        return connected_to(self.pair.secondary.port, self.cluster.python_workers())

    def arrived(self) -> int:
        return sum(map(self.pair.arrived, self._destinations.values()))

    # --- afterwards --------------------------------------------------------------------------------------

    def check(self, spark: SparkSession, *, most_repeats: int) -> None:
        """Check that each message arrived unchanged, those of a session in order, and that the ledger has them all.

        At most `most_repeats` arrived twice.
        """
        try:
            self._check(spark, most_repeats)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.describe()}") from error

    def _check(self, spark: SparkSession, most_repeats: int) -> None:
        assert self.pair.parked() == 0
        again: Counter[str] = Counter()
        for destination, sent in self._parked.items():
            came = list(self._take(self._destinations[destination]))
            wanted = {_came(each).id: _bare(each) for each in sent}
            found = {_came(each).id: _bare(each) for each in came}
            assert found.keys() == wanted.keys(), (
                f"lost: {wanted.keys() - found.keys()}, {found.keys() - wanted.keys()}"
            )
            assert found == wanted, "messages differ from those that were parked"
            arrivals = [_came(each) for each in came]
            again += repeats(arrivals)
            in_sessions = [each for each in sent if _came(each).session is not None]
            assert_in_order(in_sessions, [each for each in arrivals if each.session is not None])
        checked = verify(spark, str(self.ledger), namespace=self.pair.name)
        outcomes = Ledger(spark, str(self.ledger)).outcomes().groupBy("outcome").count().collect()
        self._say(f"{sum(again.values())} came twice; rows: { ({row.outcome: row['count'] for row in outcomes}) }")
        assert checked.ok, str(checked)
        assert [queue.delivered for queue in checked.queues] == [_BLOCKS * _BLOCK] * QUEUES, str(checked)
        assert sum(again.values()) <= most_repeats, again

    def _take(self, path: str) -> Iterator[bytes]:
        count = self.pair.arrived(path)
        with RawClient(self.pair.primary) as raw:
            raw.put_token(path)
            link = raw.receiver(path, count, delete=True)
            for _ in range(count):
                yield raw.receive(link).payload

    def assert_no_secret(self) -> None:
        """Check that no key is in the logs, events, checkpoint and ledger of the job and the cluster."""
        keys = [_key(bus) for bus in (self.pair.primary, self.pair.secondary)]
        places = [self.folder, *(worker.log.parent for worker in self.cluster.workers)]
        files = chain.from_iterable(place.rglob("*") for place in places)
        event_logs = 0
        for file in files:
            if file.is_file() and not {"secrets", "environment"} & set(file.parts):
                content = file.read_bytes()
                assert not any(key in content for key in keys), file
                event_logs += b"SparkListenerEnvironmentUpdate" in content
        assert event_logs, "no event log, which has all settings of the job, was among the files"

    def describe(self) -> str:
        """Return the state of the job and the cluster, with their logs."""
        job = self._submissions[-1]
        depths = self.pair.parked_by_queue()
        arrived = {path: self.pair.arrived(path) for path in self._destinations.values()}
        lines = [f"exit code {job.process.poll()}; backlog {depths}; arrived {arrived}"]
        lines += [f"{each}" for each in (*job.family(), *self.cluster.executors(), *self.cluster.python_workers())]
        return "\n".join([*lines, f"--- {job.log}", job.log_tail(), self.cluster.describe()])

    def _say(self, text: str) -> None:
        say(f"{time.monotonic() - self._begun:5.1f} s: {text}")

    def close(self) -> None:
        """End the jobs that a failed test has left."""
        for each in self._submissions:
            each.end()


def _came(payload: bytes) -> Came:
    message = Message()
    message.decode(payload)
    return Came(str(message.id), message.group_id)


def _bare(payload: bytes) -> Sequence[bytes]:
    """Return the sections of a message that no broker may change."""
    return [payload[each.start : each.end] for each in sections.split(payload) if each.code >= sections.PROPERTIES]


def _key(bus: LocalBus) -> bytes:
    return bus.connection_string.split("SharedAccessKey=")[1].split(";")[0].encode()
