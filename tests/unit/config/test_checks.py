"""The checks that all options share: the value in its final form, or one problem that names it."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pairbus import OptionError
from pairbus.config import checks
from pairbus.config.checks import MAX_QUEUES, POSITIVE, Problems, Range

SECRET = "SharedAccessKey=c2VjcmV0"
HIDDEN = "not shown since it may hold a secret"
MINUTE = Range(1.0, 60.0, "1 … 60 s")


def problem(check: Callable[[Problems], Any]) -> str:
    """Return the one problem that a check finds."""
    problems: Problems = []
    check(problems)
    (only,) = problems
    return only


def value(check: Callable[[Problems], Any]) -> Any:
    """Return what a check returns without a problem."""
    problems: Problems = []
    found = check(problems)
    assert problems == []
    return found


# --- values in errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["text", 5, 1.5, None, True, Path("/a/b"), timedelta(seconds=5), "x" * 90])
def test_a_plain_value_is_shown_as_it_was_written(given: Any) -> None:
    """A path as its text, everything else as Python writes it."""
    assert checks.shown(given) == repr(str(given) if isinstance(given, Path) else given)


@pytest.mark.parametrize("given", [SECRET, Path(SECRET), "x" * 100, b"x", ["x"], {"a": 1}, object()])
def test_a_value_that_may_hold_a_secret_is_shown_by_its_type(given: Any) -> None:
    """A text with a =, a long one, and every other kind of value."""
    assert checks.shown(given) == f"<{type(given).__name__}, {HIDDEN}>"


def test_a_word_like_a_known_one_is_suggested() -> None:
    """And no suggestion is made for one that resembles none, or is no text."""
    assert checks.nearest("delivr", ["deliver", "dead-letter"]) == "; did you mean deliver?"
    assert checks.nearest("xyz", ["deliver"]) == checks.nearest(5, ["deliver"]) == ""


def test_the_first_problem_is_raised() -> None:
    """Options are made one at a time, so one problem is enough; without problems nothing is raised."""
    checks.raise_first([])
    with pytest.raises(OptionError, match=r"^first$"):
        checks.raise_first(["first", "second"])


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(1, 1.0), (60.0, 60.0), (timedelta(seconds=30), 30.0), ("30s", 30.0), (" 1 min ", 60.0), ("1500ms", 1.5)],
)
def test_a_duration_within_its_range(given: Any, seconds: float) -> None:
    """As a float of seconds, both ends included."""
    found = value(lambda problems: checks.duration(given, MINUTE, "wait", problems, accepts_text=True))
    assert (found, type(found)) == (seconds, float)


@pytest.mark.parametrize("given", [0.999, 60.001, "2min", "1h", "30", "s", "", True, None, math.nan, math.inf, 10**400])
def test_a_duration_out_of_its_range(given: Any) -> None:
    """The problem names the option, its range, the forms of a duration, and the value."""
    told = problem(lambda problems: checks.duration(given, MINUTE, "wait", problems, accepts_text=True))
    assert told == f'wait must be 1 … 60 s (seconds, or text such as "30s", "2min", "500ms"), not {checks.shown(given)}'


def test_a_duration_as_text_only_where_that_is_accepted() -> None:
    """Options in Python take numbers and `timedelta`."""
    told = problem(lambda problems: checks.duration("30s", MINUTE, "wait", problems))
    assert told == "wait must be 1 … 60 s (seconds or timedelta), not '30s'"


@pytest.mark.parametrize(("given", "fits"), [(1e-9, True), (1e9, True), (0, False), (-1, False), (math.inf, False)])
def test_a_positive_duration(given: float, fits: bool) -> None:
    """Anything above zero, and finite."""
    problems: Problems = []
    checks.duration(given, POSITIVE, "wait", problems)
    assert (not problems) is fits


@pytest.mark.parametrize(("given", "most"), [(1, 5), (5, 5), (10**9, None)])
def test_a_whole_number_within_its_range(given: int, most: int | None) -> None:
    """Both ends included; without a most there is none."""
    assert value(lambda problems: checks.whole(given, 1, most, "count", problems)) == given


@pytest.mark.parametrize(
    ("given", "most", "range_"), [(0, 5, "1 … 5"), (6, 5, "1 … 5"), (0, None, "1 or more"), (True, None, "1 or more"),
                                  (1.0, 5, "1 … 5"), ("1", 5, "1 … 5")]
)  # fmt: skip
def test_a_whole_number_out_of_its_range(given: Any, most: int | None, range_: str) -> None:
    """A float, a text and a boolean are none."""
    told = problem(lambda problems: checks.whole(given, 1, most, "count", problems))
    assert told == f"count must be a whole number, {range_}, not {given!r}"


@pytest.mark.parametrize(("given", "found"), [(None, None), (0, None), (0.0, None), (5, 5.0), (0.5, 0.5)])
def test_a_rate(given: Any, found: float | None) -> None:
    """None and 0 both mean no limit."""
    assert value(lambda problems: checks.rate(given, "rate", problems)) == found


@pytest.mark.parametrize("given", [-1, math.inf, math.nan, True, "5", 10**400])
def test_what_is_no_rate(given: Any) -> None:
    """The problem says how no limit is written."""
    assert "must be a number of messages a second, 0 for no limit, not " in problem(
        lambda problems: checks.rate(given, "rate", problems)
    )


# --- words -----------------------------------------------------------------------------------------------------------


def test_a_choice() -> None:
    """One of its words, exactly."""
    assert value(lambda problems: checks.choice("deliver", checks.LATE, "late", problems)) == "deliver"
    told = problem(lambda problems: checks.choice("Deliver", checks.LATE, "late", problems))
    assert told == "late must be one of deliver, dead-letter, not 'Deliver'; did you mean deliver?"
    assert "not <list, " in problem(lambda problems: checks.choice(["deliver"], checks.LATE, "late", problems))


def test_a_flag() -> None:
    """True and False; a text such as "false" is not taken for true."""
    assert value(lambda problems: checks.flag(True, "on", problems)) is True
    assert value(lambda problems: checks.flag(False, "on", problems)) is False
    assert problem(lambda problems: checks.flag("false", "on", problems)) == "on must be True or False, not 'false'"
    assert checks.flag(1, "on", []) is False


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("contoso.servicebus.windows.net", "contoso.servicebus.windows.net"),
        (" sb://contoso.servicebus.windows.net/ ", "contoso.servicebus.windows.net"),
        ("127.0.0.1:5671", "127.0.0.1:5671"),
        ("[::1]:5671", "[::1]:5671"),
        ("x", "x"),
    ],
)
def test_a_host(given: str, found: str) -> None:
    """Without scheme, slash and blanks."""
    assert value(lambda problems: checks.host(given, "host", problems)) == found


@pytest.mark.parametrize("given", ["", "a b", "a/b", "https://x", "x:123456", "-x", "x-", SECRET, None, 5])
def test_what_is_no_host(given: Any) -> None:
    """None, and a problem that shows no secret."""
    found: Problems = []
    assert checks.host(given, "host", found) is None
    assert found[0].startswith("host must be a host name such as contoso.servicebus.windows.net, not ")
    assert SECRET not in found[0]


def test_a_label() -> None:
    """In lower case: paths of backlog queues contain it."""
    assert value(lambda problems: checks.label("Contoso-1.x_y", "name", problems)) == "contoso-1.x_y"


@pytest.mark.parametrize("given", ["", "a b", "a/b", "-a", "a-", "a" * 64, None, 5])
def test_what_is_no_label(given: Any) -> None:
    """Blanks, slashes, marks at an end, and more than 63 characters."""
    assert problem(lambda problems: checks.label(given, "name", problems)).startswith(
        "name must be a label such as contoso"
    )


def test_indexes_below_the_most() -> None:
    """The last index and one beyond it."""
    assert value(lambda problems: checks.queues(f"0,{MAX_QUEUES - 1}", "queues", problems)) == (0, MAX_QUEUES - 1)
    assert str(MAX_QUEUES) in problem(lambda problems: checks.queues(f"0,{MAX_QUEUES}", "queues", problems))


@pytest.mark.parametrize("given", ["1,4-0", [MAX_QUEUES], [-1], [], [1, True], "", "1,", 0, MAX_QUEUES + 1, 1.0, None])
def test_what_are_no_indexes(given: Any) -> None:
    """A range backwards beside a right index, an index out of range, no index at all, and no number."""
    assert problem(lambda problems: checks.queues(given, "queues", problems)).startswith("queues must be ")


# --- folders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["/a/b", "a/b", Path("a"), "C:/journal", "c:\\journal"])
def test_a_local_folder(given: Any) -> None:
    """A path as it was given; a drive's letter is no scheme."""
    assert value(lambda problems: checks.local_folder(given, "journal", problems)) is given


