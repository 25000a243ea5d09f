"""Usage mistakes of beginners: each is refused, or explained, in one line."""

from __future__ import annotations

import subprocess
import sys

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from pairbus.localbus import LocalBus
from pairbus.localbus.bus_errors import BusError
from pairbus.localbus.faults.faults import FaultError
from pairbus.localbus.settings import HubSettings, QueueSettings, TopicSettings


def localbus(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pairbus.cli", "localbus", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--key-name", "reader:", "--key", "x"], "rights of Send, Listen, Manage"),
        (["--key-name", "reader:Send,", "--key", "x"], "rights of Send, Listen, Manage"),
        (["--ready-file", "/nonexistent/ready.json"], "the folder /nonexistent does not exist"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: list[str], said: str) -> None:
    """Missing rights of a key do not mean all rights, and a missing folder is named."""
    run = localbus(*arguments)
    assert run.returncode == 2
    assert said in run.stderr
    assert run.stderr.count("\n") == 1
    assert run.stdout == ""


def test_an_empty_input_ends_it_with_until_eof() -> None:
    """With --until-eof and nothing to read it stops at once and cleanly."""
    run = localbus("--until-eof")
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize("name", ["a/$deadletterqueue", "$management", "a/$Transfer/b"])
def test_names_of_the_service_are_refused(name: str) -> None:
    """An entity cannot have a name that the service uses itself."""
    with pytest.raises(BusError, match="belongs to the service"):
        QueueSettings(name)


@pytest.mark.parametrize("name", ["", "x" * 261])
@pytest.mark.parametrize("settings", [QueueSettings, TopicSettings, HubSettings])
def test_the_limits_of_a_name_are_in_the_error(settings: type, name: str) -> None:
    """The same limits are named for a name that is too long and for an empty one."""
    with pytest.raises(BusError, match="1 to 260 characters"):
        settings(name)
    settings("x" * 260)


def test_a_fault_on_a_missing_entity_is_refused(bus: LocalBus) -> None:
    """A typing error in a fault's entity must not let a test pass without the fault."""
    with pytest.raises(FaultError, match="no entity 'ordesr'"):
        bus.faults.busy("ordesr")
    assert bus.faults.list() == []


def test_a_missing_queue_is_named_in_the_log() -> None:
    """The SDK's error does not say which queue is missing; localbus's log does."""
    with LocalBus() as bus:
        with (
            ServiceBusClient.from_connection_string(bus.connection_string, retry_total=0) as client,
            pytest.raises(ServiceBusError),
            client.get_queue_sender("ordesr") as sender,
        ):
            sender.send_messages(ServiceBusMessage("lost?"))
        assert "'ordesr', which does not exist" in bus.log
    assert bus.log == "", "closed, and its files are gone"
