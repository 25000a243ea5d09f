"""Processes of this machine, from /proc: their parents, sessions, connections and loaded files.

The tests start each process as the leader of a session. Its descendants stay in that session even if processes between
them die, so these functions never find a process of another program.
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
    """A process as /proc showed it."""

    pid: int
    parent: int
    session: int
    command: str

    def __str__(self) -> str:
        return f"{self.pid}: {self.command[:200]}"


def of_sessions(leaders: Collection[int]) -> list[Process]:
    """Return the live processes of these sessions."""
    found = (_read(int(each.name)) for each in _PROC.iterdir() if each.name.isdigit())
    return [process for process in found if process is not None and process.session in leaders]


def _read(pid: int) -> Process | None:
    """Return a process; None if it has ended, which includes zombies."""
    try:
        # The name is in brackets and may hold brackets itself: the other fields follow the last one.
        state, parent, _, session = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[:4]
        command = (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state == _ZOMBIE else Process(pid, int(parent), int(session), command)


def below(root: int, processes: Iterable[Process]) -> list[Process]:
    """Return the descendants of a process."""
    processes = list(processes)
    found: list[Process] = []
    parents = {root}
    while children := [each for each in processes if each.parent in parents and each not in found]:
        found += children
        parents = {each.pid for each in children}
    return found


def connected_to(port: int, processes: Iterable[Process]) -> list[Process]:
    """Return the processes with a TCP connection to this port."""
    inodes = _connections(port)
    return [process for process in processes if _sockets(process.pid) & inodes]


def _connections(port: int) -> set[str]:
    """Return the inodes of sockets with an established connection to this port; IPv4."""
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
    """Return the loaded files of a process with this text in their names."""
    lines = (_PROC / str(pid) / "maps").read_text().splitlines()
    return sorted({line.split(maxsplit=5)[5] for line in lines if name in line.rpartition("/")[2]})


def kill(processes: Iterable[Process]) -> None:
    """Send SIGKILL to each process that has not ended yet."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
