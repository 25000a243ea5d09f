"""The syphon without Spark: `pairbus drain`, and a pairing that brings its messages home itself."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus import Namespace, OptionError, PairingOptions, pair_namespaces
from pairbus.config.syphon_config import SyphonConfig
from pairbus.domain.outcome import Head, Outcome, QueueSummary
from pairbus.errors import PairbusError
from pairbus.localbus.auth import DEFAULT_KEY_NAME
from pairbus.syphon import service as service_module
from pairbus.syphon.depths import Depths
from pairbus.syphon.drain.drain import DrainOptions
from pairbus.syphon.journal.folding import JournalFolder, read_parts
from pairbus.syphon.journal.journal import open_journal, read_journal
from pairbus.syphon.service import Round, Service, service_for
from tests.support.backlog import Backlog, encoded, numbered
from tests.support.counting import arrivals, park_many, take_and_die
from tests.support.journal_rows import rows
from tests.support.pairing import Pair, wait_until
from tests.support.process_fixtures import with_key


def journals(root: Path) -> list[dict[str, Any]]:
    """All rows below a folder of journals."""
    return [row for path in sorted(root.glob("*/*.journal")) for row in read_journal(str(path)).table.to_pylist()]


def config_of(pair: Pair, folder: Path, queues: int = 3, more: str = "") -> Path:
    path = folder / "pairbus.toml"
    path.write_text(
        f"""
        [primary]
        connection = "env:PAIRBUS_TEST_PRIMARY"
        name = "{pair.name}"
        ca_file = "{pair.primary.ca_file}"
        [secondary]
        connection = "env:PAIRBUS_TEST_SECONDARY"
        name = "backup"
        ca_file = "{pair.secondary.ca_file}"
        [syphon]
        queues = {queues}
        {more}
        [ledger]
        journal = "{folder / "journal"}"
        """
    )
    return path


class Command:
    """`pairbus drain` as a process of its own."""

    def __init__(self, pair: Pair, *arguments: str) -> None:
        secrets = {
            "PAIRBUS_TEST_PRIMARY": pair.primary.connection_string,
            "PAIRBUS_TEST_SECONDARY": pair.secondary.connection_string,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pairbus.cli", "drain", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **secrets},
        )

    def result(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


@contextmanager
def draining(pair: Pair, *arguments: str) -> Iterator[Command]:
    command = Command(pair, *arguments)
    try:
        yield command
    finally:
        command.process.kill()
        command.process.communicate()


def drain(pair: Pair, *arguments: str) -> tuple[int, str, str]:
    with draining(pair, *arguments) as command:
        return command.result()


def test_pairbus_drain_empties_the_backlog(pair: Pair, backlog: Backlog, tmp_path: Path) -> None:
    """Exit code 0, each queue told, each message in a journal; no secret is printed."""
    queue = pair.queue()
    for index in range(2):
        backlog.park(queue, *numbered(20), index=index)
    code, out, err = drain(pair, "--config", str(config_of(pair, tmp_path)))
    assert code == 0, err
    assert "queue 0: 20 delivered, 0 dead-lettered, 0 held back" in out
    assert "queue 2: does not exist" in out
    assert "the backlog is empty" in out
    assert pair.arrived(queue) == 40
    rows = journals(tmp_path / "journal")
    assert len(rows) == 40
    assert {(row["namespace"], row["outcome"]) for row in rows} == {(pair.name, Outcome.DELIVERED.value)}
    assert {row["queue_index"] for row in rows} == {0, 1}
    assert "SharedAccessKey" not in out + err


def test_pairbus_drain_lists_what_is_held_back(pair: Pair, backlog: Backlog, tmp_path: Path) -> None:
    """Also exit code 0: nothing is wrong with the drain."""
    queue = pair.queue()
    backlog.park(queue, *numbered(5))
    pair.primary.faults.quota_exceeded(queue)
    code, out, err = drain(pair, "--config", str(config_of(pair, tmp_path)), "--queues", "0")
    assert code == 0, err
    assert f"held back in the backlog: 5 for {queue}: amqp:resource-limit-exceeded" in out
    assert backlog.depth() == 5


def test_pairbus_drain_with_a_wrong_key_is_no_success(pair: Pair, backlog: Backlog, tmp_path: Path) -> None:
    """What the primary refuses because of the syphon's own key is held back, and the exit code tells."""
    queue = pair.queue()
    backlog.park(queue, *numbered(5))
    config = config_of(pair, tmp_path, queues=1)
    wrong = tmp_path / "primary"
    wrong.write_text(with_key(pair.primary.connection_string, DEFAULT_KEY_NAME, "d3Jvbmc="))
    config.write_text(config.read_text().replace("env:PAIRBUS_TEST_PRIMARY", f"file:{wrong}"))
    code, out, _ = drain(pair, "--config", str(config))
    assert code == 1
    assert f"this syphon is not let in, see [primary] (or [event_hubs]): {queue}: com.microsoft:auth-failed" in out
    assert f"held back in the backlog: 5 for {queue}" in out
    assert backlog.depth() == 5


