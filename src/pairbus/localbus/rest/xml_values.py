"""The values in the service's XML: text, durations, times, typed properties; and a wary parser."""

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
#: .NET's serializer knows no XSD duration; it writes its own, and the service does the same.
NET_TYPES = "http://schemas.microsoft.com/2003/10/Serialization/"

#: .NET's TimeSpan.MaxValue counts in tenths of microseconds, which timedelta cannot.
FOREVER_TEXT = "P10675199DT2H48M5.4775807S"
#: The Python SDK sends back "for ever" less the error of a float: 42 microseconds too little.
_AS_GOOD_AS_FOREVER = FOREVER - timedelta(seconds=1)
#: How .NET writes a time that never was.
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


def bad(message: str) -> BusError:
    return BusError(INVALID_FIELD, message)


def parse(body: bytes) -> Element:
    """The document's root, tags and attributes by their local names; no DOCTYPE, bounded depth and size."""
    tree = TreeBuilder()
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    depth = count = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth, count
        depth, count = depth + 1, count + 1
        if depth > MAX_DEPTH or count > MAX_ELEMENTS:
            raise bad("The request body is nested too deeply or has too many elements.")
        tree.start(_local(name), {_local(key): value for key, value in attributes.items()})

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        tree.end(_local(name))

    def doctype(*_: object) -> None:
        raise bad("The request body may not have a DOCTYPE.")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = tree.data
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(body, True)
    except (expat.ExpatError, ValueError, LookupError) as mistake:
        raise bad(f"The request body is not well-formed XML: {mistake}.") from None
    return tree.close()


def _local(name: str) -> str:
    return name.rsplit(" ", 1)[-1]


def child(parent: Element, tag: str) -> Element | None:
    """A child that is there and not nil."""
    found = parent.find(tag)
    return None if found is None or found.get("nil", "").lower() in ("true", "1") else found


def text_of(element: Element) -> str:
    return element.text or ""


def clean(text: str) -> str:
    """Text for an element: escaped, and without characters that XML cannot carry."""
    return escape(_NOT_XML.sub("\ufffd", text))


def quoted(text: str) -> str:
    """Text for an attribute in double quotes."""
    return escape(_NOT_XML.sub("\ufffd", text), {'"': "&quot;"})


def element(tag: str, content: str, attributes: str = "") -> str:
    """An element around content that is XML already."""
    return f"<{tag}{attributes}>{content}</{tag}>" if content else f"<{tag}{attributes}/>"


def read_duration(text: str) -> timedelta:
    """An ISO 8601 duration, years and months as .NET counts them; what exceeds for ever is for ever."""
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
        length = FOREVER if length >= _AS_GOOD_AS_FOREVER else length
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
    """A time as XML writes it, with up to any number of decimals; without a zone it stays without one."""
    match = _DATE_TIME.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"'{text}' is not a date and time")
    date, clock, fraction, zone = match.groups()
    micro = (fraction or "0")[:6].ljust(6, "0")
    offset = "" if zone is None else "+00:00" if zone in "Zz" else f"{zone[:3]}:{zone[-2:]}"
    clock = clock or "00:00:00"
    return datetime.fromisoformat(f"{date}T{clock}{':00' if len(clock) == 5 else ''}.{micro}{offset}")


def write_date_time(moment: datetime) -> str:
    zone = ""
    if moment.tzinfo is not None:
        moment, zone = moment.astimezone(timezone.utc), "Z"
    fraction = f".{moment.microsecond:06d}".rstrip("0").rstrip(".")
    return moment.replace(tzinfo=None, microsecond=0).isoformat() + fraction + zone


def write_time(seconds: float, *, whole: bool = False) -> str:
    """Seconds since 1970 as the service writes them; zero or less was never."""
    if seconds <= 0:
        return NEVER_TEXT
    return write_date_time(datetime.fromtimestamp(int(seconds) if whole else seconds, timezone.utc))


def read_boolean(text: str) -> bool:
    match text.strip().lower():
        case "true" | "1":
            return True
        case "false" | "0":
            return False
    raise ValueError(f"'{text}' is neither true nor false")


def write_boolean(value: bool) -> str:
    return "true" if value else "false"


def read_integer(text: str) -> int:
    if not re.fullmatch(r"\s*[+-]?\d{1,19}\s*", text, re.ASCII):
        raise ValueError(f"'{text}' is not an integer")
    return int(text)


def read_double(text: str) -> float:
    """A number as XML Schema writes it (`INF`, not `Infinity`)."""
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
    """The type that its `i:type` names, without a prefix; nothing if it names none."""
    return element.get("type", "").rsplit(":", 1)[-1]


def read_typed(value: Element) -> Any:
    """A property's value by the type its `i:type` names; text if it names none."""
    kind = type_of(value) or "string"
    reader = _READERS.get(kind)
    if reader is None:
        raise ValueError(f"the type '{kind}' is not known")
    return reader(text_of(value))


def write_typed(value: Any, spelling: tuple[str, str] | None = None) -> str:
    """A `Value` element, of the type and text that are given or of its own; the prefixes are literal, since the
    JavaScript client reads them as text.
    """
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
    return element("Value", clean(text), f' i:type="d6p1:{kind}" xmlns:d6p1="{space}"')
