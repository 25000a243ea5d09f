"""`LocalBus` from Python, and the pytest fixture of pairbus."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError

from pairbus.localbus import LocalBus, LocalBusError
from pairbus.localbus.faults.client import FaultClient
from tests.support.process_fixtures import (
    FORGETS_SOCKETS,
    active,
    bodies,
    connect,
    create,
    drain,
    is_running,
    key_of,
    send,
)
from tests.support.waiting import wait_until

pytest_plugins = ["pytester"]
pytestmark = FORGETS_SOCKETS


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Return the parent of temporary folders, and check that none is left."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield place
    assert not list(place.iterdir()), "a temporary folder was left"


def test_a_bus_lives_for_its_with_block(folders: Path) -> None:
    """It serves within the block; afterwards process and folders are gone, and its properties stay readable."""
    with LocalBus(name="northwind") as bus:
        assert (bus.name, bus.host) == ("northwind", "127.0.0.1")
        assert f":{bus.port};" in bus.connection_string
        assert "UseDevelopmentEmulator=true" in bus.connection_string
        assert "UseDevelopmentEmulator" not in bus.tls_connection_string
        ssl.create_default_context(cafile=bus.ca_file)
        create(bus, "orders")
        pid = bus.pid
        assert is_running(pid)
        assert key_of(bus.connection_string) not in repr(bus)
        assert key_of(bus.connection_string) not in repr(bus.faults)
        assert str(pid) in repr(bus)
    assert not is_running(pid)
    assert "not running" in repr(bus)
    assert bus.connection_string


def test_an_exception_in_the_block_ends_the_process(folders: Path) -> None:
    """The block's exception is raised, and the process is gone."""
    pid = 0
    with pytest.raises(ZeroDivisionError), LocalBus() as bus:  # noqa: PT012
        pid = bus.pid
        1 / 0  # noqa: B018
    assert not is_running(pid)


def test_use_before_the_start_is_refused(folders: Path) -> None:
    """Every property and method that needs a process raises an error that says so."""
    bus = LocalBus()
    for use in (
        lambda: bus.connection_string, lambda: bus.tls_connection_string, lambda: bus.ca_file, lambda: bus.pid,
        lambda: bus.faults, bus.kill, bus.pause,
    ):  # fmt: skip
        with pytest.raises(LocalBusError, match="start"):
            use()
    bus.stop()
    bus.close()
    bus.resume()


def test_start_and_stop_twice(folders: Path) -> None:
    """A second start is refused; a second stop, or a stop after a kill, does nothing."""
    with LocalBus() as bus:
        with pytest.raises(LocalBusError, match="running already"):
            bus.start()
        create(bus, "orders")
        bus.stop()
        bus.stop()
        bus.start()
        bus.kill()
        bus.stop()
        with pytest.raises(LocalBusError, match="call start\\(\\) first"):
            bus.kill()


def test_a_failed_start_has_the_output_of_the_process(folders: Path, tmp_path: Path) -> None:
    """The process's error line is in the exception, and no file is left."""
    bad = tmp_path / "entities.toml"
    bad.write_text("[[queues]]\nname = 'x'\ncolour = 'red'")
    with pytest.raises(LocalBusError, match="unknown key 'colour' in 'x' of queues"):
        LocalBus(entities=bad).start()
    with pytest.raises(LocalBusError, match="not a namespace name"), LocalBus(name="no/name"):
        pass
    with LocalBus() as bus, pytest.raises(LocalBusError, match=f"port {bus.port} is in use"):
        LocalBus(port=bus.port).start()


def test_the_store_memory_is_refused(folders: Path) -> None:
    """`:memory:` would be a file of that name, which is not what its user wants."""
    with pytest.raises(LocalBusError, match="without --store everything is in memory"):
        LocalBus(store=":memory:").start()


def test_a_restart_keeps_port_keys_and_certificate(folders: Path, tmp_path: Path) -> None:
    """Clients can connect after a restart as before; messages survive only with a store."""
    for store in (None, tmp_path / "bus.db"):
        with LocalBus(store=store) as bus:
            create(bus, "orders")
            with connect(bus.connection_string) as client:
                send(client, "orders", "kept")
            known = (bus.port, bus.connection_string, bus.ca_file, Path(bus.ca_file).read_text())
            pid = bus.pid
            assert bus.restart() is bus
            assert not is_running(pid)
            assert (bus.port, bus.connection_string, bus.ca_file, Path(bus.ca_file).read_text()) == known
            if store is None:
                create(bus, "orders")
                assert active(bus, "orders") == 0
            else:
                assert active(bus, "orders") == 1


