"""`pairbus localbus`: every option, one clear line for each mistake, and an orderly end."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import CorrelationRuleFilter, FalseRuleFilter, SqlRuleFilter

from pairbus.cli import main
from pairbus.localbus import command
from pairbus.localbus.server_process import bind
from tests.support.process_fixtures import (
    FORGETS_SOCKETS,
    Command,
    active,
    administer,
    connect,
    create,
    is_running,
    key_of,
    refused,
    send,
)
from tests.support.waiting import wait_until

pytestmark = FORGETS_SOCKETS
EMULATORS_KEY = "SAS_KEY_VALUE"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """Start one process with a store and a given key, for several tests."""
    folder = tmp_path_factory.mktemp("running")
    with Command(
        "--name", "fabrikam", "--store", folder / "bus.db", "--key", EMULATORS_KEY, "--ready-file", folder / "ready"
    ) as started:  # fmt: skip
        yield started


@pytest.fixture
def refuse(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that runs the command in this process with invalid arguments and returns its error line."""

    def run(*arguments: object) -> str:
        parser = argparse.ArgumentParser()
        command.add_arguments(parser)
        assert command.run(parser.parse_args([str(each) for each in arguments])) == 2, arguments
        shown = capsys.readouterr()
        assert shown.out == ""
        return one_line(shown.err)

    return run


def one_line(said: str) -> str:
    lines = said.splitlines()
    assert len(lines) == 1, said
    assert lines[0].startswith("pairbus localbus: "), said
    return lines[0]


# --- when all is well --------------------------------------------------------------------------------------


def test_the_ready_line(running: Command, tmp_path: Path) -> None:
    """It is one line of JSON with name, host, port, connection string and CA file; the ready file has the same."""
    ready = running.ready
    assert list(ready) == ["name", "host", "port", "connection_string", "ca_file"]
    assert (ready["name"], ready["host"]) == ("fabrikam", "127.0.0.1")
    assert ready["connection_string"] == (
        f"Endpoint=sb://127.0.0.1:{ready['port']};SharedAccessKeyName=RootManageSharedAccessKey;"
        f"SharedAccessKey={EMULATORS_KEY};UseDevelopmentEmulator=true;"
    )
    assert "BEGIN CERTIFICATE" in Path(ready["ca_file"]).read_text()
    ready_file = Path(ready["ca_file"]).parents[1] / "ready"
    assert json.loads(ready_file.read_text()) == ready
    assert stat.S_IMODE(ready_file.stat().st_mode) == 0o600
    for secret in Path(ready["ca_file"]).parent.glob("server*"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_it_listens_on_loopback_only(running: Command) -> None:
    """No other address of this machine accepts a connection."""
    port = f"{running.port:04X}"
    listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if " 0A " in line]
    assert f"0100007F:{port}" in listening
    assert not [each for each in listening if each.endswith(f":{port}") and not each.startswith("0100007F")]


def test_the_name_is_that_of_the_namespace(running: Command) -> None:
    """The administration client reads the given name."""
    with administer(running) as admin:
        assert admin.get_namespace_properties().name == "fabrikam"


def test_a_port_in_use_is_refused(running: Command) -> None:
    """A second server on the port exits with code 2 and one line that names the port."""
    code, said = refused("--port", running.port)
    assert code == 2
    assert f"port {running.port} is in use" in one_line(said)


def test_a_store_in_use_is_refused(running: Command) -> None:
    """A second server on the store exits with code 2 and one line that names the file."""
    store = Path(running.ca_file).parents[1] / "bus.db"
    code, said = refused("--store", store)
    assert code == 2
    line = one_line(said)
    assert str(store) in line
    assert "another localbus" in line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_stop_it_cleanly(number: signal.Signals, tmp_path: Path) -> None:
    """After SIGTERM and Ctrl-C: exit code 0, clients are notified, nothing is lost, no file is left."""
    ready_file = tmp_path / "ready"
    arguments = ["--store", tmp_path / "bus.db", "--ready-file", ready_file, "--key", "a2V5"]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with Command(*arguments, env={"TMPDIR": str(temporary)}) as started:
        create(started, "orders")
        with connect(started.connection_string) as client:
            sender = client.get_queue_sender("orders")
            sender.send_messages(ServiceBusMessage("hello"))
            begun = time.monotonic()
            assert started.stop(number) == (0, "", "")
            assert time.monotonic() - begun < 5
            sender.close()
    assert not ready_file.exists()
    assert not list(temporary.iterdir())
    assert not list(tmp_path.glob("bus.db-*")), "a clean end leaves one file"
    with Command(*arguments) as again:
        assert active(again, "orders") == 1
        assert Path(again.ca_file).read_text() == (tmp_path / "bus.db.tls" / "ca.pem").read_text()


