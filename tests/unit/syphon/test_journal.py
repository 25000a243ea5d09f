"""The journal: what was written is there, what was not whole is not, and errors leave it usable."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pairbus.domain.outcome import Head, Rows
from pairbus.errors import OptionError
from pairbus.syphon.journal import journal as journal_module
from pairbus.syphon.journal import storage as places
from pairbus.syphon.journal.journal import SCHEMA, open_journal, read_journal
from pairbus.syphon.journal.storage import join, place_at, split
from tests.support.journal_rows import HEAD, mock_root, numbers, only_file, rows

ROOT = Path(__file__).resolve().parents[3]


def written(folder: Path, *writes: Rows, close: bool = True) -> Path:
    journal = open_journal(str(folder), HEAD)
    for each in writes:
        journal.write(each)
    if close:
        journal.close()
    else:
        journal._keep._file.close()  # type: ignore[union-attr]
    return only_file(folder)


def journals_in(root: str) -> list[str]:
    """The journals of a folder, wherever it is."""
    names = {each.name.partition("/")[0] for each in place_at(root).files("")}
    return [join(root, name) for name in sorted(names)]


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    """Every column, with the constants of the head added; times as UTC timestamps."""
    part = read_journal(str(written(tmp_path / "run", rows(4, 5), rows(6))))
    assert part.table.schema == SCHEMA
    assert part.finished
    assert not part.torn
    assert numbers(part.table) == [4, 5, 6]
    first = part.table.slice(0, 1).to_pylist()[0]
    parked = first.pop("parked_at")
    assert (parked.timestamp(), parked.utcoffset().total_seconds()) == (1_700_000_000.004, 0)
    assert first.pop("settled_at").timestamp() == 1_700_000_060.004
    assert first == {
        "namespace": "contoso",
        "queue_index": 3,
        "sequence_number": 4,
        "message_id": "id-4",
        "session_id": "s4",
        "destination": "orders",
        "outcome": "delivered",
        "reason": None,
        "size": 104,
        "delivery_count": 1,
        "attempt": 2,
        "batch": 7,
    }


@pytest.mark.parametrize("where", ["disk", "file-uri", "hadoop-uri", "mount", "store"])
def test_every_place_keeps_a_journal(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path, a file URI, a mount that cannot append and a store: written in pieces, read in pieces, and finished."""
    root = {"file-uri": tmp_path.as_uri(), "hadoop-uri": f"file:{tmp_path}", "store": mock_root()}.get(where) or str(
        tmp_path
    )
    if where == "mount":
        monkeypatch.setattr(places, "WHOLE_FILE_MOUNTS", (f"{tmp_path}/",))
    journal = open_journal(root, HEAD)
    journal.write(rows(1, 2))
    journal.write(rows(3))
    (path,) = journals_in(root)
    assert re.fullmatch(r"3-7-2-[0-9a-f]{8}\.journal", split(path)[1])
    first = read_journal(path)
    assert (numbers(first.table), first.finished, first.torn) == ([1, 2, 3], False, False)
    journal.write(rows(4))
    journal.close()
    journal.close()
    second = read_journal(path, first.end)
    assert (numbers(second.table), second.finished, second.torn) == ([4], True, False)
    assert numbers(read_journal(path, second.end).table) == []
    grows = where not in ("mount", "store")
    assert place_at(root).is_file(split(path)[1]) is grows
    with pytest.raises(ValueError, match="closed"):
        journal.write(rows(5))


@pytest.mark.parametrize("store", [False, True])
def test_a_journal_that_nothing_was_written_to_leaves_no_trace(store: bool, tmp_path: Path) -> None:
    """Neither opening, nor no rows at all, nor closing makes a file or a folder."""
    root = mock_root() if store else str(tmp_path / "ledger" / "_journal" / "run")
    journal = open_journal(root, HEAD)
    journal.write(Rows())
    journal.close()
    assert place_at(root).files("") == []
    assert not (tmp_path / "ledger").exists()


