"""The syphon without Spark: `pairbus drain`, `Service`, and a pairing with a syphon of its own."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus import Namespace, OptionError, PairingOptions, pair_namespaces
from pairbus.config.syphon_config import SyphonConfig
from pairbus.domain.outcome import Head, Outcome, QueueSummary
from pairbus.errors import PairbusError
from pairbus.localbus.auth import DEFAULT_KEY_NAME
from pairbus.syphon import service as service_module
from pairbus.syphon.depths import DepthQuery, Depths
from pairbus.syphon.drain.drain import DrainOptions
from pairbus.syphon.journal.folding import JournalFolder, read_parts
from pairbus.syphon.journal.journal import open_journal
from pairbus.syphon.service import Round, Service, service_for
from tests.support.backlog import Backlog, encoded, numbered
from tests.support.counting import arrivals, park_many, take_and_die
from tests.support.drain_command import drain, draining, journal_rows, write_config
from tests.support.journal_rows import rows
from tests.support.pairing import Pair
from tests.support.process_fixtures import with_key
from tests.support.unusual_config import identity, identity_of, options_in, unusual_config
from tests.support.waiting import wait_until


def test_pairbus_drain_empties_the_backlog(pair: Pair, backlog: Backlog, tmp_path: Path) -> None:
    """Exit code 0, a line for each queue, a row for each message; no secret is printed."""
    queue = pair.queue()
    for index in range(2):
        backlog.park(queue, *numbered(20), index=index)
    code, out, err = drain(pair, "--config", str(write_config(pair, tmp_path)))
    assert code == 0, err
    assert "queue 0: 20 delivered, 0 dead-lettered, 0 held back" in out
    assert "queue 2: does not exist" in out
    assert "the backlog is empty" in out
    assert pair.arrived(queue) == 40
    rows = journal_rows(tmp_path / "journal")
    assert len(rows) == 40
    assert {(row["namespace"], row["outcome"]) for row in rows} == {(pair.name, Outcome.DELIVERED.value)}
    assert {row["queue_index"] for row in rows} == {0, 1}
    assert "SharedAccessKey" not in out + err


def test_pairbus_drain_lists_what_is_held_back(pair: Pair, backlog: Backlog, tmp_path: Path) -> None:
    """Also with exit code 0, because the drain did not fail."""
    queue = pair.queue()
    backlog.park(queue, *numbered(5))
    pair.primary.faults.quota_exceeded(queue)
    code, out, err = drain(pair, "--config", str(write_config(pair, tmp_path)), "--queues", "0")
    assert code == 0, err
    assert f"held back in the backlog: 5 for {queue}: amqp:resource-limit-exceeded" in out
    assert backlog.depth() == 5


def test_pairbus_drain_with_a_wrong_key_fails(pair: Pair, backlog: Backlog, tmp_path: Path) -> None:
    """Messages that the primary refuses because of the syphon's own key are held back; the exit code is 1."""
    queue = pair.queue()
    backlog.park(queue, *numbered(5))
    config = write_config(pair, tmp_path, queues=1)
    wrong = tmp_path / "primary"
    wrong.write_text(with_key(pair.primary.connection_string, DEFAULT_KEY_NAME, "d3Jvbmc="))
    config.write_text(config.read_text().replace("env:PAIRBUS_TEST_PRIMARY", f"file:{wrong}"))
    code, out, _ = drain(pair, "--config", str(config))
    assert code == 1
    assert f"the credential of [primary] (or [event_hubs]) is refused: {queue}: com.microsoft:auth-failed" in out
    assert f"held back in the backlog: 5 for {queue}" in out
    assert backlog.depth() == 5