def test_signals_stop_it_while_it_starts(tmp_path: Path) -> None:
    """At any step of the start a signal ends it soon, with exit code 0, no output and no files."""
    steps = {
        "pairbus.localbus.entities.hubs": signal.SIGINT,
        "trustme": signal.SIGTERM,
        "pairbus.localbus.server_process.Broker": signal.SIGHUP,
        "pairbus.localbus.server_process.Server": signal.SIGINT,
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-c", STOPPED_AT.format(step=step), "--ready-file", str(tmp_path / "ready")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)},
        )
        for step in steps
    ]  # fmt: skip
    for (step, number), process in zip(steps.items(), started, strict=True):
        with process:
            assert process.stdout is not None
            line = process.stdout.readline()
            process.send_signal(number)
            assert line == "here\n", step
            assert process.communicate(timeout=30) == ("", ""), step
        assert process.returncode == 0, step
    assert not list(tmp_path.iterdir())


#: A program that runs the command and halts at the import of a module, or at the call of a module's attribute.
STOPPED_AT = """
import builtins, sys, time

def halt(*_, **__):
    print("here", flush=True)
    time.sleep(60)

def trap(name, *rest, real=builtins.__import__):
    if "{step}" in (name, f"pairbus.localbus.{{name}}"):
        halt()
    module = real(name, *rest)
    home, _, part = "{step}".rpartition(".")
    if home == "pairbus.localbus.server_process" and home in sys.modules and hasattr(sys.modules[home], part):
        setattr(sys.modules[home], part, halt)
    return module

builtins.__import__ = trap
from pairbus.cli import main
sys.exit(main(["localbus", *sys.argv[1:]]))
"""


def test_a_hangup_stops_it_unless_it_is_ignored() -> None:
    """The end of its terminal ends it cleanly; started with nohup it goes on."""
    with Command() as plain, Command(under=("nohup",)) as staying:
        assert plain.stop(signal.SIGHUP) == (0, "", "")
        staying.process.send_signal(signal.SIGHUP)
        create(staying, "orders")
        assert staying.stop()[0] == 0


def test_a_stale_ready_file_is_removed_first(tmp_path: Path) -> None:
    """The file of a killed process is removed before anything else, also if the start then fails."""
    ready_file = tmp_path / "ready"
    with Command("--ready-file", ready_file) as started:
        started.stop(signal.SIGKILL)
    assert json.loads(ready_file.read_text()) == started.ready
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, said = refused("--ready-file", ready_file, "--port", taken.getsockname()[1])
    assert (code, ready_file.exists()) == (2, False), said


@pytest.mark.parametrize(("output", "reason"), [("full", "No space left"), ("closed", "closed"), ("pipe", "pipe")])
def test_a_ready_line_that_cannot_be_printed(output: str, reason: str) -> None:
    """The process exits with code 2 and one line with the reason."""
    read, written = os.pipe() if output == "pipe" else (-1, os.open("/dev/full", os.O_WRONLY))
    if output == "pipe":
        os.close(read)
    closing = ["sh", "-c", 'exec "$@" >&-', "sh"] if output == "closed" else []
    try:
        shown = subprocess.run(
            [*closing, sys.executable, "-m", "pairbus.cli", "localbus"],
            stdout=written, stderr=subprocess.PIPE, text=True, timeout=20,
        )  # fmt: skip
    finally:
        os.close(written)
    assert shown.returncode == 2
    assert reason in one_line(shown.stderr)