def test_a_restart_resolves_paths_as_at_the_start(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative paths are resolved when the bus is made: a program that changes its directory loses no message."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    (here / "entities.toml").write_text("[[queues]]\nname = 'orders'")
    monkeypatch.chdir(here)
    with LocalBus(store="bus.db", entities="entities.toml") as bus:
        with connect(bus.connection_string) as client:
            send(client, "orders", "kept")
        monkeypatch.chdir(elsewhere)
        bus.restart()
        assert active(bus, "orders") == 1
    assert list(elsewhere.iterdir()) == []


def test_a_given_key_is_used_and_not_shown(folders: Path) -> None:
    """The key is not on the command line, which all users of the machine can read."""
    with LocalBus(key="dmVyeSBzZWNyZXQ=", key_name="mine") as bus:
        assert key_of(bus.connection_string) == "dmVyeSBzZWNyZXQ="
        assert "SharedAccessKeyName=mine;" in bus.connection_string
        listed = subprocess.run(["ps", "-ww", "-o", "args=", "-p", str(bus.pid)], capture_output=True, text=True)
        assert "localbus" in listed.stdout
        assert "dmVyeSBzZWNyZXQ" not in listed.stdout
        bus.restart()
        assert key_of(bus.connection_string) == "dmVyeSBzZWNyZXQ="


def test_a_client_goes_on_after_kill_and_restart(folders: Path, tmp_path: Path) -> None:
    """kill() cuts the client's connection; with the SDK's retries it goes on after restart()."""
    with LocalBus(store=tmp_path / "bus.db") as bus:
        create(bus, "orders")
        with connect(bus.connection_string, retry_total=5, retry_backoff_factor=0.1) as client:
            with client.get_queue_sender("orders") as sender:
                sender.send_messages(ServiceBusMessage("before"))
                bus.kill()
                with pytest.raises(ServiceBusError), connect(bus.connection_string) as other:
                    other.get_queue_sender("orders").send_messages(ServiceBusMessage("while down"))
                bus.restart()
                sender.send_messages(ServiceBusMessage("after"))
            with client.get_queue_receiver("orders") as receiver:
                assert bodies(drain(receiver, 60, 2)) == ["before", "after"]


def test_a_paused_bus_does_not_answer(folders: Path) -> None:
    """After pause() connections stay open without answers; after resume() everything goes on."""
    with LocalBus() as bus:
        create(bus, "orders")
        with connect(bus.connection_string) as client, client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("1"))
            bus.pause()
            begun = time.monotonic()
            with pytest.raises(OperationTimeoutError):
                sender.send_messages(ServiceBusMessage("2"), timeout=1)
            assert time.monotonic() - begun > 0.8
            bus.resume()
            bus.resume()
            sender.send_messages(ServiceBusMessage("3"))
        assert wait_until(lambda: active(bus, "orders")) >= 2
        bus.pause()
        bus.restart()
        create(bus, "orders")
        bus.pause()


def test_a_paused_bus_ends_with_its_program() -> None:
    """A program that is killed while its bus is paused leaves no process behind."""
    program = (
        "import time\nfrom pairbus.localbus import LocalBus\n"
        "bus = LocalBus().start()\nbus.pause()\nprint(bus.pid, flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T")
        parent.kill()
    wait_until(lambda: not is_running(pid), why="the paused bus has outlived its program")


def test_many_threads_may_pause_a_bus(folders: Path) -> None:
    """However many threads pause it at once, there is one watchdog, and none is left after its end."""
    with LocalBus() as bus:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: bus.pause(), range(8)))
        watches = subprocess.run(["ps", "-A", "-o", "args="], capture_output=True, text=True, check=True).stdout
        assert sum(line.endswith(f" sh {bus.pid}") for line in watches.splitlines()) == 1
        bus.resume()
        assert active_after_create(bus) == 0


def test_the_watchdog_of_a_pause_ends_with_it(folders: Path) -> None:
    """After a resume, or an end while paused, the watchdog is gone and has not killed the bus."""
    with LocalBus() as bus:

        def kill_and_restart() -> None:
            bus.kill()
            bus.restart()

        for end in (bus.resume, bus.restart, kill_and_restart):
            bus.pause()
            bus.pause()
            watchdog = bus._watchdog
            assert watchdog is not None
            assert is_running(watchdog.pid)
            end()
            assert watchdog.returncode == 0
            assert active_after_create(bus) == 0
        bus.pause()
        watchdog = bus._watchdog
        assert watchdog is not None
    assert watchdog.returncode == 0


def test_a_bus_outlives_the_thread_that_started_and_paused_it(folders: Path) -> None:
    """It belongs to the program, not to the thread that started it."""
    bus = LocalBus()
    for action in (bus.start, bus.pause, bus.resume):
        thread = threading.Thread(target=action)
        thread.start()
        thread.join()
    assert active_after_create(bus) == 0
    bus.close()


def active_after_create(bus: LocalBus) -> int:
    """Create a queue and return its number of messages: the bus answers."""
    name = f"q-{time.monotonic_ns()}"
    create(bus, name)
    return active(bus, name)