def test_pairbus_drain_names_a_namespace_that_is_down(pair: Pair, backlog: Backlog, tmp_path: Path) -> None:
    """The primary or the secondary; the exit code is 1."""
    backlog.park(pair.queue(), *numbered(5))
    config = str(write_config(pair, tmp_path))
    pair.primary.kill()
    code, out, _ = drain(pair, "--config", config, "--queues", "0")
    assert (code, backlog.depth()) == (1, 5)
    assert pair.primary_namespace().host in out
    pair.secondary.kill()
    code, _, err = drain(pair, "--config", config)
    assert code == 1
    assert "pairbus drain:" in err


def test_pairbus_drain_names_every_mistake_of_its_configuration(pair: Pair, tmp_path: Path) -> None:
    """Exit code 2, before any connection."""
    config = write_config(pair, tmp_path, more='late = "never"\n        task_budgt = 3')
    code, _, err = drain(pair, "--config", str(config))
    assert code == 2
    assert "late" in err
    assert "task_budget" in err
    config.write_text(write_config(pair, tmp_path).read_text().partition("[ledger]")[0])
    code, _, err = drain(pair, "--config", str(config))
    assert code == 2
    assert "[ledger] journal is missing" in err


def test_a_journal_that_cannot_be_written_is_found_before_a_message_is_received(
    pair: Pair, backlog: Backlog, tmp_path: Path
) -> None:
    """Exit code 2, with the folder's name."""
    queue = pair.queue()
    backlog.park(queue, *numbered(5))
    (tmp_path / "journal").write_text("a file where a folder should be")
    code, _, err = drain(pair, "--config", str(write_config(pair, tmp_path)))
    assert code == 2
    assert str(tmp_path / "journal") in err
    assert pair.arrived(queue) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_pairbus_drain_continuous_ends_by_a_signal(
    pair: Pair, backlog: Backlog, tmp_path: Path, number: signal.Signals
) -> None:
    """Messages parked while it runs are delivered too; the exit code is 0."""
    queue = pair.queue()
    backlog.make()
    config = write_config(pair, tmp_path, queues=1, more="idle_poll_interval = 1")
    with draining(pair, "--config", str(config), "--continuous") as command:
        for count in (5, 10):
            backlog.park(queue, *numbered(5))
            wait_until(lambda count=count: pair.arrived(queue) == count, 30)  # type: ignore[misc]
        command.process.send_signal(number)
        assert command.result()[0] == 0
    assert len(journal_rows(tmp_path / "journal")) == 10


@pytest.mark.parametrize("renewed", ["primary", "secondary"])
def test_a_renewed_key_is_used(pair: Pair, backlog: Backlog, tmp_path: Path, renewed: str) -> None:
    """A continuous syphon resolves its references anew after a refusal, without a restart."""
    queue = pair.queue()
    backlog.park(queue, *numbered(5))
    secrets = {}
    for kind, bus in (("primary", pair.primary), ("secondary", pair.secondary)):
        secrets[kind] = tmp_path / kind
        secrets[kind].write_text(bus.connection_string)
    right = secrets[renewed].read_text()
    secrets[renewed].write_text(with_key(right, DEFAULT_KEY_NAME, "d3Jvbmc="))
    path = write_config(pair, tmp_path, queues=1)
    text = path.read_text()
    for kind, file in secrets.items():
        text = text.replace(f"env:PAIRBUS_TEST_{kind.upper()}", f"file:{file}")
    path.write_text(text)
    rounds: list[Round] = []
    queries: list[int] = []
    service = service_for(SyphonConfig.load(path), on_round=rounds.append, on_query=queries.append)
    thread = threading.Thread(target=service.forever)
    thread.start()
    try:
        wait_until(lambda: rounds if renewed == "primary" else queries, 60)
        assert pair.arrived(queue) == 0
        secrets[renewed].write_text(right)
        wait_until(lambda: pair.arrived(queue) == 5, 60)
    finally:
        service.stop()
        thread.join(60)