def test_it_stops_while_a_client_is_silent() -> None:
    """A client that never reads cannot delay the end."""
    with Command() as started, socket.create_connection((started.host, started.port)) as idle:
        idle.sendall(b"AMQP\x03\x01\x00\x00")
        code, _, said = started.stop()
    assert (code, said) == (0, "")


def test_it_stops_at_the_end_of_its_input() -> None:
    """With --until-eof the end of standard input ends the process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pairbus.cli", "localbus", "--until-eof"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        assert process.stdout.readline()
        process.stdin.write("hello\n")
        process.stdin.flush()
        time.sleep(0.1)
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(10) == 0


def test_a_bus_stops_when_its_program_is_killed(tmp_path: Path) -> None:
    """A killed program leaves no localbus process behind."""
    program = (
        "import sys, time\nfrom pairbus.localbus import LocalBus\n"
        "bus = LocalBus().start()\nprint(bus.pid, flush=True)\ntime.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_running(child)
        parent.kill()
    wait_until(lambda: not is_running(child), why="the bus has outlived its parent")


# --- keys ----------------------------------------------------------------------------------------------------


def test_keys_are_random_unless_given(tmp_path: Path) -> None:
    """Two starts make two keys; a file or the environment keeps a key off the command line."""
    with Command() as first, Command("--key-name", "mine") as second:
        assert key_of(first.connection_string) != key_of(second.connection_string)
        assert "SharedAccessKeyName=mine;" in second.connection_string
    (tmp_path / "key").write_text("ZnJvbSBhIGZpbGU=\n")
    with (
        Command("--key", f"@{tmp_path / 'key'}") as first,
        Command("--key", "env:MY_KEY", env={"MY_KEY": "ZnJvbSBlbnY="}) as second,
    ):
        assert key_of(first.connection_string) == "ZnJvbSBhIGZpbGU="
        assert key_of(second.connection_string) == "ZnJvbSBlbnY="
        arguments = Path(f"/proc/{second.process.pid}/cmdline").read_bytes()
        assert b"ZnJvbSBlbnY" not in arguments


# --- entities ------------------------------------------------------------------------------------------------


ENTITIES = """
[[queues]]
name = "first"
forward_to = "second"

[[queues]]
name = "second"
forward_to = "third"
lock_duration = "PT30S"

[[queues]]
name = "third"
lock_duration = 20
max_delivery_count = 3
requires_session = false
default_message_time_to_live = 3600.5
user_metadata = "kept"

[[topics]]
name = "news"

[[topics.subscriptions]]
name = "all"

[[topics.subscriptions]]
name = "forwarding"
forward_to = "third"
rules = [{ name = "big", sql = "size > 10", action = "SET big = TRUE" }, { name = "none", false = true }]

[[topics.subscriptions]]
name = "red"
[[topics.subscriptions.rules]]
name = "red"
correlation = { label = "red", properties = { weight = 3, ripe = true } }