def test_pairbus_drain_that_could_not_says_why(pair: Pair, backlog: Backlog, tmp_path: Path) -> None:
    """Exit code 1 when the primary cannot be reached, and when the secondary cannot."""
    backlog.park(pair.queue(), *numbered(5))
    config = str(config_of(pair, tmp_path))
    pair.primary.kill()
    code, out, _ = drain(pair, "--config", config, "--queues", "0")
    assert (code, backlog.depth()) == (1, 5)
    assert pair.primary_namespace().host in out
    pair.secondary.kill()
    code, _, err = drain(pair, "--config", config)
    assert code == 1
    assert "pairbus drain:" in err


def test_pairbus_drain_names_all_that_is_wrong_with_its_configuration(pair: Pair, tmp_path: Path) -> None:
    """Exit code 2; nothing is connected to."""
    config = config_of(pair, tmp_path, more='late = "never"\n        task_budgt = 3')
    code, _, err = drain(pair, "--config", str(config))
    assert code == 2
    assert "late" in err
    assert "task_budget" in err
    config.write_text(config_of(pair, tmp_path).read_text().partition("[ledger]")[0])
    code, _, err = drain(pair, "--config", str(config))
    assert code == 2
    assert "[ledger] journal is missing" in err


def test_a_journal_that_cannot_be_written_is_found_before_a_message_is_touched(
    pair: Pair, backlog: Backlog, tmp_path: Path
) -> None:
    """Exit code 2 with the folder's name; nothing was received."""
    queue = pair.queue()
    backlog.park(queue, *numbered(5))
    (tmp_path / "journal").write_text("a file where a folder should be")
    code, _, err = drain(pair, "--config", str(config_of(pair, tmp_path)))
    assert code == 2
    assert str(tmp_path / "journal") in err
    assert pair.arrived(queue) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_pairbus_drain_goes_on_until_it_is_told_to_stop(
    pair: Pair, backlog: Backlog, tmp_path: Path, number: signal.Signals
) -> None:
    """What is parked while it runs comes home too; a signal ends it with exit code 0."""
    queue = pair.queue()
    backlog.make()
    config = config_of(pair, tmp_path, queues=1, more="idle_poll_interval = 1")
    with draining(pair, "--config", str(config), "--continuous") as command:
        for count in (5, 10):
            backlog.park(queue, *numbered(5))
            wait_until(lambda count=count: pair.arrived(queue) == count, 30)  # type: ignore[misc]
        command.process.send_signal(number)
        assert command.result()[0] == 0
    assert len(journals(tmp_path / "journal")) == 10


