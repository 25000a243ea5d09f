"""Processes of this machine as /proc tells them: who belongs to whom, and who is connected to what.

Everything here begins with a process that the tests have started as the leader of a session. What it starts in turn
stays in that session, also when those between have died, so nobody else's process is ever met.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_ZOMBIE = "Z"


class Process(NamedTuple):
    """A process, as it was when somebody looked."""

    pid: int
    parent: int
    session: int
    command: str

    def __str__(self) -> str:
        return f"{self.pid}: {self.command[:200]}"


def of_sessions(leaders: Collection[int]) -> list[Process]:
    """All that live in these sessions."""
    found = (_read(int(each.name)) for each in _PROC.iterdir() if each.name.isdigit())
    return [process for process in found if process is not None and process.session in leaders]


def _read(pid: int) -> Process | None:
    """Nothing if it is gone, or is only waiting for its parent to take note of that."""
    try:
        # The name may hold anything, brackets too: what follows stands behind the last one.
        state, parent, _, session = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[:4]
        command = (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state == _ZOMBIE else Process(pid, int(parent), int(session), command)


def below(root: int, processes: Iterable[Process]) -> list[Process]:
    """The children of a process, theirs, and so on."""
    processes = list(processes)
    found: list[Process] = []
    parents = {root}
    while children := [each for each in processes if each.parent in parents and each not in found]:
        found += children
        parents = {each.pid for each in children}
    return found


def connected_to(port: int, processes: Iterable[Process]) -> list[Process]:
    """Those that have a TCP connection to this port."""
    inodes = _connections(port)
    return [process for process in processes if _sockets(process.pid) & inodes]


def _connections(port: int) -> set[str]:
    """The inodes of sockets with an established connection to this port; IPv4."""
    lines = [line.split() for line in (_PROC / "net" / "tcp").read_text().splitlines()[1:]]
    return {line[9] for line in lines if line[3] == "01" and int(line[2].rpartition(":")[2], 16) == port}


def _sockets(pid: int) -> set[str]:
    found: set[str] = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for link in (_PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if (target := os.readlink(link)).startswith("socket:["):
                    found.add(target[8:-1])
    return found


def loaded_from(pid: int, name: str) -> list[str]:
    """The files with this in their names that a process has loaded."""
    lines = (_PROC / str(pid) / "maps").read_text().splitlines()
    return sorted({line.split(maxsplit=5)[5] for line in lines if name in line.rpartition("/")[2]})


def kill(processes: Iterable[Process]) -> None:
    """SIGKILL; one that is gone already is no mistake."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
