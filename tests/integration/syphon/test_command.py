"""Exit codes and output of `pairbus drain`: 0 means that only held messages are left."""

from __future__ import annotations

import signal
from datetime import timedelta
from pathlib import Path

import pytest

from pairbus.syphon import service
from pairbus.syphon.depths import DepthQuery, log_warnings
from pairbus.syphon.drain import completion
from pairbus.syphon.drain.drain import DrainOptions
from tests.support.backlog import Backlog, numbered
from tests.support.counting import park_many, take_and_die
from tests.support.drain_command import drain, draining, write_config
from tests.support.pairing import Pair
from tests.support.waiting import wait_until


def test_a_backlog_that_does_not_exist_is_not_empty(pair: Pair, backlog: Backlog, tmp_path: Path) -> None:
    """A name that no sender uses, or a wrong secondary: exit code 1 and a hint."""
    code, out, err = drain(pair, "--config", str(write_config(pair, tmp_path)), "--queues", "50-52")
    assert (code, out) == (1, "")
    assert f"has no backlog queue {pair.name}/x-servicebus-transfer/0, nor any other of {pair.name}" in err
    assert "the senders use" in err
    backlog.make(2)
    code, _, err = drain(pair, "--config", str(write_config(pair, tmp_path)), "--queues", "50-52")
    assert code == 1
    assert f"has no backlog queue 50-52 of {pair.name}: there are 2" in err


def test_queues_that_were_left_out_are_listed(pair: Pair, backlog: Backlog, tmp_path: Path) -> None:
    """The backlog is not reported as empty while another of its queues is not."""
    queue = pair.queue()
    backlog.park(queue, *numbered(3))
    backlog.park(queue, *numbered(5), index=2)
    code, out, err = drain(pair, "--config", str(write_config(pair, tmp_path)), "--queues", "0")
    assert code == 0, err
    assert "queue 2: 5 messages, which [syphon] queues or --queues leaves out" in out
    assert "the requested part of the backlog is empty" in out
    assert pair.arrived(queue) == 3


