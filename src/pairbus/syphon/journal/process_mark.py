"""The process behind a run, written down so that other processes of the machine can tell if it still runs."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """A process, as the file `alive` of a run names it: host, process id and birth, separated by spaces."""

    host: str
    pid: int
    #: See `process_birth`; None if the system does not tell it.
    birth: str | None = None

    @classmethod
    def own(cls) -> ProcessMark:
        return cls(socket.gethostname(), os.getpid(), process_birth(os.getpid()))

    @classmethod
    def decode(cls, data: bytes) -> ProcessMark:
        """Return the mark that a file holds; raises ValueError if it holds none."""
        host, pid, *birth = data.decode().split()
        return cls(host, int(pid), birth[0] if birth else None)

    def encode(self) -> bytes:
        return f"{self.host} {self.pid} {self.birth or ''}".rstrip().encode() + b"\n"

    def is_dead(self) -> bool:
        """Return True if the process ran on this machine and has ended. False if that cannot be known."""
        if self.host != socket.gethostname():
            return False
        birth = process_birth(self.pid)
        if self.birth is not None and birth is not None and self.birth != birth:
            return True  # the process id belongs to another process by now
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except (OSError, OverflowError):  # a process of another user, or a number that no process has
            return False
        return False


def process_birth(pid: int) -> str | None:
    """Return the boot and the clock tick in which a process began; None where /proc does not tell them."""
    # The process id alone is used again: in every container the first process is 1.
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # The fields are counted from behind the name, which is in parentheses and may hold any character.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return f"{boot}/{int(fields[19])}"
    except (OSError, ValueError, IndexError):
        return None
