"""Values of a configuration, checked one by one: each checker gives the value in its final form, or what is wrong.

A `Problems` list is carried along, so that one reading names every mistake. What is refused is shown unless it may hold
a secret.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from pairbus.domain.backlog import told_queues

Problems = list[str]

#: No namespace can have more queues than this, so a larger index is a slip of the pen.
MOST_QUEUES = 10_000
_UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|h)")
_QUEUES = re.compile(r"\d{1,9}(?:-\d{1,9})?")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
#: Storage that files can be written to without Spark, as Spark calls it.
JOURNAL_SCHEMES = ("file", "dbfs", "abfss", "abfs", "s3", "s3a", "s3n", "gs", "gcs", "hdfs", "viewfs")
#: Account keys, shared access signatures, and a password before the host. Keys are base64 and may hold a slash: what is
#: behind a colon is taken for one up to the @, unless it is a port.
_SECRET = re.compile(
    r"(?:sig|key|secret|token|password)\w*=|sharedaccess|://[^/@]*:(?!\d{1,5}/)[^@]*@|[a-z0-9+/]{40,}=[=@]",
    re.IGNORECASE,
)
#: The scheme and the authority of a URI.
_AUTHORITY = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?]*)")


def shown(value: Any) -> str:
    """A value for an error's text, unless a secret may be in it: keys, signatures and connection strings have a `=`."""
    text = str(value) if isinstance(value, Path) else value
    plain = isinstance(text, (str, int, float, type(None))) and "=" not in repr(text) and len(repr(text)) < 100
    return repr(text) if plain else f"what is there (a {type(value).__name__}, not shown: it may hold a secret)"


def nearest(word: Any, known: Iterable[str]) -> str:
    """A question to put behind a refused word, if it looks like a slip."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6) if isinstance(word, str) else []
    return f"; did you mean {found[0]}?" if found else ""


def table(given: Any, known: Sequence[str], where: str, problems: Problems) -> dict[str, Any]:
    """A table's known entries; every other key is a problem, with the name that may have been meant."""
    if not isinstance(given, Mapping):
        problems.append(f"{where} must be a table with the keys {', '.join(known)}, not a {type(given).__name__}")
        return {}
    for key in given:
        if key not in known:
            hint = nearest(key, known) or f"; known are {', '.join(known)}"
            problems.append(f"{where} has the unknown key {shown(key)}{hint}")
    return {key: given[key] for key in known if key in given}


def duration(given: Any, least: float, most: float, said: str, name: str, problems: Problems) -> float:
    """Seconds, from a number, a `timedelta`, or text such as "30s", "2min", "500ms", "1h"."""
    seconds = math.nan
    if isinstance(given, timedelta):
        seconds = given.total_seconds()
    elif isinstance(given, str) and (match := _DURATION.fullmatch(given.strip())):
        seconds = float(match[1]) * _UNITS[match[2]]
    elif is_number(given):
        seconds = float(given)
    if least <= seconds <= most:
        return seconds
    problems.append(f'{name} must be {said}, in seconds or as text such as "30s", "2min", "500ms", not {shown(given)}')
    return least


def whole(given: Any, least: int, most: int, name: str, problems: Problems) -> int:
    """A whole number within its range."""
    if isinstance(given, int) and not isinstance(given, bool) and least <= given <= most:
        return given
    problems.append(f"{name} must be a whole number, {least} … {most}, not {shown(given)}")
    return least


def rate(given: Any, name: str, problems: Problems) -> float | None:
    """Messages a second, or nothing for no limit, which is also written 0."""
    if given is None:
        return None
    if is_number(given) and 0 <= given < math.inf:
        return float(given) or None
    problems.append(f"{name} must be a number of messages a second, 0 for no limit, not {shown(given)}")
    return None