def test_a_bus_that_died_by_itself_can_be_restarted(folders: Path) -> None:
    """After its process was killed by others, stop, kill and restart still work."""
    with LocalBus() as bus:
        os.kill(bus.pid, signal.SIGKILL)
        wait_until(lambda: not is_running(bus.pid))
        bus.restart()
        create(bus, "orders")
        os.kill(bus.pid, signal.SIGKILL)
        bus.kill()
        bus.restart()
        create(bus, "orders")


def test_a_forgotten_bus_ends_with_the_program(tmp_path: Path) -> None:
    """A program that never stops its bus leaves no process behind."""
    program = "from pairbus.localbus import LocalBus\nbus = LocalBus().start()\nprint(bus.pid)\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    pid = int(done.stdout)
    wait_until(lambda: not is_running(pid), why="the bus has outlived its program")


def test_the_fixture_gives_each_test_a_bus_of_its_own(pytester: pytest.Pytester) -> None:
    """`localbus` needs no conftest, is new for each test and gone afterwards, also after a failure."""
    pytester.makepyfile(
        """
        from azure.servicebus import ServiceBusClient, ServiceBusMessage
        from azure.servicebus.management import ServiceBusAdministrationClient

        def admin(bus):
            return ServiceBusAdministrationClient.from_connection_string(
                bus.connection_string, connection_verify=bus.ca_file
            )

        def test_one(localbus):
            with open("pids", "a") as out:
                print(localbus.pid, file=out)
            with admin(localbus) as client:
                client.create_queue("orders")
            with ServiceBusClient.from_connection_string(localbus.connection_string) as client:
                with client.get_queue_sender("orders") as sender:
                    sender.send_messages(ServiceBusMessage("hello"))
            with admin(localbus) as client:
                assert client.get_queue_runtime_properties("orders").active_message_count == 1

        def test_two(localbus):
            with open("pids", "a") as out:
                print(localbus.pid, file=out)
            with admin(localbus) as client:
                assert list(client.list_queues()) == []
            with ServiceBusClient.from_connection_string(localbus.connection_string, retry_total=0) as client:
                with client.get_queue_sender("ordesr") as sender:
                    assert 0, "on purpose"
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*'ordesr', which does not exist*"])
    pids = [int(line) for line in (pytester.path / "pids").read_text().split()]
    assert len(set(pids)) == 2
    assert not [pid for pid in pids if is_running(pid)]


def test_the_fixture_is_listed_with_its_meaning(pytester: pytest.Pytester) -> None:
    """`pytest --fixtures` shows it with its description."""
    result = pytester.runpytest_subprocess("--fixtures")
    result.stdout.fnmatch_lines(["localbus*", "*empty Service Bus namespace in memory*"])


# --- faults of a bus that does not answer ------------------------------------------------------------------


def test_setting_faults_needs_a_running_bus(folders: Path) -> None:
    """Killed, stopped or closed: every call raises LocalBusError with what to do, and works again afterwards."""
    with LocalBus() as bus:
        create(bus, "orders")
        faults = bus.faults
        for end in (bus.kill, bus.stop):
            end()
            for use in (faults.list, faults.clear, faults.busy, lambda: bus.faults.drop("orders")):
                with pytest.raises(LocalBusError, match=rf"127.0.0.1:{bus.port} is not running.*restart\(\)"):
                    use()
            bus.restart()
            assert faults.list() == []
    with pytest.raises(LocalBusError, match=r"was closed.*start\(\)"):
        faults.list()


def test_setting_faults_of_a_paused_bus_times_out(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LocalBusError asks whether the bus is paused; once resumed the same client works."""
    with LocalBus() as bus:
        faults = bus.faults
        bus.pause()
        with monkeypatch.context() as patch:
            patch.setattr("pairbus.localbus.faults.client.ANSWER_SECONDS", 0.3)
            with pytest.raises(LocalBusError, match=r"has not answered for 0.3 s: is it paused\? Call resume\(\)"):
                faults.busy()
        bus.resume()
        faults.clear()
        assert faults.list() == []


def test_setting_faults_of_another_server_is_an_error(folders: Path) -> None:
    """A server that closes the connection: LocalBusError with the cause."""
    with LocalBus() as bus, socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        hanging_up = threading.Thread(target=lambda: stranger.accept()[0].close())
        hanging_up.start()
        with pytest.raises(LocalBusError, match=rf"127.0.0.1:{port} closed the connection without an answer"):
            FaultClient("127.0.0.1", port, bus.connection_string, bus.ca_file).list()
        hanging_up.join()


def test_the_exception_of_a_during_block_is_raised(folders: Path) -> None:
    """It is raised although the fault cannot be ended, because the bus is gone."""
    with LocalBus() as bus:
        with pytest.raises(ZeroDivisionError), bus.faults.during("busy"):  # noqa: PT012
            bus.kill()
            1 / 0  # noqa: B018
        bus.restart()
        with pytest.raises(LocalBusError, match="not running"), bus.faults.during("busy"):
            bus.kill()