[[event_hubs]]
name = "telemetry"
partition_count = 2
"""


def test_entities_come_from_a_file(tmp_path: Path) -> None:
    """All entities are created, in any order of the file; a second start with the file is no error."""
    file = tmp_path / "entities.toml"
    file.write_text(ENTITIES)
    arguments = ["--entities", file, "--store", tmp_path / "bus.db", "--key", "a2V5"]
    with Command(*arguments) as started, administer(started) as admin:
        third = admin.get_queue("third")
        assert (third.max_delivery_count, third.user_metadata) == (3, "kept")
        assert third.lock_duration == timedelta(seconds=20)
        assert third.default_message_time_to_live == timedelta(seconds=3600.5)
        assert admin.get_queue("second").lock_duration == timedelta(seconds=30)
        rules = {rule.name: rule for rule in admin.list_rules("news", "forwarding")}
        assert rules["big"].filter.sql_expression == "size > 10"
        assert rules["big"].action.sql_expression == "SET big = TRUE"
        assert isinstance(rules["big"].filter, SqlRuleFilter)
        assert isinstance(rules["none"].filter, FalseRuleFilter)
        (red,) = admin.list_rules("news", "red")
        assert isinstance(red.filter, CorrelationRuleFilter)
        assert (red.filter.label, red.filter.properties) == ("red", {"weight": 3, "ripe": True})
        assert [rule.name for rule in admin.list_rules("news", "all")] == ["$Default"]
        with connect(started.connection_string) as client:
            send(client, "first", "through three")
        assert admin.get_queue_runtime_properties("third").active_message_count == 1
        admin.update_queue(admin.get_queue("third"), max_delivery_count=7)
        started.stop()
    with Command(*arguments) as again, administer(again) as admin:
        assert admin.get_queue("third").max_delivery_count == 7, "what is there already is left alone"
        assert admin.get_queue_runtime_properties("third").active_message_count == 1


BAD_FILES: dict[str, tuple[str | bytes, str]] = {
    "not toml": ("queues = [", "not valid TOML"),
    "not utf-8": (b"\xff\xfe", "not valid TOML"),
    "nested too deeply": ("queues = " + "[" * 20_000 + "]" * 20_000, "not valid TOML"),
    "number without end": ("queues = " + "9" * 10_000, "not valid TOML"),
    "unknown top": ("[[queue]]\nname = 'x'", "unknown key 'queue' in the file"),
    "unknown key": ("[[queues]]\nname = 'x'\nlock = 3", "unknown key 'lock' in 'x' of queues"),
    "unknown in a subscription": (
        "[[topics]]\nname='t'\n[[topics.subscriptions]]\nname='s'\nfilter=1",
        "unknown key 'filter' in 's' of subscriptions of topic 't'",
    ),
    "a queue's in a subscription": (
        "[[topics]]\nname='t'\n[[topics.subscriptions]]\nname='s'\nrequires_duplicate_detection=true",
        "unknown key 'requires_duplicate_detection' in 's' of subscriptions of topic 't'",
    ),
    "a subscription's in a queue": (
        "[[queues]]\nname='x'\ndead_lettering_on_filter_evaluation_exceptions=false",
        "unknown key 'dead_lettering_on_filter_evaluation_exceptions' in 'x' of queues",
    ),
    "subscription with a slash": (
        "[[topics]]\nname='t'\n[[topics.subscriptions]]\nname='a/b'", "subscription name 'a/b' may not hold '/'",
    ),
    "subscription with a long name": (
        f"[[topics]]\nname='t'\n[[topics.subscriptions]]\nname='{'a' * 51}'", "is longer than 50 characters",
    ),
    "queue called as a subscription": ("[[queues]]\nname = 't/Subscriptions/zz'", "'t/Subscriptions/zz' is how"),
    "hub called as a rule": ("[[event_hubs]]\nname = 't/subscriptions/a/rules/b'", "no queue, topic or event hub"),
    "topic called as a listing": ("[[topics]]\nname = 't/subscriptions'", "'t/subscriptions' is how"),
    "unknown in a rule": (
        "[[topics]]\nname='t'\n[[topics.subscriptions]]\nname='s'\nrules=[{name='r', like='x'}]",
        "unknown key 'like' in rule 'r' of 's' of subscriptions of topic 't'",
    ),
    "no name": ("[[queues]]\nlock_duration = 3", "no name"),
    "not a table": ("queues = ['x']", "must be a list of tables"),
    "not a list": ("[queues]\nname = 'x'", "must be a list of tables"),
    "wrong type": (
        "[[queues]]\nname = 'x'\nmax_delivery_count = '3'",
        "max_delivery_count of 'x' of queues must be a whole number",
    ),
    "boolean as number": ("[[queues]]\nname = 'x'\nmax_delivery_count = true", "must be a whole number"),
    "bad duration": ("[[queues]]\nname = 'x'\nlock_duration = 'soon'", "must be seconds or ISO 8601"),
    "endless duration": ("[[queues]]\nname = 'x'\nlock_duration = inf", "must be seconds or ISO 8601"),
    "lock too long": ("[[queues]]\nname = 'x'\nlock_duration = 301", "'x' of queues: The supplied lock time exceeds"),
    "bad name": ("[[queues]]\nname = 'x?'", "entity path"),
    "bad status": ("[[queues]]\nname = 'x'\nstatus = 'Asleep'", "Status"),
    "twice": ("[[queues]]\nname = 'x'\n[[queues]]\nname = 'X'", "'X' is defined twice"),
    "queue and topic": ("[[queues]]\nname = 'x'\n[[topics]]\nname = 'x'", "'x' is defined twice"),
    "forward to nowhere": ("[[queues]]\nname = 'x'\nforward_to = 'y'", "'y' of 'x' does not exist"),
    "forward with sessions": (
        "[[queues]]\nname='y'\n[[queues]]\nname='x'\nforward_to='y'\nrequires_session=true",
        "'x' requires sessions",
    ),
    "forward in a circle": (
        "[[queues]]\nname='x'\nforward_to='y'\n[[queues]]\nname='y'\nforward_to='x'", "does not exist",
    ),
    "bad sql": (
        "[[topics]]\nname='t'\n[[topics.subscriptions]]\nname='s'\nrules=[{name='r', sql='a ='}]", "t",
    ),
    "rule with no text as name": (
        "[[topics]]\nname='t'\n[[topics.subscriptions]]\nname='s'\nrules=[{name=3}]", "name of a rule",
    ),
    "two filters": (
        "[[topics]]\nname='t'\n[[topics.subscriptions]]\nname='s'\nrules=[{name='r', sql='1=1', true=true}]",
        "give one filter",
    ),
    "true that is false": (
        "[[topics]]\nname='t'\n[[topics.subscriptions]]\nname='s'\nrules=[{name='r', true=false}]", "can only be true",
    ),
    "two rules of a name": (
        "[[topics]]\nname='t'\n[[topics.subscriptions]]\nname='s'\nrules=[{name='r'}, {name='R'}]", "same name",
    ),
    "correlation of a number": (
        "[[topics]]\nname='t'\n[[topics.subscriptions]]\nname='s'\nrules=[{name='r', correlation={label=3}}]",
        "label of correlation of rule 'r'",
    ),
    "correlation that is spelt": (
        "[[topics]]\nname='t'\n[[topics.subscriptions]]\nname='s'\nrules=[{name='r', correlation={spelling='x'}}]",
        "unknown key 'spelling' in correlation of rule 'r'",
    ),
    "correlation of a list": (
        "[[topics]]\nname='t'\n[[topics.subscriptions]]\nname='s'\n"
        "rules=[{name='r', correlation={properties={a=[1]}}}]",
        "properties of correlation",
    ),
}  # fmt: skip


def test_every_mistake_in_the_file_is_named(tmp_path: Path, refuse: Callable[..., str]) -> None:
    """A bad file, an unknown key or a bad value: one line with the file and the place, exit code 2."""
    for what, (text, expected) in BAD_FILES.items():
        file = tmp_path / "entities.toml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        line = refuse("--entities", file)
        assert expected in line.removeprefix(f"pairbus localbus: {file}: "), (what, line)
        assert str(file) in line, (what, line)


def test_a_bad_file_leaves_the_store_as_it_was(tmp_path: Path, refuse: Callable[..., str]) -> None:
    """If one entity cannot be created, none of the file's is, not even those before it."""
    file, store = tmp_path / "entities.toml", tmp_path / "bus.db"
    file.write_text("[[queues]]\nname = 'good'\n[[queues]]\nname = 'x'\nforward_to = 'nowhere'")
    assert "nowhere" in refuse("--entities", file, "--store", store)
    with Command("--store", store) as started, administer(started) as admin:
        assert list(admin.list_queues()) == []