def test_a_failed_depth_query_shows_no_secret(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in the error of `once` nor in the log of `forever`."""

    def fail(*_: Any) -> Depths:
        raise ConnectionError("refused: SharedAccessSignature sr=x&sig=SECRET1&skn=root, token=SECRET2")

    monkeypatch.setattr(DepthQuery, "run", fail)
    service = Service(pair.primary_namespace(), pair.secondary_namespace(), [0], str(tmp_path))
    with pytest.raises(PairbusError, match="ConnectionError: refused") as raised:
        service.once()
    service = Service(pair.primary_namespace(), pair.secondary_namespace(), [0], str(tmp_path))
    monkeypatch.setattr(service, "_pause", lambda seconds: service.stop())
    service.forever()
    assert "ConnectionError: refused" in caplog.text
    assert "SECRET" not in f"{raised.value} {caplog.text}"


def test_a_service_that_moved_nothing_leaves_no_files(pair: Pair, backlog: Backlog, tmp_path: Path) -> None:
    """Run every hour, it would fill the journal folder with empty runs."""
    backlog.make()
    service = Service(pair.primary_namespace(), pair.secondary_namespace(), [0], str(tmp_path))
    assert service.once().is_empty
    assert list(tmp_path.iterdir()) == []


def test_a_spark_job_folds_the_journals_of_a_service(pair: Pair, backlog: Backlog, tmp_path: Path) -> None:
    """At once, if the service has ended in order."""
    queue = pair.queue()
    backlog.park(queue, *numbered(7))
    service = Service(pair.primary_namespace(), pair.secondary_namespace(), [0], str(tmp_path))
    assert service.once().is_empty
    cluster = JournalFolder(str(tmp_path))
    cluster.begin("cluster", None)
    (fold,) = cluster.plan()
    assert sum(batch.num_rows for batch in read_parts(fold.parts)) == 7


@pytest.mark.parametrize("living", ["a", "z"])
def test_a_running_service_does_not_delay_folds(tmp_path: Path, living: str) -> None:
    """It never folds, so other runs must not wait for it to do so."""
    for name in ("over", living):
        service = JournalFolder(str(tmp_path), folds=False)
        service.begin(name, None)
        journal = open_journal(f"{tmp_path}/{name}", Head("contoso", 0))
        journal.write(rows(1))
        if name == "over":
            journal.close()
            service.finish()
    cluster = JournalFolder(str(tmp_path))
    cluster.begin("cluster", None)
    assert [fold.run for fold in cluster.plan()] == ["over"]


def test_messages_that_a_killed_service_has_locked_are_not_overtaken(
    pair: Pair, backlog: Backlog, tmp_path: Path
) -> None:
    """The next service waits for the end of those locks before it sends later messages of a session."""
    queue = pair.queue()
    session = [encoded("x", id=f"m{number}", session="s") for number in range(6)]
    park_many(backlog, queue, session, lock_duration=timedelta(seconds=5))
    folding = "from pairbus.syphon.journal.folding import JournalFolder"
    begin = f"JournalFolder({str(tmp_path)!r}).begin('killed', None)"
    subprocess.run([sys.executable, "-c", f"{folding}; {begin}"], check=True)
    take_and_die(backlog, 4)
    service = Service(pair.primary_namespace(), pair.secondary_namespace(), [0], str(tmp_path))
    assert service.once().is_empty
    assert [came.id for came in arrivals(backlog, queue)] == [f"m{number}" for number in range(6)]


def test_an_idle_service_makes_few_depth_queries(
    pair: Pair, backlog: Backlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One management call a poll, however many queues; pauses after failures double."""
    operations: list[int] = []
    pauses: list[float] = []
    for index in range(3):
        backlog.make(index)
    service = Service(
        pair.primary_namespace(), pair.secondary_namespace(), range(3), str(tmp_path), on_query=operations.append
    )

    def rest(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            pair.secondary.kill()
        if len(pauses) == 5:
            service.stop()

    monkeypatch.setattr(service, "_pause", rest)
    service.forever()
    assert len(operations) == 5
    assert operations[1:] == [1] * 4, "once it knows where its queues are, it reads one page"
    assert pauses == [120.0, 120.0, 120.0, 2.0, 4.0]


def test_pauses_double_while_nothing_is_moved(
    pair: Pair, backlog: Backlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retries of held messages cost operations. A round that moves messages ends the series."""
    queue = pair.queue()
    backlog.park(queue, *numbered(3))
    pair.primary.faults.busy(queue)
    pauses: list[float] = []
    service = Service(pair.primary_namespace(), pair.secondary_namespace(), [0], str(tmp_path))

    def rest(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            pair.primary.faults.clear()
        if pair.arrived(queue) == 3:
            service.stop()

    monkeypatch.setattr(service, "_pause", rest)
    service.forever()
    assert pauses == [2.0, 4.0, 8.0, 1.0]


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "Too many open files"), RuntimeError("can't start new thread")], ids=repr
)
def test_a_round_without_an_event_loop_is_tried_again(
    pair: Pair, backlog: Backlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The process may be short of files or threads for a while; the error is the round's."""
    queue = pair.queue()
    backlog.park(queue, *numbered(3))
    rounds: list[Round] = []

    def done(found: Round) -> None:
        rounds.append(found)
        if found.moved:
            service.stop()

    service = Service(
        pair.primary_namespace(),
        pair.secondary_namespace(),
        [0],
        str(tmp_path),
        options=DrainOptions(retry_interval=0.05),
        on_round=done,
    )
    run, tries = asyncio.run, iter([error])

    def short(main: Any) -> Any:
        if (raised := next(tries, None)) is not None:
            raise raised
        return run(main)

    monkeypatch.setattr(asyncio, "run", short)
    service.forever()
    assert str(error) in rounds[0].errors[0]
    assert pair.arrived(queue) == 3


def test_a_round_that_is_cut_short_at_its_end_keeps_what_it_moved(
    pair: Pair, backlog: Backlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing the event loop may need a thread when there is none."""
    queue = pair.queue()
    backlog.park(queue, *numbered(3))
    run = asyncio.run

    def short(main: Any) -> Any:
        run(main)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(asyncio, "run", short)
    done = Service(pair.primary_namespace(), pair.secondary_namespace(), [0], str(tmp_path)).once()
    assert done.moved == 3
    assert not done.errors
    assert pair.arrived(queue) == 3


def test_a_journal_that_cannot_be_closed_for_want_of_a_thread(
    pair: Pair, backlog: Backlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is only not marked as finished: all queues are drained and reported."""
    queue = pair.queue()
    for index in range(2):
        backlog.park(queue, *numbered(3), index=index)

    async def call_in_thread(call: Any, name: str) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(service_module, "call_in_thread", call_in_thread)
    done = Service(pair.primary_namespace(), pair.secondary_namespace(), [0, 1], str(tmp_path)).once()
    assert [(each.delivered, each.error) for each in done.queues] == [(3, None), (3, None)]


# --- from the configuration to the drains ----------------------------------------------------------------------------


class Drains:
    """Drains that record their arguments, of queues that are as deep as a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *depths: dict[int, int | None]) -> None:
        self.made: list[dict[str, Any]] = []
        self.queried: list[tuple[Any, ...]] = []
        self._depths = list(depths)
        monkeypatch.setattr(service_module, "Drain", self._make)
        monkeypatch.setattr(service_module, "DepthQuery", self._query)

    def _query(self, primary_name: str, indexes: Any) -> Any:
        def run(secondary: Namespace) -> Depths:
            return self._answer(secondary, primary_name, tuple(indexes))

        return SimpleNamespace(primary_name=primary_name, run=run)

    def _answer(self, secondary: Namespace, primary_name: str, indexes: tuple[int, ...]) -> Depths:
        self.queried.append((secondary, primary_name, indexes))
        return Depths(self._depths.pop(0) if len(self._depths) > 1 else self._depths[0])

    def _make(
        self,
        primary: Namespace,
        secondary: Namespace,
        event_hubs: Namespace | None,
        queue_index: int,
        journal: Any,
        options: DrainOptions,
        stop: Any,
    ) -> Any:
        self.made.append(locals())

        class Made:
            async def run(self) -> QueueSummary:
                journal.write(rows(queue_index))
                return QueueSummary(queue_index, delivered=1, operations=3, empty=True)

        return Made()


def test_a_service_drains_as_its_configuration_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Namespaces, queues, journal and every option; the rate is shared by the queues that have something."""
    config = unusual_config(tmp_path, monkeypatch)
    drains = Drains(monkeypatch, {1: 5, 3: 7, 8: 0}, {1: 0, 3: 0, 8: 0})
    rounds: list[Round] = []
    service = service_for(config, on_round=rounds.append)
    assert service.once().moved == 2
    assert [done.moved for done in rounds] == [2]
    (secondary, primary_name, indexes), again = drains.queried
    assert again == (secondary, primary_name, indexes)
    assert (identity(secondary), primary_name) == (identity_of("secondary"), "name-of-primary")
    assert indexes == (1, 3, 8)
    assert [made["queue_index"] for made in drains.made] == [1, 3]
    for made in drains.made:
        assert identity(made["primary"]) == identity_of("primary")
        assert identity(made["secondary"]) == identity_of("secondary")
        assert identity(made["event_hubs"]) == identity_of("event-hubs")
        expected = options_in(config) | {"max_rate": 60 / 2}
        assert {name: getattr(made["options"], name) for name in expected} == expected
        assert made["options"].budget is None
        assert not made["stop"]()
    service.stop()
    assert all(made["stop"]() for made in drains.made)
    written = journal_rows(tmp_path / "journal")
    assert [row["namespace"] for row in written] == ["name-of-primary"] * 2
    assert {row["queue_index"] for row in written} == {1, 3}


def test_a_service_pauses_as_its_configuration_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry interval after a round that has moved something, the idle interval after one that found nothing."""
    drains = Drains(monkeypatch, {1: 5, 3: 7, 8: 1}, {1: 0, 3: 0, 8: 0})
    service = service_for(unusual_config(tmp_path, monkeypatch))
    pauses: list[float] = []

    def rest(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            service.stop()

    monkeypatch.setattr(service, "_pause", rest)
    service.forever()
    assert pauses == [3, 45]
    assert [made["options"].max_rate for made in drains.made] == [60 / 3] * 3


def test_options_that_are_not_set_stay_unset(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No event hubs, and no limit of the rate."""
    for role, bus in (("PRIMARY", pair.primary), ("SECONDARY", pair.secondary)):
        monkeypatch.setenv(f"PAIRBUS_TEST_{role}", bus.connection_string)
    drains = Drains(monkeypatch, {0: 1}, {0: 0})
    service_for(SyphonConfig.load(write_config(pair, tmp_path))).once()
    (made,) = drains.made
    assert (made["event_hubs"], made["options"].max_rate) == (None, None)


def test_the_syphon_of_a_pairing_drains_as_its_options_say(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Namespaces, number of queues, journal and options are those of the pairing."""
    drains = Drains(monkeypatch, {2: 1}, dict.fromkeys(range(3), 0))
    primary, secondary = pair.primary_namespace(), pair.secondary_namespace()
    event_hubs = Namespace("hubs.example", credential=primary.credential, name="hubs")
    options = PairingOptions(
        backlog_queue_count=3,
        enable_syphon=True,
        syphon_journal=tmp_path,
        syphon_retry_interval=5,
        late="dead-letter",
        on_event=pair.events.append,
    )
    with pair_namespaces(primary, secondary, options, event_hubs=event_hubs) as bus:
        wait_until(lambda: pair.told("messages brought home"), 30)
        counted = bus.status().operations
    assert drains.queried[0] == (secondary, primary.name, (0, 1, 2))
    (made,) = drains.made
    assert made["primary"] is primary
    assert made["secondary"] is secondary
    assert made["event_hubs"] is event_hubs
    assert (made["queue_index"], made["options"].late, made["options"].retry_interval) == (2, "dead-letter", 5)
    assert made["stop"]()  # it was closed
    assert [row["queue_index"] for row in journal_rows(tmp_path)] == [2]
    assert counted["syphon"] == 3


# --- a pairing with a syphon ---------------------------------------------------------------------------------------


def syphon_threads() -> list[threading.Thread]:
    """The threads of pairings' syphons in this process."""
    return [thread for thread in threading.enumerate() if thread.name == "pairbus-syphon"]


def test_a_pairing_delivers_its_parked_messages(pair: Pair, tmp_path: Path) -> None:
    """With enable_syphon the same process delivers them after the outage, with rows in the journal."""
    queue = pair.queue()
    bus = pair.pairing(enable_syphon=True, syphon_journal=tmp_path, ping_primary_interval=1)
    with bus.get_queue_sender(queue) as sender:
        with pair.primary.faults.during("unavailable", queue):
            for number in range(5):
                sender.send_messages(ServiceBusMessage(f"m{number}", message_id=f"m{number}"))
            assert bus.status().entities[queue].parked == 5
        wait_until(lambda: pair.arrived(queue) == 5, 60, bus.status)
    wait_until(lambda: bus.status().operations.get("syphon", 0) >= 15, why=bus.status)
    (event,) = wait_until(lambda: pair.told("messages brought home"))
    assert (event.details["delivered"], event.details["errors"]) == (5, [])
    bus.close()
    assert {row["message_id"] for row in journal_rows(tmp_path)} == {f"m{number}" for number in range(5)}


def test_with_a_syphon_a_faulted_half_faults_the_other(pair: Pair, tmp_path: Path) -> None:
    """The syphon needs both."""
    bus = pair.pairing(enable_syphon=True, syphon_journal=tmp_path)
    error = RuntimeError("the primary is not what it was")
    bus.primary.fault(error)
    assert bus.secondary.error is error
    wait_until(lambda: {event.details["half"] for event in pair.told("half faulted")} == {"primary", "secondary"})
    bus.close()
    wait_until(lambda: not syphon_threads())


def test_closing_a_pairing_stops_its_syphon(pair: Pair, tmp_path: Path) -> None:
    """Its thread has ended when `close` returns."""
    bus = pair.pairing(enable_syphon=True, syphon_journal=tmp_path)
    assert len(syphon_threads()) == 1
    bus.close()
    assert not syphon_threads()


def test_a_journal_that_cannot_be_ended_is_an_event_of_the_pairing(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event names the folder; `close` does not fail."""

    def full(self: JournalFolder) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(JournalFolder, "finish", full)
    bus = pair.pairing(enable_syphon=True, syphon_journal=tmp_path)
    bus.close()
    (event,) = wait_until(lambda: pair.told("syphon ended"))
    assert f"the journal {tmp_path} could not be ended in order: [Errno 28]" in event.details["error"]


def test_a_pairing_needs_a_journal_that_can_be_written(pair: Pair, tmp_path: Path) -> None:
    """It is refused when it is opened; the error names the folder and the option."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="syphon_journal") as raised:
        pair.pairing(enable_syphon=True, syphon_journal=tmp_path / "file")
    assert str(tmp_path / "file") in str(raised.value)


def test_the_journal_of_a_pairing_is_by_default_in_the_state_folder(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder with the primary's name."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    pair.pairing(enable_syphon=True).close()
    assert (tmp_path / "pairbus" / "journal" / pair.name).is_dir()


@pytest.mark.parametrize("value", ["", 3])
def test_a_bad_journal_folder_is_refused_by_name(pair: Pair, value: Any) -> None:
    """Before anything is opened."""
    with pytest.raises(OptionError, match="syphon_journal must be the path of a folder"):
        pair.pairing(enable_syphon=True, syphon_journal=value)