def test_a_file_is_durable_with_the_folders_that_lead_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each write syncs the file; making it syncs its folder, and those that had to be made."""
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    folder = tmp_path / "a" / "b"
    journal = open_journal(str(folder), HEAD)
    journal.write(rows(1))
    path = str(only_file(folder))
    assert synced == [str(tmp_path), str(tmp_path / "a"), str(folder), path]
    journal.write(rows(2))
    assert synced[4:] == [path]
    journal.close()
    assert synced[5:] == [path]


def test_cut_at_any_byte_all_whole_writes_before_it_are_read(tmp_path: Path) -> None:
    """However a kill tears the end: nothing before it is lost, nothing of it is read, and it shows."""
    path = written(tmp_path / "run", rows(1), rows(2, 3), rows(4))
    whole = path.read_bytes()
    ends = [0]
    for each in (1, 2, 3):
        ends.append(_end_of_frame(whole, ends[each - 1]))
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        part = read_journal(str(path))
        complete = sum(end <= length for end in ends[1:])
        assert numbers(part.table) == [[], [1], [1, 2, 3], [1, 2, 3, 4]][complete], length
        assert part.finished is (length == len(whole))
        assert part.torn is (length not in ends and length != len(whole))
        assert part.end == (len(whole) if part.finished else ends[complete])


def _end_of_frame(data: bytes, start: int) -> int:
    return start + 12 + int.from_bytes(data[start + 4 : start + 8], "little")


@given(data=st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_flipped_bits_are_never_read_as_rows(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Wherever bits are flipped: the frames before are read as they were, and none from there on."""
    folder = tmp_path_factory.mktemp("flip")
    path = written(folder, rows(1), rows(2, 3), rows(4))
    whole = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    part = read_journal(str(path))
    assert part.torn
    assert not part.finished
    assert part.end <= at
    assert numbers(part.table) == [1, 2, 3, 4][: [0, 1, 3, 4][_frames_before(bytes(whole), part.end)]]


def _frames_before(data: bytes, end: int) -> int:
    count = start = 0
    while start < end:
        start = _end_of_frame(data, start)
        count += 1
    return count


