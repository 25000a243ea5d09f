"""The mark of a run's process: read as it was written, and dead only if that is certain."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from pairbus.syphon.journal import process_mark
from pairbus.syphon.journal.process_mark import ProcessMark, process_birth


@pytest.fixture
def dead_pid() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize("birth", ["boot/17", None])
def test_a_mark_is_read_as_it_was_written(birth: str | None) -> None:
    """Host, process id and birth in one line; the birth may be missing."""
    mark = ProcessMark("machine", 42, birth)
    assert mark.encode() == (b"machine 42 boot/17\n" if birth else b"machine 42\n")
    assert ProcessMark.decode(mark.encode()) == mark


@pytest.mark.parametrize("content", [b"", b"machine", b"machine pid", b"\xff 1"])
def test_a_file_that_holds_no_mark_is_a_value_error(content: bytes) -> None:
    """A kill may have cut it short."""
    with pytest.raises(ValueError, match=r"unpack|literal|decode"):
        ProcessMark.decode(content)


def test_this_process_is_not_dead() -> None:
    """Its mark names this machine and this process, and the same birth each time."""
    own = ProcessMark.own()
    assert (own.host, own.pid) == (socket.gethostname(), os.getpid())
    assert own == ProcessMark.own()
    assert not own.is_dead()
    assert not replace(own, birth=None).is_dead()


def test_a_process_that_ended_is_dead_on_its_own_machine_only(dead_pid: int) -> None:
    """Process ids say nothing about another machine."""
    assert ProcessMark(socket.gethostname(), dead_pid).is_dead()
    assert not ProcessMark("elsewhere", dead_pid).is_dead()
    assert not ProcessMark("elsewhere", os.getpid(), "boot/1").is_dead()


def test_a_process_id_that_another_process_uses_is_dead() -> None:
    """The birth differs: another tick of the clock, or another boot of the machine."""
    own = ProcessMark.own()
    assert own.birth is not None
    boot, start = own.birth.split("/")
    assert replace(own, birth=f"{boot}/{int(start) - 1}").is_dead()
    assert replace(own, birth=f"00000000-0000-0000-0000-000000000000/{start}").is_dead()


def test_a_process_of_another_user_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """It exists, though this user may not signal it. Nor is a number dead that no process can have."""

    def refuse(pid: int, signal: int) -> None:
        raise PermissionError

    assert not ProcessMark(socket.gethostname(), 2**80).is_dead()
    monkeypatch.setattr(os, "kill", refuse)
    assert not ProcessMark(socket.gethostname(), 1).is_dead()


def test_without_proc_only_the_process_id_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that does not tell the birth of a process writes a mark without it, and believes any id in use."""
    monkeypatch.setattr(process_mark, "process_birth", lambda pid: None)
    assert ProcessMark.own() == ProcessMark(socket.gethostname(), os.getpid())
    assert not ProcessMark(socket.gethostname(), os.getpid(), "boot/1").is_dead()


def test_the_birth_of_a_process(dead_pid: int) -> None:
    """The same for as long as it runs, another for a process that began later, and none for one that has ended."""
    assert process_birth(os.getpid()) == process_birth(os.getpid())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as later:
        assert process_birth(later.pid) not in (None, process_birth(os.getpid()))
        later.communicate(b"\n")
    assert process_birth(dead_pid) is None
