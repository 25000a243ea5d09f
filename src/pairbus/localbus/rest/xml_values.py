"""Values in the service's XML (text, durations, times, typed properties), and a parser with limits."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat
from xml.sax.saxutils import escape

from pairbus.localbus.bus_errors import INVALID_FIELD, BusError
from pairbus.localbus.settings import FOREVER

MAX_DEPTH = 32
MAX_ELEMENTS = 20_000

XSD = "http://www.w3.org/2001/XMLSchema"
XSI = "http://www.w3.org/2001/XMLSchema-instance"
#: The namespace of .NET's own duration type, which the service uses instead of XSD's.
NET_TYPES = "http://schemas.microsoft.com/2003/10/Serialization/"

#: .NET's TimeSpan.MaxValue, which has more decimals than a timedelta.
FOREVER_TEXT = "P10675199DT2H48M5.4775807S"
#: The Python SDK sends TimeSpan.MaxValue back 42 microseconds shorter, by a rounding error.
_NEARLY_FOREVER = FOREVER - timedelta(seconds=1)
#: .NET's text for a time that has not been set.
NEVER_TEXT = "0001-01-01T00:00:00Z"

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_DURATION = re.compile(
    r"(-)?P(?:(\d{1,18})Y)?(?:(\d{1,18})M)?(?:(\d{1,18})W)?(?:(\d{1,18})D)?"
    r"(T(?:(\d{1,18})H)?(?:(\d{1,18})M)?(?:(\d{1,18}(?:\.\d{0,20})?)S)?)?",
    re.ASCII,
)
_DATE_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:T(\d\d:\d\d(?::\d\d)?)(?:\.(\d+))?)?(Z|[+-]\d\d:?\d\d)?", re.ASCII | re.IGNORECASE
)


def invalid_request(message: str) -> BusError:
    """Return the error for a request that cannot be read or has an invalid value."""
    return BusError(INVALID_FIELD, message)


def parse_xml(body: bytes) -> Element:
    """Return a document's root, with local names; refuse a DOCTYPE, deep nesting and too many elements."""
    tree = TreeBuilder()
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    depth = count = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth, count
        depth, count = depth + 1, count + 1
        if depth > MAX_DEPTH or count > MAX_ELEMENTS:
            raise invalid_request("The request body is nested too deeply or has too many elements.")
        tree.start(_local(name), {_local(key): value for key, value in attributes.items()})

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        tree.end(_local(name))

    def doctype(*_: object) -> None:
        raise invalid_request("The request body may not have a DOCTYPE.")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = tree.data
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(body, True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise invalid_request(f"The request body is not well-formed XML: {error}.") from None
    return tree.close()


def _local(name: str) -> str:
    return name.rsplit(" ", 1)[-1]


def child(parent: Element, tag: str) -> Element | None:
    """Return the child with this tag, None if there is none or it is nil."""
    found = parent.find(tag)
    return None if found is None or found.get("nil", "").lower() in ("true", "1") else found


def text_of(element: Element) -> str:
    return element.text or ""


def escape_text(text: str) -> str:
    """Return text for an element: escaped, with U+FFFD for characters that XML does not allow."""
    return escape(_NOT_XML.sub("\ufffd", text))


def escape_attribute(text: str) -> str:
    return escape(_NOT_XML.sub("\ufffd", text), {'"': "&quot;"})


def element(tag: str, content: str, attributes: str = "") -> str:
    return f"<{tag}{attributes}>{content}</{tag}>" if content else f"<{tag}{attributes}/>"


def read_duration(text: str) -> timedelta:
    """Return an ISO 8601 duration, FOREVER at most; a year has 365 days and a month 30, as in .NET."""
    match = _DURATION.fullmatch(text.strip())
    parts = match.groups() if match else ()
    if match is None or not any(parts[index] for index in (1, 2, 3, 4, 6, 7, 8)):
        raise ValueError(f"'{text}' is not an ISO 8601 duration")
    years, months, weeks, days, _, hours, minutes = (int(p) if p and p[0] != "T" else 0 for p in parts[1:8])
    total = ((years * 365 + months * 30 + weeks * 7 + days) * 24 + hours) * 60 + minutes
    whole, _, fraction = (parts[8] or "0").partition(".")
    seconds = total * 60 + int(whole)
    if seconds > FOREVER.total_seconds():
        length = FOREVER
    else:
        length = timedelta(seconds=seconds, microseconds=round(float(f"0.{fraction or 0}") * 1_000_000))
        length = FOREVER if length >= _NEARLY_FOREVER else length
    return -length if parts[0] else length


def write_duration(length: timedelta) -> str:
    if length >= FOREVER:
        return FOREVER_TEXT
    if length < timedelta(0):
        return "-" + write_duration(-length)
    minutes, seconds = divmod(length.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    fraction = f".{length.microseconds:06d}".rstrip("0").rstrip(".")
    clock = f"{hours}H" * (hours > 0) + f"{minutes}M" * (minutes > 0)
    clock += f"{seconds}{fraction}S" * (seconds > 0 or fraction != "")
    date = f"{length.days}D" * (length.days > 0)
    return f"P{date}T{clock}" if clock else f"P{date}" if date else "PT0S"


def read_date_time(text: str) -> datetime:
    """Return a time, with microseconds at most; it has a time zone if the text has one."""
    match = _DATE_TIME.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"'{text}' is not a date and time")
    date, clock, fraction, zone = match.groups()
    micro = (fraction or "0")[:6].ljust(6, "0")
    offset = "" if zone is None else "+00:00" if zone in "Zz" else f"{zone[:3]}:{zone[-2:]}"
    clock = clock or "00:00:00"
    return datetime.fromisoformat(f"{date}T{clock}{':00' if len(clock) == 5 else ''}.{micro}{offset}")


def write_date_time(moment: datetime) -> str:
    """Return a time as XML, in UTC if it has a time zone."""
    zone = ""
    if moment.tzinfo is not None:
        moment, zone = moment.astimezone(timezone.utc), "Z"
    fraction = f".{moment.microsecond:06d}".rstrip("0").rstrip(".")
    return moment.replace(tzinfo=None, microsecond=0).isoformat() + fraction + zone


def write_time(seconds: float, *, whole: bool = False) -> str:
    """Return seconds since 1970 as the service writes a time; zero or less means never."""
    if seconds <= 0:
        return NEVER_TEXT
    return write_date_time(datetime.fromtimestamp(int(seconds) if whole else seconds, timezone.utc))


def read_boolean(text: str) -> bool:
    """Return an XML Schema boolean; raise ValueError for other text."""
    match text.strip().lower():
        case "true" | "1":
            return True
        case "false" | "0":
            return False
    raise ValueError(f"'{text}' is neither true nor false")


def write_boolean(value: bool) -> str:
    return "true" if value else "false"


def read_integer(text: str) -> int:
    """Return an integer of up to 19 digits; raise ValueError for other text."""
    if not re.fullmatch(r"\s*[+-]?\d{1,19}\s*", text, re.ASCII):
        raise ValueError(f"'{text}' is not an integer")
    return int(text)


def read_double(text: str) -> float:
    """Return an XML Schema double (`INF`, not `Infinity`); raise ValueError for other text."""
    if text.strip().lstrip("+-").lower() in ("infinity", "") or "_" in text:
        raise ValueError(f"'{text}' is not a number")
    return float(text)


def write_double(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "INF" if value > 0 else "-INF"
    return repr(value).removesuffix(".0")


_READERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("int", "long", "short", "byte", "integer"), read_integer),
    **dict.fromkeys(("unsignedInt", "unsignedLong", "unsignedShort", "unsignedByte"), read_integer),
    **dict.fromkeys(("double", "float", "decimal"), read_double),
    **dict.fromkeys(("string", "guid", "anyURI", "char"), str),
    "boolean": read_boolean,
    "dateTime": read_date_time,
    "duration": read_duration,
}