@pytest.mark.parametrize("renewed", ["primary", "secondary"])
def test_a_key_that_is_renewed_is_found(pair: Pair, backlog: Backlog, tmp_path: Path, renewed: str) -> None:
    """A syphon that goes on looks its references up again when it is refused: nobody needs to start it anew."""
    queue = pair.queue()
    backlog.park(queue, *numbered(5))
    secrets = {}
    for kind, bus in (("primary", pair.primary), ("secondary", pair.secondary)):
        secrets[kind] = tmp_path / kind
        secrets[kind].write_text(bus.connection_string)
    right = secrets[renewed].read_text()
    secrets[renewed].write_text(with_key(right, DEFAULT_KEY_NAME, "d3Jvbmc="))
    path = config_of(pair, tmp_path, queues=1)
    text = path.read_text()
    for kind, file in secrets.items():
        text = text.replace(f"env:PAIRBUS_TEST_{kind.upper()}", f"file:{file}")
    path.write_text(text)
    rounds: list[Round] = []
    asked: list[int] = []
    service = service_for(SyphonConfig.load(path), on_round=rounds.append, on_asked=asked.append)
    thread = threading.Thread(target=service.forever)
    thread.start()
    try:
        wait_until(lambda: rounds if renewed == "primary" else asked, 60)
        assert pair.arrived(queue) == 0
        secrets[renewed].write_text(right)
        wait_until(lambda: pair.arrived(queue) == 5, 60)
    finally:
        service.stop()
        thread.join(60)