def test_no_folder_at_all() -> None:
    """None is allowed."""
    assert value(lambda problems: checks.local_folder(None, "journal", problems)) is None


@pytest.mark.parametrize("given", ["s3://box/journal", Path("file:///tmp/journal"), "dbfs:/journal", "", 5])
def test_what_is_no_local_folder(given: Any) -> None:
    """A URI is refused, also one that `Path` has made a path of."""
    is_path = isinstance(given, (str, Path)) and str(given)
    right = "a folder of this machine" if is_path else "the path of a folder"
    assert f"must be {right}" in problem(lambda problems: checks.local_folder(given, "journal", problems))


@pytest.mark.parametrize(
    ("place", "scheme"),
    [("/a", None), ("abfss://c@a/x", None), ("S3A://b", None), ("http://x/", "http"), ("x:/y", "x")],
)
def test_a_scheme_without_journals(place: str, scheme: str | None) -> None:
    """Those of storage that can be written to without Spark are known, in any case."""
    assert checks.unknown_scheme(place) == scheme


@pytest.mark.parametrize(
    ("place", "part"),
    [("file://host/x", "the host host"), ("abfss://container@/x", "no storage account"),
     ("abfss://container/x", "no storage account"), ("s3:///x", "no bucket"), ("gs:///x", "no bucket")],
)  # fmt: skip
def test_a_wrong_authority(place: str, part: str) -> None:
    """The text names what is missing or too many."""
    assert part in (checks.wrong_authority(place) or "")


@pytest.mark.parametrize(
    "place", ["/a", "file:///x", "file://localhost/x", "abfss://c@a.dfs.core.windows.net/x", "s3://b/x", "dbfs:/x"]
)
def test_a_right_authority(place: str) -> None:
    """And a place that has none."""
    assert checks.wrong_authority(place) is None