@given(garbage=st.binary(min_size=1, max_size=200), close=st.booleans())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_garbage_behind_a_journal_is_not_read(
    garbage: bytes, close: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What comes behind the last whole frame is seen and left out, whether or not the journal was closed."""
    path = written(tmp_path_factory.mktemp("garbage"), rows(1, 2), close=close)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + garbage)
    part = read_journal(str(path))
    assert (numbers(part.table), part.end, part.finished, part.torn) == ([1, 2], size, close, True)


@pytest.mark.parametrize("content", [b"", b"PBJ1", b"\0" * 4096, b"PBJ1\xff\xff\xff\xff\0\0\0\0"])
def test_a_file_without_a_frame_is_empty(content: bytes, tmp_path: Path) -> None:
    """No bytes, half a header, zeros, a frame longer than the file: no rows, no error."""
    path = tmp_path / "0-0-0-00000000.journal"
    path.write_bytes(content)
    part = read_journal(str(path))
    assert (part.table.num_rows, part.end, part.finished, part.torn) == (0, 0, False, bool(content))


def test_a_journal_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    """It is not taken for an empty one."""
    with pytest.raises(FileNotFoundError, match=r"gone\.journal"):
        read_journal(str(tmp_path / "gone.journal"))
    with pytest.raises(FileNotFoundError, match=r"gone\.journal"):
        read_journal(join(mock_root(), "gone.journal"))


@pytest.mark.parametrize("kind", ["disk", "mount", "store"])
def test_a_journal_that_was_prepared_and_not_needed_leaves_no_trace(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To try it before messages move costs nobody a file; and what is written afterwards is all that is read."""
    root = mock_root() if kind == "store" else str(tmp_path)
    if kind == "mount":
        monkeypatch.setattr(places, "WHOLE_FILE_MOUNTS", (f"{tmp_path}/",))
    place = places.place_at(root)
    unused, used = open_journal(root, HEAD), open_journal(root, HEAD)
    unused.prepare()
    unused.close()
    assert place.files("") == []
    assert place.folders() == []
    used.prepare()
    used.write(rows(1))
    used.prepare()
    used.write(rows(2))
    used.close()
    (name,) = {each.name.partition("/")[0] for each in place.files("")}
    part = read_journal(join(root, name))
    assert (numbers(part.table), part.finished, part.torn) == ([1, 2], True, False)


@pytest.mark.parametrize("kind", ["disk", "mount"])
def test_a_full_disk_is_found_when_a_journal_is_prepared(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is room for rows, or an OSError that names the path; a torn trial is never read."""
    if kind == "mount":
        monkeypatch.setattr(places, "WHOLE_FILE_MOUNTS", (f"{tmp_path}/",))
    journal = open_journal(str(tmp_path), HEAD)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing(os.write, errno.ENOSPC, half=True))
        with pytest.raises(OSError, match=re.escape(str(tmp_path))) as raised:
            journal.prepare()
    assert raised.value.errno == errno.ENOSPC
    left = [each.name.partition("/")[0] for each in places.place_at(str(tmp_path)).files("")]
    assert all(read_journal(f"{tmp_path}/{name}").table.num_rows == 0 for name in left)
    journal.prepare()
    journal.write(rows(1))
    journal.close()


def failing(real: Callable[..., Any], number: int, half: bool = False) -> Callable[..., Any]:
    """An operation that fails once, perhaps half done."""
    fail = [True]

    def operation(descriptor: int, *arguments: Any) -> Any:
        if fail and arguments and len(arguments[0]) < 100:  # the end frame
            return real(descriptor, *arguments)
        if fail:
            fail.clear()
            if half:
                real(descriptor, arguments[0][: len(arguments[0]) // 2])
            raise OSError(number, os.strerror(number))
        return real(descriptor, *arguments)

    return operation


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("operation", ["write", "half", "fsync"])
def test_after_a_failed_write_the_next_begins_a_new_file(
    operation: str, first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk: an OSError with the path; the old file is cut back and ended; a retry leaves each row once."""
    journal = open_journal(str(tmp_path), HEAD)
    if not first:
        journal.write(rows(1))
        (path,) = tmp_path.iterdir()
    name = "fsync" if operation == "fsync" else "write"
    with monkeypatch.context() as patch:
        patch.setattr(os, name, failing(getattr(os, name), errno.ENOSPC, half=operation == "half"))
        with pytest.raises(OSError, match=re.escape(str(tmp_path))) as raised:
            journal.write(rows(2, 3))
    assert raised.value.errno == errno.ENOSPC
    if not first:
        part = read_journal(str(path))
        assert (numbers(part.table), part.finished, part.torn) == ([1], True, False)
    journal.write(rows(2, 3))
    journal.write(rows(4))
    journal.close()
    parts = [read_journal(str(path)) for path in tmp_path.iterdir()]
    assert len(parts) == (1 if first else 2)
    assert all(part.finished and not part.torn for part in parts)
    assert sorted(number for part in parts for number in numbers(part.table)) == ([] if first else [1]) + [2, 3, 4]


def test_a_disk_that_cannot_even_be_cut_back_leaves_a_torn_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the rows before the torn frame are read, and a retry writes to another file."""
    journal = open_journal(str(tmp_path), HEAD)
    journal.write(rows(1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing(os.write, errno.EIO, half=True))
        patch.setattr(os, "ftruncate", _refuse)
        with pytest.raises(OSError, match="Input/output"):
            journal.write(rows(2))
    torn = read_journal(str(only_file(tmp_path)))
    assert (numbers(torn.table), torn.torn, torn.finished) == ([1], True, False)
    journal.write(rows(2))
    journal.close()
    assert sorted(number for path in tmp_path.iterdir() for number in numbers(read_journal(str(path)).table)) == [1, 2]


def _refuse(*_: Any) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("half", [False, True])
def test_after_a_failed_segment_the_next_takes_another_name(
    half: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where files cannot grow, a failed write is taken back, and its name is not used again."""
    monkeypatch.setattr(places, "WHOLE_FILE_MOUNTS", (f"{tmp_path}/",))
    journal = open_journal(str(tmp_path), HEAD)
    journal.write(rows(1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing(os.write, errno.ENOSPC, half=half))
        with pytest.raises(OSError, match=r"00000002\.seg") as raised:
            journal.write(rows(2))
    assert raised.value.errno == errno.ENOSPC
    journal.write(rows(2))
    journal.close()
    folder = only_file(tmp_path)
    assert sorted(each.name for each in folder.iterdir()) == ["00000001.seg", "00000003.seg", "end"]
    part = read_journal(str(folder))
    assert (numbers(part.table), part.end, part.finished) == ([1, 2], 3, True)


@pytest.mark.parametrize("cut", range(0, 500, 7))
def test_a_half_segment_is_left_out(cut: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where others see a file before it is whole, it is not read until it is."""
    monkeypatch.setattr(places, "WHOLE_FILE_MOUNTS", (f"{tmp_path}/",))
    journal = open_journal(str(tmp_path), HEAD)
    journal.write(rows(1))
    journal.write(rows(2))
    folder = only_file(tmp_path)
    whole = (folder / "00000002.seg").read_bytes()
    (folder / "00000002.seg").write_bytes(whole[:cut])
    part = read_journal(str(folder))
    assert (numbers(part.table), part.end, part.torn, part.finished) == ([1], 1, True, False)
    (folder / "00000002.seg").write_bytes(whole)
    part = read_journal(str(folder), part.end)
    assert (numbers(part.table), part.end, part.torn) == ([2], 2, False)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """A file in the way, which stops root too: the error is an OSError and says where."""
    (tmp_path / "ledger").write_text("not a folder")
    journal = open_journal(str(tmp_path / "ledger" / "run"), HEAD)
    with pytest.raises(OSError, match=re.escape(str(tmp_path / "ledger"))):
        journal.write(rows(1))
    journal.close()


def test_a_folder_that_may_not_be_written_to_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PermissionError, with the path of the journal; it can be tried again."""

    def refuse(path: str, mode: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    journal = open_journal(str(tmp_path), HEAD)
    with monkeypatch.context() as patch:
        patch.setattr(places.io, "FileIO", refuse)
        with pytest.raises(PermissionError, match=r"3-7-2-.*\.journal"):
            journal.write(rows(1))
    journal.write(rows(1))
    journal.close()
    assert numbers(read_journal(str(only_file(tmp_path))).table) == [1]


def test_a_journal_that_was_taken_for_dead_goes_on_in_a_new_file(tmp_path: Path) -> None:
    """Rows written to a file that another has removed would be nowhere: they are written again."""
    journal = open_journal(str(tmp_path), HEAD)
    journal.write(rows(1))
    only_file(tmp_path).unlink()
    journal.write(rows(2))
    journal.close()
    part = read_journal(str(only_file(tmp_path)))
    assert (numbers(part.table), part.finished) == ([2], True)


def test_odd_values_do_not_stop_a_journal(tmp_path: Path) -> None:
    """Half a surrogate pair, nothing at all, times beyond any calendar: the row is kept, and says what it can."""
    odd = rows(1, 2, 3)
    odd.message_id = ["\ud800", None, "naïve \0 ✓"]
    odd.parked_at = [2**62, None, -(2**62)]
    odd.reason = ["x" * 100_000, "", None]
    table = read_journal(str(written(tmp_path, odd))).table
    assert table.column("message_id").to_pylist() == ["\\ud800", None, "naïve \0 ✓"]
    assert table.column("parked_at").null_count == 3
    assert table.column("reason").to_pylist() == odd.reason


def test_a_journal_is_never_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are unique by chance; should chance fail, it is an error and the other file stays."""
    monkeypatch.setattr(journal_module, "journal_name", lambda head: "same.journal")
    path = written(tmp_path, rows(1))
    with pytest.raises(FileExistsError, match=r"same\.journal"):
        open_journal(str(tmp_path), HEAD).write(rows(2))
    assert numbers(read_journal(str(path)).table) == [1]


@given(batches=st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), max_size=6), store=st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_rows_in_any_number_of_writes(
    batches: list[list[int]], store: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """All come back, in order."""
    root = mock_root() if store else str(tmp_path_factory.mktemp("any"))
    journal = open_journal(root, Head("name / with ü", 0))
    for each in batches:
        more = rows(*(0 for _ in each))
        more.sequence_number = each
        journal.write(more)
    journal.close()
    tables = [read_journal(path).table for path in journals_in(root)]
    table = pa.concat_tables([*tables, SCHEMA.empty_table()])
    assert numbers(table) == [number for each in batches for number in each]
    assert set(table.column("namespace").to_pylist()) <= {"name / with ü"}


@pytest.mark.parametrize(
    ("folder", "path"),
    [
        ("/a/b", "/a/b/n"),
        ("a", "a/n"),
        ("s3://bucket/a/", "s3://bucket/a/n"),
        ("s3://bucket/a?region=eu", "s3://bucket/a/n?region=eu"),
        ("/what?/b", "/what?/b/n"),
    ],
)
def test_names_are_joined_and_split(folder: str, path: str) -> None:
    """What a URI has behind its path stays there."""
    assert join(folder, "n") == path
    assert split(path) == (folder.rstrip("/").replace("/?", "?"), "n")


@pytest.mark.parametrize(
    ("folder", "path"),
    [
        ("s3a://bucket/a b/_journal?region=eu-west-1", "bucket/a b/_journal/n"),
        ("abfss://box@account.dfs.core.windows.net/led%20ger", "box/led%20ger/n"),
        ("dbfs:/ledger", "/dbfs/ledger/n"),
        ("/Volumes/a/b/c", "/Volumes/a/b/c/n"),
        ("file:///tmp/a%20b", "/tmp/a%20b/n"),
        ("file://localhost/tmp/a", "/tmp/a/n"),
    ],
)
def test_the_ways_spark_writes_a_path_are_known(folder: str, path: str) -> None:
    """The same string means the same place to Spark and to the journal; only disks can append."""
    place = place_at(folder)
    assert place.where("n") == path
    assert place.appends is (folder.startswith("file:"))


def test_a_place_that_nothing_knows_is_refused_by_its_scheme() -> None:
    """And whatever else the URI held is not shown."""
    with pytest.raises(ValueError, match=r"gopher://") as raised:
        open_journal("gopher://user:secret@host/x", HEAD)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("folder", ["abfss://container/x", "s3:///x", "s3://bucket/x?colour=red", "file://host/x"])
def test_a_uri_that_names_no_place_is_an_option_that_is_refused(folder: str) -> None:
    """What a command says in one line, with the code for a bad set-up."""
    with pytest.raises(OptionError, match=r"journal can(not)? be kept on \w+://"):
        place_at(folder)


def test_what_is_imported_is_imported_before_a_message_is_taken(tmp_path: Path) -> None:
    """Arrow imports pandas with the first array that it makes: when the journal is tried, not in the first write, for
    which messages wait whose locks go on."""
    program = f"""
import sys
from pairbus.domain.outcome import Head
from pairbus.syphon.journal.journal import open_journal
from tests.support.journal_rows import rows

journal = open_journal({str(tmp_path)!r}, Head("contoso", 0))
first = rows(1)
journal.prepare()
before = set(sys.modules)
journal.write(first)
print(sorted(set(sys.modules) - before))
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout.strip()) == (0, "[]"), ended.stdout + ended.stderr