def is_number(given: Any) -> bool:
    """Whether it is a number that has a finite float: no boolean, no text, no 10 ** 400."""
    try:
        return isinstance(given, (int, float)) and not isinstance(given, bool) and math.isfinite(given)
    except OverflowError:
        return False


def choice(given: Any, allowed: Sequence[str], name: str, problems: Problems) -> str:
    """One of a few words."""
    if isinstance(given, str) and given in allowed:
        return given
    problems.append(f"{name} must be one of {', '.join(allowed)}, not {shown(given)}{nearest(given, allowed)}")
    return allowed[0]


def queues(given: Any, name: str, problems: Problems) -> tuple[int, ...]:
    """Indexes of backlog queues: from how many there are, text such as "0-4,7", or the indexes themselves."""
    right = f'how many there are (10: indexes 0 … 9), or text with their indexes ("0-4,7"), below {MOST_QUEUES}'
    if isinstance(given, str):
        right = f'indexes such as "0-4,7", each below {MOST_QUEUES}'
    found: list[int] | None = None
    if isinstance(given, int) and not isinstance(given, bool):
        found = list(range(given)) if 1 <= given <= MOST_QUEUES else None
    elif isinstance(given, str):
        found = _indexes(given)
    elif isinstance(given, (list, tuple)) and all(isinstance(i, int) and not isinstance(i, bool) for i in given):
        found = list(given)
    if not found or min(found) < 0 or max(found) >= MOST_QUEUES:
        problems.append(f"{name} must be {right}, not {shown(given)}")
        return (0,)
    twice = sorted(index for index, times in Counter(found).items() if times > 1)
    if twice:
        problems.append(f"{name} must list each index once, not {told_queues(twice)} again: {shown(given)}")
    return tuple(sorted(set(found)))


def _indexes(text: str) -> list[int] | None:
    found: list[int] = []
    for part in text.split(","):
        if not _QUEUES.fullmatch(part.strip()):
            return None
        first, _, last = part.strip().partition("-")
        low, high = int(first), int(last or first)
        if high < low or high >= MOST_QUEUES:
            return None
        found += range(low, high + 1)
    return found


def place(given: Any, name: str, problems: Problems) -> str | None:
    """A folder that every process of a cluster finds under the same name: an absolute path or a URI, with no secret."""
    if given is None:
        return None
    text = str(given) if isinstance(given, Path) else given
    right = "an absolute path or a URI such as abfss://ledger@account.dfs.core.windows.net/pairbus"
    if not isinstance(text, str) or not text.strip():
        problems.append(f"{name} must be {right}, not {shown(given)}")
    elif _SECRET.search(text):
        problems.append(
            f"{name} must hold no key, signature or password, and what is there (not shown) seems to: it would be seen "
            "in plans and logs. Let the storage's own configuration carry them"
        )
    elif not os.path.isabs(text) and not _SCHEME.match(text):
        problems.append(f"{name} must be {right}, not {shown(given)}: executors have other working folders")
    else:
        return text.rstrip("/") or "/"
    return None


def strange_scheme(place: str) -> str | None:
    """The scheme of a URI on which no journal can be kept."""
    found = _SCHEME.match(place)
    return found[1] if found is not None and found[1].lower() not in JOURNAL_SCHEMES else None


def strange_host(place: str) -> str | None:
    """What is wrong with what a URI has for a host, and what would be right."""
    found = _AUTHORITY.match(place)
    if found is None:
        return None
    scheme, host = found[1].lower(), found[2]
    if scheme == "file" and host.lower() not in ("", "localhost"):
        return f"names the host {host}, and a folder is on the machine that looks for it: write file:///…"
    if scheme in ("abfs", "abfss") and (host.endswith("@") or not any(mark in host for mark in "@.:")):
        return f"names no storage account: write {scheme}://container@account.dfs.core.windows.net/…"
    if scheme in ("s3", "s3a", "s3n", "gs", "gcs") and not host:
        return f"names no bucket: write {scheme}://bucket/…"
    return None