def type_of(element: Element) -> str:
    """Return the type in an element's `i:type`, without a prefix; empty if it has none."""
    return element.get("type", "").rsplit(":", 1)[-1]


def read_typed(value: Element) -> Any:
    """Return a property's value, of the type in its `i:type`, or text; raise ValueError if it is invalid."""
    kind = type_of(value) or "string"
    reader = _READERS.get(kind)
    if reader is None:
        raise ValueError(f"the type '{kind}' is not known")
    return reader(text_of(value))


def write_typed(value: Any, spelling: tuple[str, str] | None = None) -> str:
    """Return a `Value` element; the JavaScript client reads its literal prefixes as text."""
    space, kind, text = XSD, "string", ""
    if spelling is not None:
        kind, text = spelling
    elif isinstance(value, bool):
        kind, text = "boolean", write_boolean(value)
    elif isinstance(value, int):
        kind, text = "int" if -(2**31) <= value < 2**31 else "long", str(value)
    elif isinstance(value, float):
        kind, text = "double", write_double(value)
    elif isinstance(value, datetime):
        kind, text = "dateTime", write_date_time(value)
    elif isinstance(value, timedelta):
        space, kind, text = NET_TYPES, "duration", write_duration(value)
    else:
        text = str(value)
    return element("Value", escape_text(text), f' i:type="d6p1:{kind}" xmlns:d6p1="{space}"')