# --- mistakes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--port", "abc"), "pairbus localbus: argument --port: "),
        (("--name",), "pairbus localbus: argument --name: expected one argument"),
        (("--bogus",), "pairbus localbus: unrecognized arguments: --bogus"),
        (("stray",), "pairbus localbus: unrecognized arguments: stray"),
    ],
)
def test_a_mistake_in_the_options_is_one_line(
    arguments: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line says what is wrong and refers to --help; exit code 2."""
    with pytest.raises(SystemExit) as caught:
        main(["localbus", *arguments])
    assert caught.value.code == 2
    shown = capsys.readouterr()
    (line,) = shown.err.splitlines()
    assert line.startswith(expected)
    assert line.endswith("--help)")
    assert shown.out == ""


def test_other_hosts_are_refused_with_the_reason(refuse: Callable[..., str]) -> None:
    """It serves this machine only, and the error says why."""
    for host in ("0.0.0.0", "::", "localhost", "192.168.1.7"):
        line = refuse("--host", host)
        assert host in line
        assert "127.0.0.1 only" in line
        assert "from other machines" in line


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--port", "65536"], "--port 65536"),
        (["--port", "-1"], "--port -1"),
        (["--name", "no/name"], "--name 'no/name'"),
        (["--name", ""], "--name ''"),
        (["--name", "ümlaut"], "--name"),
        (["--store", "{tmp}/no/folder/bus.db"], "does not exist"),
        (["--store", "{tmp}"], "is a folder"),
        (["--entities", "{tmp}/missing.toml"], "missing.toml: No such file"),
        (["--ready-file", "{tmp}/no/folder/ready"], "--ready-file"),
        (["--tls-folder", "{tmp}/file/x"], "certificates"),
        (["--key", ""], "must not be empty"),
        (["--key", "a;b"], "';'"),
        (["--key", "@{tmp}/missing"], "No such file"),
        (["--key", "env:NOT_THERE"], "NOT_THERE"),
        (["--key", "a2V5", "--key", "a2V6"], "give each key a name"),
        (["--key-name", "a", "--key-name", "b", "--key", "a2V5"], "one key for each name"),
        (["--key-name", "a", "--key-name", "a"], "same name"),
        (["--key-name", "a:Read"], "Send, Listen, Manage"),
        (["--key-name", "a;b"], "--key-name"),
        (["--key-name", ":Send"], "--key-name"),
    ],
)
def test_every_wrong_argument_is_named(
    arguments: list[str],
    expected: str,
    tmp_path: Path,
    refuse: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One line, exit code 2, and no file is left."""
    (tmp_path / "file").touch()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    assert expected in refuse(*(each.replace("{tmp}", str(tmp_path)) for each in arguments))
    assert not list((tmp_path / "temporary").iterdir())


def test_other_files_are_not_used_as_a_store(tmp_path: Path, refuse: Callable[..., str]) -> None:
    """A text file, another program's database, a later version's store and a damaged one are named and not changed."""
    text = tmp_path / "text"
    text.write_text("no database at all, just some text that is long enough to be one" * 20)
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as db:
        db.execute("CREATE TABLE messages (id INTEGER, mine TEXT)")
    db.close()
    later = tmp_path / "later.db"
    with sqlite3.connect(later) as db:
        db.execute("CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT)")
        db.execute("INSERT INTO about VALUES ('schema', '99')")
    db.close()
    for file, expected in ((text, "not a localbus store"), (foreign, "another program's"), (later, "another version")):
        before = file.read_bytes()
        line = refuse("--store", file)
        assert expected in line
        assert str(file) in line
        assert file == later or file.read_bytes() == before


def test_a_damaged_store_is_refused(tmp_path: Path, refuse: Callable[..., str]) -> None:
    """A store with inconsistent contents: one line, exit code 2."""
    store = tmp_path / "bus.db"
    with Command("--store", store) as started:
        create(started, "orders")
        started.stop()
    with sqlite3.connect(store) as db:
        db.execute("UPDATE entities SET settings = 'nonsense'")
    db.close()
    assert "damaged" in refuse("--store", store)


def test_a_read_only_store_is_refused(tmp_path: Path, refuse: Callable[..., str]) -> None:
    """One line, exit code 2."""
    if os.geteuid() == 0:
        store = "/proc/version"
    else:
        (tmp_path / "bus.db").touch(mode=0o400)
        store = str(tmp_path / "bus.db")
    assert store in refuse("--store", store, "--tls-folder", tmp_path / "tls")


def test_paths_that_are_not_files_are_refused(tmp_path: Path, refuse: Callable[..., str]) -> None:
    """For a folder, `:memory:` or a device: one line, and no file is created or removed."""
    folder = tmp_path / "folder"
    folder.mkdir()
    assert f"--store {folder} is a folder" in refuse("--store", folder)
    assert f"--ready-file {folder} is a folder" in refuse("--ready-file", folder)
    assert "--store :memory: is not a file" in refuse("--store", ":memory:")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert f"--ready-file {pipe} exists and is not a regular file" in refuse("--ready-file", pipe)
    (tmp_path / "other.db").write_text("no database")
    assert "other.db" in refuse("--store", tmp_path / "other.db")
    assert "name a smaller TOML file" in refuse("--entities", "/dev/zero")
    notes = tmp_path / "notes"
    for text in ("keep me", '{"connection_string": "mine"}', "7", "x" * 20_000, "[" * 10_000):
        notes.write_text(text)
        assert f"--ready-file {notes} contains something other than a ready line" in refuse("--ready-file", notes)
        assert notes.read_text() == text
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder", "notes", "other.db", "pipe"]


def test_certificates_of_others_are_not_replaced(tmp_path: Path, refuse: Callable[..., str]) -> None:
    """A folder with another CA or a damaged certificate: one line, and every file is unchanged."""
    theirs = tmp_path / "ca.pem"
    theirs.write_text("another authority")
    assert f"{theirs} was not written by localbus" in refuse("--tls-folder", tmp_path)
    assert theirs.read_text() == "another authority"
    damaged = tmp_path / "server.pem"
    damaged.write_text("no certificate")
    assert f"{damaged} does not contain a usable certificate" in refuse("--tls-folder", tmp_path)
    assert (theirs.read_text(), damaged.read_text()) == ("another authority", "no certificate")
    theirs.unlink()
    assert f"{damaged} was not written by localbus" in refuse("--tls-folder", tmp_path)
    assert damaged.read_text() == "no certificate"


def test_certificates_are_recreated_after_a_killed_start(tmp_path: Path) -> None:
    """Its own server.pem without ca.pem is made anew, and clients trust it."""
    with Command("--tls-folder", tmp_path) as started:
        started.stop()
    before = (tmp_path / "server.pem").read_bytes()
    (tmp_path / "ca.pem").unlink()
    with Command("--tls-folder", tmp_path) as again:
        create(again, "orders")
        assert (tmp_path / "server.pem").read_bytes() != before
        assert again.stop()[0] == 0


def test_a_ready_file_that_cannot_be_written_is_refused(tmp_path: Path, refuse: Callable[..., str]) -> None:
    """The error comes at the end of the start: still one line, and the server is shut down in order."""
    (tmp_path / "ready.part").mkdir()
    assert f"--ready-file {tmp_path / 'ready'}: Is a directory" in refuse("--ready-file", tmp_path / "ready")


def test_unknown_options_and_help() -> None:
    """--help names every option and exits with 0; an unknown option exits with 2."""
    run = [sys.executable, "-m", "pairbus.cli", "localbus"]
    shown = subprocess.run([*run, "--help"], capture_output=True, text=True, timeout=20)
    assert shown.returncode == 0
    for option in (
        "--name", "--port", "--store", "--key-name", "--key", "--entities", "--ready-file", "--accept-any-jwt",
        "--tls-folder", "--until-eof", "--host",
    ):  # fmt: skip
        assert f"{option} " in shown.stdout or f"{option}\n" in shown.stdout, option
    wrong = subprocess.run([*run, "--portt", "3"], capture_output=True, text=True, timeout=20)
    assert wrong.returncode == 2
    assert wrong.stderr == "pairbus localbus: unrecognized arguments: --portt 3 (see pairbus localbus --help)\n"
    number = subprocess.run([*run, "--port", "many"], capture_output=True, text=True, timeout=20)
    assert number.returncode == 2
    assert "--port" in number.stderr


def test_a_free_port_is_not_ephemeral() -> None:
    """Port 0 takes a port that no client's connection can get while localbus restarts."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    sock = bind(0)
    with sock:
        assert sock.getsockname()[1] < low
