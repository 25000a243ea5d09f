"""Checks of single values: the options of a pairing, of a drain and of a configuration all use these.

Each check takes the value as given and its name, and returns it in its final form. What is wrong is appended to a list
of problems, so that a file with several mistakes is reported in one go; the check then returns some valid value.
A refused value is shown unless it may hold a secret.
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
from typing import Any, NamedTuple

from pairbus.domain.backlog import format_indexes
from pairbus.errors import OptionError

Problems = list[str]


class Range(NamedTuple):
    """The durations that an option allows, in seconds, and the same as text."""

    least: float
    most: float
    text: str


#: Any duration but none at all.
POSITIVE = Range(math.ulp(0.0), math.inf, "more than 0 s")
#: The treatment of a message whose time to live ended in the backlog.
LATE = ("deliver", "dead-letter")
#: No namespace can have more queues than this, so a larger index is a typing error.
MAX_QUEUES = 10_000
#: Storage that journals can be written to without Spark, by the schemes that Spark uses.
JOURNAL_SCHEMES = ("file", "dbfs", "abfss", "abfs", "s3", "s3a", "s3n", "gs", "gcs", "hdfs", "viewfs")

_UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|h)")
_INDEXES = re.compile(r"\d{1,9}(?:-\d{1,9})?")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_HOST = re.compile(r"(?:\[[0-9a-fA-F:.%]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)(?::\d{1,5})?")
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
#: Account keys, shared access signatures, and a password before the host. Keys are base64 and may contain a slash, so
#: the text between a colon and the next @ counts as a password, unless it is a port.
_SECRET = re.compile(
    r"(?:sig|key|secret|token|password)\w*=|sharedaccess|://[^/@]*:(?!\d{1,5}/)[^@]*@|[a-z0-9+/]{40,}=[=@]",
    re.IGNORECASE,
)
#: The scheme and the authority of a URI.
_AUTHORITY = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?]*)")


def raise_first(problems: Problems) -> None:
    if problems:
        raise OptionError(problems[0])


def shown(value: Any) -> str:
    """Return a value for the text of an error; one that may hold a secret, since it has a `=`, only by its type."""
    text = str(value) if isinstance(value, Path) else value
    plain = isinstance(text, (str, int, float, type(None))) and "=" not in repr(text) and len(repr(text)) < 100
    if plain or isinstance(value, timedelta):
        return repr(text)
    return f"<{type(value).__name__}, not shown since it may hold a secret>"


def nearest(word: Any, known: Iterable[str]) -> str:
    """Return a question to append to a refused word, if it resembles a known one."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6) if isinstance(word, str) else []
    return f"; did you mean {found[0]}?" if found else ""


def table(given: Any, known: Sequence[str], where: str, problems: Problems) -> dict[str, Any]:
    """Return a table's known entries; every other key is a problem, which names the key that may have been meant."""
    if not isinstance(given, Mapping):
        problems.append(f"{where} must be a table with the keys {', '.join(known)}, not a {type(given).__name__}")
        return {}
    for key in given:
        if key not in known:
            hint = nearest(key, known) or f"; known are {', '.join(known)}"
            problems.append(f"{where} has the unknown key {shown(key)}{hint}")
    return {key: given[key] for key in known if key in given}


def duration(given: Any, allowed: Range, name: str, problems: Problems, *, accepts_text: bool = False) -> float:
    """Return the seconds of a number or a `timedelta`; of a text such as "30s", "2min", "500ms", "1h", if accepted."""
    least, most, text = allowed
    seconds = math.nan
    if isinstance(given, timedelta):
        seconds = given.total_seconds()
    elif accepts_text and isinstance(given, str) and (match := _DURATION.fullmatch(given.strip())):
        seconds = float(match[1]) * _UNITS[match[2]]
    elif is_number(given):
        seconds = float(given)
    if least <= seconds <= most:
        return seconds
    form = 'seconds, or text such as "30s", "2min", "500ms"' if accepts_text else "seconds or timedelta"
    problems.append(f"{name} must be {text} ({form}), not {shown(given)}")
    return least


def whole(given: Any, least: int, most: int | None, name: str, problems: Problems) -> int:
    if isinstance(given, int) and not isinstance(given, bool) and given >= least and (most is None or given <= most):
        return given
    said = f"{least} or more" if most is None else f"{least} … {most}"
    problems.append(f"{name} must be a whole number, {said}, not {shown(given)}")
    return least


def rate(given: Any, name: str, problems: Problems) -> float | None:
    """Return messages a second; None for no limit, which may also be given as 0."""
    if given is None:
        return None
    if is_number(given) and 0 <= given < math.inf:
        return float(given) or None
    problems.append(f"{name} must be a number of messages a second, 0 for no limit, not {shown(given)}")
    return None


def is_number(given: Any) -> bool:
    """Return True for a number that has a finite float: no boolean, no text, no 10 ** 400."""
    try:
        return isinstance(given, (int, float)) and not isinstance(given, bool) and math.isfinite(given)
    except OverflowError:
        return False