def test_messages_that_another_has_locked_are_waited_for(
    pair: Pair, backlog: Backlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process leaves messages locked, which are delivered when the locks end."""
    monkeypatch.setattr(service, "_LOCKED_PAUSE_SECONDS", 0.5)
    queue = pair.queue()
    # Longer than a busy machine may take to settle messages that it has locked again.
    park_many(backlog, queue, numbered(5), lock_duration=timedelta(seconds=12))
    take_and_die(backlog, 5)
    made = service.Service(
        pair.primary_namespace(), pair.secondary_namespace(), [0], str(tmp_path / "journal"), options=DrainOptions()
    )
    done = made.once()
    assert (done.is_empty, done.moved, done.errors) == (True, 5, ())
    assert pair.arrived(queue) == 5


def test_messages_that_stay_locked_are_an_error(
    pair: Pair, backlog: Backlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is not reported as empty."""
    monkeypatch.setattr(service, "_LOCKED_PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(completion, "OUT_OF_REACH_SECONDS", 0.5)
    park_many(backlog, pair.queue(), numbered(5))
    take_and_die(backlog, 5)
    made = service.Service(
        pair.primary_namespace(), pair.secondary_namespace(), [0], str(tmp_path / "journal"), options=DrainOptions()
    )
    done = made.once()
    assert not done.is_empty
    assert done.errors == ("queue 0: 5 of 5 messages are out of reach; another receiver may have locked them",)


def test_one_namespace_cannot_be_both(
    pair: Pair, backlog: Backlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Primary and secondary at once, by different references: refused before a message is received."""
    monkeypatch.setenv("PAIRBUS_TEST_OTHER", pair.secondary.connection_string)
    backlog.park(pair.queue(), *numbered(2))
    text = write_config(pair, tmp_path).read_text()
    same = tmp_path / "same.toml"
    same.write_text(text.replace("PAIRBUS_TEST_PRIMARY", "PAIRBUS_TEST_OTHER"))
    code, _, err = drain(pair, "--config", str(same))
    assert code == 2
    assert "primary and secondary are the same namespace" in err
    assert backlog.depth() == 2


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("abfss://container/x", "journal names no storage account"),
        ("s3://b/x?colour=red", "no journal can be kept on s3:"),
    ],
)
def test_a_journal_at_an_invalid_uri(pair: Pair, backlog: Backlog, tmp_path: Path, place: str, expected: str) -> None:
    """Exit code 2 and one line, whether the configuration or the storage's library refuses it."""
    backlog.park(pair.queue(), *numbered(2))
    path = write_config(pair, tmp_path)
    path.write_text(path.read_text().replace(str(tmp_path / "journal"), place))
    code, out, err = drain(pair, "--config", str(path))
    assert (code, out) == (2, "")
    assert expected in err
    assert len(err.splitlines()) == 1
    assert backlog.depth() == 2


def test_dead_letters_are_logged_with_their_reason(pair: Pair, backlog: Backlog, tmp_path: Path) -> None:
    """By destination, because its name may be misspelt."""
    backlog.park("no-such-queue", *numbered(4))
    code, out, err = drain(pair, "--config", str(write_config(pair, tmp_path)), "--queues", "0")
    assert (code, "4 dead-lettered" in out) == (0, True)
    assert "queue 0: 4 for no-such-queue go to its dead-letter queue (amqp:not-found: " in err


def test_a_primary_that_is_down_is_named(pair: Pair, backlog: Backlog, tmp_path: Path) -> None:
    """Rather than the queue that could not be drained because of it."""
    backlog.park(pair.queue(), *numbered(2))
    pair.primary.kill()
    code, out, _ = drain(pair, "--config", str(write_config(pair, tmp_path)), "--queues", "0")
    assert code == 1
    assert f"the primary {pair.name} cannot be reached: 127.0.0.1" in out
    assert "no reason given" not in out


def test_a_primary_that_is_down_beside_event_hubs(pair: Pair, backlog: Backlog, tmp_path: Path) -> None:
    """Messages for event hubs may still be delivered, those for the primary are held back: exit code 1."""
    backlog.park(pair.queue(), *numbered(2))
    config = write_config(pair, tmp_path)
    config.write_text(config.read_text() + '\n[event_hubs]\nconnection = "env:PAIRBUS_TEST_SECONDARY"\nname = "hubs"\n')
    pair.primary.kill()
    code, out, err = drain(pair, "--config", str(config), "--queues", "0")
    assert code == 1, err
    assert f"the primary {pair.name} cannot be reached: 127.0.0.1" in out
    assert backlog.depth() == 2


def test_a_queue_with_a_delivery_limit_is_a_warning(
    pair: Pair, backlog: Backlog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After ten deliveries the service itself dead-letters a held message, which has no row then."""
    backlog.make(0, max_delivery_count=10)
    backlog.make(1)
    backlog.make(2, max_delivery_count=10)
    depths = DepthQuery(pair.name, [0, 1, 2]).run(pair.secondary_namespace())
    assert depths.delivery_limits == {0: 10, 2: 10}
    log_warnings(depths, pair.secondary_namespace(), pair.name)
    (warning,) = caplog.messages
    assert warning.startswith(f"backlog queue 0,2 of {pair.name} has max_delivery_count=10: ")
    code, _, err = drain(pair, "--config", str(write_config(pair, tmp_path)))
    assert (code, warning in err) == (0, True)


def test_queues_on_the_command_line_are_indexes(pair: Pair, tmp_path: Path) -> None:
    code, _, err = drain(pair, "--config", str(write_config(pair, tmp_path)), "--queues", "abc")
    assert code == 2
    assert '--queues must be indexes such as "0-4,7"' in err


def test_a_stop_before_the_backlog_is_empty(pair: Pair, backlog: Backlog, tmp_path: Path) -> None:
    """Exit code 1, because the backlog is not empty; the messages in flight are settled."""
    queue = pair.queue()
    backlog.park(queue, *numbered(200))
    with draining(pair, "--config", str(write_config(pair, tmp_path)), "--queues", "0", "--max-rate", "20") as command:
        wait_until(lambda: pair.arrived(queue) > 0, 30)
        command.process.send_signal(signal.SIGTERM)
        code, out, err = command.result()
    assert code == 1, err
    assert "stopped before the backlog was empty" in out
    assert pair.arrived(queue) + backlog.depth() == 200


@pytest.mark.parametrize("mode", ["--once", "--continuous"])
def test_a_journal_that_cannot_be_ended(pair: Pair, backlog: Backlog, tmp_path: Path, mode: str) -> None:
    """The disk is gone: exit code 1 and one line that names the journal. The result is printed all the same."""
    queue = pair.queue()
    backlog.park(queue, *numbered(40))
    path = str(write_config(pair, tmp_path))
    with draining(pair, "--config", path, "--queues", "0", "--max-rate", "10", mode) as command:
        wait_until(lambda: pair.arrived(queue) > 0, 30)
        (run,) = (tmp_path / "journal").iterdir()
        run.rename(tmp_path / "away")
        run.write_text("a file where a folder was")
        wait_until(lambda: pair.arrived(queue) == 40, 60)
        if mode == "--continuous":
            command.process.send_signal(signal.SIGTERM)
        code, out, err = command.result()
    assert code == 1
    expected = f"pairbus drain: the journal {tmp_path / 'journal'} could not be ended in order: "
    assert [line.startswith(expected) for line in err.splitlines()].count(True) == 1
    assert "Traceback" not in err
    assert "[secondary]" not in err
    assert ("queue 0: 40 delivered" in out) is (mode == "--once")
    assert backlog.depth() == 0