def test_what_the_secondary_s_error_says_holds_no_secret(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in the error of a run nor in the log of one that goes on."""

    def fail(*_: Any) -> Depths:
        raise ConnectionError("refused: SharedAccessSignature sr=x&sig=SECRET1&skn=root, token=SECRET2")

    monkeypatch.setattr(service_module, "backlog_depths", fail)
    service = Service(pair.primary_namespace(), pair.secondary_namespace(), [0], str(tmp_path))
    with pytest.raises(PairbusError, match="ConnectionError: refused") as raised:
        service.once()
    service = Service(pair.primary_namespace(), pair.secondary_namespace(), [0], str(tmp_path))
    monkeypatch.setattr(service, "_rest", lambda seconds: service.stop())
    service.forever()
    assert "ConnectionError: refused" in caplog.text
    assert "SECRET" not in f"{raised.value} {caplog.text}"


def test_a_service_that_moved_nothing_leaves_nothing(pair: Pair, backlog: Backlog, tmp_path: Path) -> None:
    """Run every hour, it does not fill the journals' folder with runs that nobody needs."""
    backlog.make()
    service = Service(pair.primary_namespace(), pair.secondary_namespace(), [0], str(tmp_path))
    assert service.once().is_empty
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_folds_what_a_service_has_left(pair: Pair, backlog: Backlog, tmp_path: Path) -> None:
    """A run that has ended in order is any other syphon's to fold, at once."""
    queue = pair.queue()
    backlog.park(queue, *numbered(7))
    service = Service(pair.primary_namespace(), pair.secondary_namespace(), [0], str(tmp_path))
    assert service.once().is_empty
    cluster = JournalFolder(str(tmp_path))
    cluster.begin("cluster", None)
    (fold,) = cluster.plan()
    assert sum(batch.num_rows for batch in read_parts(fold.parts)) == 7


@pytest.mark.parametrize("living", ["a", "z"])
def test_a_service_that_goes_on_keeps_nobody_from_folding(tmp_path: Path, living: str) -> None:
    """Only who folds clears up after others: one that lives and never folds is not waited for."""
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


def test_what_a_killed_service_has_locked_is_not_overtaken(pair: Pair, backlog: Backlog, tmp_path: Path) -> None:
    """A service that follows one that was cut off waits for its locks before it sends what is behind in a session."""
    queue = pair.queue()
    session = [encoded("x", id=f"m{number}", session="s") for number in range(6)]
    park_many(backlog, queue, session, lock_duration=timedelta(seconds=5))
    begun = f"from pairbus.syphon.journal.folding import JournalFolder; JournalFolder({str(tmp_path)!r}).begin('killed', None)"
    subprocess.run([sys.executable, "-c", begun], check=True)
    take_and_die(backlog, 4)
    service = Service(pair.primary_namespace(), pair.secondary_namespace(), [0], str(tmp_path))
    assert service.once().is_empty
    assert [came.id for came in arrivals(backlog, queue)] == [f"m{number}" for number in range(6)]


def test_a_service_that_goes_on_asks_little_while_nothing_is_there(
    pair: Pair, backlog: Backlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One management call a poll, however many queues; a secondary that does not answer is asked again."""
    asked: list[int] = []
    pauses: list[float] = []
    for index in range(3):
        backlog.make(index)
    service = Service(
        pair.primary_namespace(), pair.secondary_namespace(), range(3), str(tmp_path), on_asked=asked.append
    )

    def rest(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            pair.secondary.kill()
        if len(pauses) == 5:
            service.stop()

    monkeypatch.setattr(service, "_rest", rest)
    service.forever()
    assert len(asked) == 5
    assert asked[1:] == [1] * 4, "once it knows where its queues are, one page tells"
    assert pauses == [120.0, 120.0, 120.0, 2.0, 4.0]


def test_a_service_rests_longer_while_nothing_is_brought_home(
    pair: Pair, backlog: Backlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice as long after each round, and as at first once something has moved: what is held back costs operations."""
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

    monkeypatch.setattr(service, "_rest", rest)
    service.forever()
    assert pauses == [2.0, 4.0, 8.0, 1.0]


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "Too many open files"), RuntimeError("can't start new thread")], ids=repr
)
def test_a_round_for_which_this_process_is_short_of_something_is_not_the_last(
    pair: Pair, backlog: Backlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Without an event loop a service tells so, and tries again: what is parked is not left for good."""
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
    run, tries = service_module.asyncio.run, iter([error])

    def short(main: Any) -> Any:
        if (raised := next(tries, None)) is not None:
            raise raised
        return run(main)

    monkeypatch.setattr(service_module.asyncio, "run", short)
    service.forever()
    assert str(error) in rounds[0].errors[0]
    assert pair.arrived(queue) == 3


def test_a_round_that_is_cut_short_at_its_end_keeps_what_it_moved(
    pair: Pair, backlog: Backlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop's own farewell may need a thread that is not to be had."""
    queue = pair.queue()
    backlog.park(queue, *numbered(3))
    run = service_module.asyncio.run

    def short(main: Any) -> Any:
        run(main)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(service_module.asyncio, "run", short)
    done = Service(pair.primary_namespace(), pair.secondary_namespace(), [0], str(tmp_path)).once()
    assert done.moved == 3
    assert not done.errors
    assert pair.arrived(queue) == 3


def test_a_journal_that_cannot_be_closed_for_want_of_a_thread(
    pair: Pair, backlog: Backlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is only not marked as finished: other queues are drained to their end, and what was moved is told."""
    queue = pair.queue()
    for index in range(2):
        backlog.park(queue, *numbered(3), index=index)

    async def call_in_thread(call: Any, name: str) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(service_module, "call_in_thread", call_in_thread)
    done = Service(pair.primary_namespace(), pair.secondary_namespace(), [0, 1], str(tmp_path)).once()
    assert [(each.delivered, each.error) for each in done.queues] == [(3, None), (3, None)]


# --- from what was said to what is done ----------------------------------------------------------------------------


def unusual_config(folder: Path, monkeypatch: pytest.MonkeyPatch) -> SyphonConfig:
    """A configuration in which nothing is as it would be if nothing were said."""
    mapping: dict[str, dict[str, Any]] = {}
    for name in ("primary", "secondary", "event_hubs"):
        reference = f"PAIRBUS_UNUSUAL_{name.upper()}"
        host = name.replace("_", "-")
        monkeypatch.setenv(
            reference, f"Endpoint=sb://{host}.example/;SharedAccessKeyName=key-of-{host};SharedAccessKey=c2VjcmV0"
        )
        mapping[name] = {"connection": f"env:{reference}", "name": f"name-of-{host}"}
    mapping["syphon"] = {
        "queues": "1,3,8",
        "late": "dead-letter",
        "retry_interval": 3,
        "idle_poll_interval": 45,
        "task_budget": 77,
        "window_messages": 123,
        "window_bytes": 5 * 1024 * 1024,
        "max_rate": 60,
    }
    mapping["ledger"] = {name: str(folder / name) for name in ("path", "checkpoint", "journal")}
    config = SyphonConfig.from_mapping(mapping)
    usual = [each.name for each in fields(config) if each.default is not MISSING]
    assert [name for name in usual if getattr(config, name) == getattr(SyphonConfig, name)] == []
    return config


def options_in(config: SyphonConfig) -> dict[str, Any]:
    """The options of a drain that a configuration says by the same name."""
    names = {each.name for each in fields(DrainOptions)} & {each.name for each in fields(SyphonConfig)}
    assert names >= {"window_messages", "window_bytes", "retry_interval", "late", "max_rate"}
    return {name: getattr(config, name) for name in names}


def identity(namespace: Namespace | None) -> tuple[str, str, str] | None:
    """A namespace's host and name, and its key's name."""
    return None if namespace is None else (namespace.host, namespace.name, namespace.credential.named_key.name)


def identity_of(name: str) -> tuple[str, str, str]:
    """That of a namespace of `unusual_config`."""
    return f"{name}.example", f"name-of-{name}", f"key-of-{name}"


class Drains:
    """Drains that only remember what they were made with, of queues that are as deep as a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *depths: dict[int, int | None]) -> None:
        self.made: list[dict[str, Any]] = []
        self.asked: list[tuple[Any, ...]] = []
        self._depths = list(depths)
        monkeypatch.setattr(service_module, "Drain", self._make)
        monkeypatch.setattr(service_module, "backlog_depths", self._ask)

    def _ask(self, secondary: Namespace, primary_name: str, indexes: Any) -> Depths:
        self.asked.append((secondary, primary_name, tuple(indexes)))
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
    told: list[Round] = []
    service = service_for(config, on_round=told.append)
    assert service.once().moved == 2
    assert [done.moved for done in told] == [2]
    (secondary, primary_name, indexes), again = drains.asked
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
    written = journals(tmp_path / "journal")
    assert [row["namespace"] for row in written] == ["name-of-primary"] * 2
    assert {row["queue_index"] for row in written} == {1, 3}


def test_a_service_rests_as_its_configuration_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry interval after a round that has moved something, the idle interval after one that found nothing."""
    drains = Drains(monkeypatch, {1: 5, 3: 7, 8: 1}, {1: 0, 3: 0, 8: 0})
    service = service_for(unusual_config(tmp_path, monkeypatch))
    pauses: list[float] = []

    def rest(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            service.stop()

    monkeypatch.setattr(service, "_rest", rest)
    service.forever()
    assert pauses == [3, 45]
    assert [made["options"].max_rate for made in drains.made] == [60 / 3] * 3


def test_a_service_without_event_hubs_and_without_a_limit(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not said is not made up."""
    for role, bus in (("PRIMARY", pair.primary), ("SECONDARY", pair.secondary)):
        monkeypatch.setenv(f"PAIRBUS_TEST_{role}", bus.connection_string)
    drains = Drains(monkeypatch, {0: 1}, {0: 0})
    service_for(SyphonConfig.load(config_of(pair, tmp_path))).once()
    (made,) = drains.made
    assert (made["event_hubs"], made["options"].max_rate) == (None, None)


def test_a_pairing_syphons_as_its_options_say(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The namespaces that it was made of, as many queues as it has, its journal, and what the options say of it."""
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
    assert drains.asked[0] == (secondary, primary.name, (0, 1, 2))
    (made,) = drains.made
    assert made["primary"] is primary
    assert made["secondary"] is secondary
    assert made["event_hubs"] is event_hubs
    assert (made["queue_index"], made["options"].late, made["options"].retry_interval) == (2, "dead-letter", 5)
    assert made["stop"]()  # it was closed
    assert [row["queue_index"] for row in journals(tmp_path)] == [2]
    assert counted["syphon"] == 3


# --- a pairing with a syphon ---------------------------------------------------------------------------------------


def test_a_pairing_brings_its_own_messages_home(pair: Pair, tmp_path: Path) -> None:
    """With enable_syphon what was parked in an outage is delivered after it, by the same process, in the journal."""
    queue = pair.queue()
    bus = pair.pairing(enable_syphon=True, syphon_journal=tmp_path, ping_primary_interval=1)
    with bus.get_queue_sender(queue) as sender:
        with pair.primary.faults.during("unavailable", queue):
            for number in range(5):
                sender.send_messages(ServiceBusMessage(f"m{number}", message_id=f"m{number}"))
            assert bus.status().entities[queue].parked == 5
        wait_until(lambda: pair.arrived(queue) == 5, 60, bus.status)
    wait_until(lambda: bus.status().operations.get("syphon", 0) >= 15, why=bus.status)
    (told,) = wait_until(lambda: pair.told("messages brought home"))
    assert (told.details["delivered"], told.details["errors"]) == (5, [])
    bus.close()
    assert {row["message_id"] for row in journals(tmp_path)} == {f"m{number}" for number in range(5)}


def test_a_faulted_half_takes_the_other_along_if_there_is_a_syphon(pair: Pair, tmp_path: Path) -> None:
    """It moves messages between the two: one without the other is of no use."""
    bus = pair.pairing(enable_syphon=True, syphon_journal=tmp_path)
    error = RuntimeError("the primary is not what it was")
    bus.primary.fault(error)
    assert bus.secondary.error is error
    wait_until(lambda: {event.details["half"] for event in pair.told("half faulted")} == {"primary", "secondary"})
    bus.close()
    wait_until(lambda: not bus._syphon._thread.is_alive())


def test_closing_a_pairing_stops_its_syphon(pair: Pair, tmp_path: Path) -> None:
    """Its thread has ended when close returns."""
    bus = pair.pairing(enable_syphon=True, syphon_journal=tmp_path)
    bus.close()
    assert not bus._syphon._thread.is_alive()


def test_a_pairing_says_that_its_journal_could_not_be_ended(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk: the event names the folder, and closing is closing all the same."""

    def full(self: JournalFolder) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(JournalFolder, "finish", full)
    bus = pair.pairing(enable_syphon=True, syphon_journal=tmp_path)
    bus.close()
    (told,) = wait_until(lambda: pair.told("syphon ended"))
    assert f"the journal {tmp_path} could not be ended in order: [Errno 28]" in told.details["error"]


def test_a_syphon_needs_a_journal_that_can_be_written(pair: Pair, tmp_path: Path) -> None:
    """Refused when the pairing is opened, naming the folder and the option."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="syphon_journal") as raised:
        pair.pairing(enable_syphon=True, syphon_journal=tmp_path / "file")
    assert str(tmp_path / "file") in str(raised.value)


def test_the_journal_is_in_the_users_state_unless_another_place_is_said(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a folder with the primary's name."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    pair.pairing(enable_syphon=True).close()
    assert (tmp_path / "pairbus" / "journal" / pair.name).is_dir()


@pytest.mark.parametrize("value", ["", 3])
def test_a_bad_journal_folder_is_refused_by_name(pair: Pair, value: Any) -> None:
    """Before anything is opened."""
    with pytest.raises(OptionError, match="syphon_journal must be the path of a folder"):
        pair.pairing(enable_syphon=True, syphon_journal=value)