def choice(given: Any, allowed: Sequence[str], name: str, problems: Problems) -> str:
    if isinstance(given, str) and given in allowed:
        return given
    problems.append(f"{name} must be one of {', '.join(allowed)}, not {shown(given)}{nearest(given, allowed)}")
    return allowed[0]


def flag(given: Any, name: str, problems: Problems) -> bool:
    if not isinstance(given, bool):
        problems.append(f"{name} must be True or False, not {shown(given)}")
    return given is True


def host(given: Any, name: str, problems: Problems) -> str | None:
    """Return a namespace's host without scheme and slash; None if it is no host name."""
    found = given.strip().removeprefix("sb://").rstrip("/") if isinstance(given, str) else ""
    if _HOST.fullmatch(found):
        return found
    problems.append(f"{name} must be a host name such as contoso.servicebus.windows.net, not {shown(given)}")
    return None


def label(given: Any, name: str, problems: Problems) -> str | None:
    """Return a namespace's name in lower case; None if it is no label."""
    if isinstance(given, str) and _LABEL.fullmatch(given):
        return given.lower()
    problems.append(f"{name} must be a label such as contoso (letters, digits, - _ .), not {shown(given)}")
    return None


def queues(given: Any, name: str, problems: Problems) -> tuple[int, ...]:
    """Return the indexes of backlog queues, from their number, from text such as "0-4,7", or from the indexes."""
    right = f'their number (10: indexes 0 … 9), or text with their indexes ("0-4,7"), below {MAX_QUEUES}'
    if isinstance(given, str):
        right = f'indexes such as "0-4,7", each below {MAX_QUEUES}'
    found: list[int] | None = None
    if isinstance(given, int) and not isinstance(given, bool):
        found = list(range(given)) if 1 <= given <= MAX_QUEUES else None
    elif isinstance(given, str):
        found = _indexes(given)
    elif isinstance(given, (list, tuple)) and all(isinstance(i, int) and not isinstance(i, bool) for i in given):
        found = list(given)
    if not found or min(found) < 0 or max(found) >= MAX_QUEUES:
        problems.append(f"{name} must be {right}, not {shown(given)}")
        return (0,)
    twice = sorted(index for index, times in Counter(found).items() if times > 1)
    if twice:
        problems.append(f"{name} must list each index once, not {format_indexes(twice)} again: {shown(given)}")
    return tuple(sorted(set(found)))


def _indexes(text: str) -> list[int] | None:
    found: list[int] = []
    for part in text.split(","):
        if not _INDEXES.fullmatch(part.strip()):
            return None
        first, _, last = part.strip().partition("-")
        low, high = int(first), int(last or first)
        if high < low or high >= MAX_QUEUES:
            return None
        found += range(low, high + 1)
    return found


def place(given: Any, name: str, problems: Problems) -> str | None:
    """Return a folder that all processes of a cluster find: an absolute path or a URI, without a secret in it."""
    if given is None:
        return None
    text = str(given) if isinstance(given, Path) else given
    right = "an absolute path or a URI such as abfss://ledger@account.dfs.core.windows.net/pairbus"
    if not isinstance(text, str) or not text.strip():
        problems.append(f"{name} must be {right}, not {shown(given)}")
    elif _SECRET.search(text):
        problems.append(
            f"{name} must contain no key, signature or password, and its value (not shown) seems to: plans and logs "
            "would show it. Put the secret into the storage's own configuration"
        )
    elif not os.path.isabs(text) and not _SCHEME.match(text):
        problems.append(f"{name} must be {right}, not {shown(given)}: executors have other working folders")
    else:
        return text.rstrip("/") or "/"
    return None


def local_folder(given: Any, name: str, problems: Problems) -> str | Path | None:
    """Return the path of a folder on this machine."""
    if given is None:
        return None
    if not isinstance(given, (str, Path)) or not str(given):
        problems.append(f"{name} must be the path of a folder, not {shown(given)}")
    # `Path` turns the two slashes of a URI into one. One letter before a colon is a drive, and no scheme.
    elif (scheme := _SCHEME.match(str(given))) is not None and len(scheme[1]) > 1:
        problems.append(f"{name} must be a folder of this machine, or one mounted there, not {shown(given)}")
    else:
        return given
    return None


def unknown_scheme(place: str) -> str | None:
    """Return the scheme of a URI on which no journal can be kept; None if one can."""
    found = _SCHEME.match(place)
    return found[1] if found is not None and found[1].lower() not in JOURNAL_SCHEMES else None


def wrong_authority(place: str) -> str | None:
    """Return what is wrong with a URI's host or container, and what would be right; None if nothing is."""
    found = _AUTHORITY.match(place)
    if found is None:
        return None
    scheme, authority = found[1].lower(), found[2]
    if scheme == "file" and authority.lower() not in ("", "localhost"):
        return f"names the host {authority}, but each machine looks for the folder on its own disks: write file:///…"
    if scheme in ("abfs", "abfss") and (authority.endswith("@") or not any(mark in authority for mark in "@.:")):
        return f"names no storage account: write {scheme}://container@account.dfs.core.windows.net/…"
    if scheme in ("s3", "s3a", "s3n", "gs", "gcs") and not authority:
        return f"names no bucket: write {scheme}://bucket/…"
    return None
