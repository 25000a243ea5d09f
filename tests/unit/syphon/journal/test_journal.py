"""Journals on every kind of storage: written rows are read, torn frames are not, and errors leave a journal usable."""

from __future__ import annotations

import errno
import io
import os
import re
import secrets
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
from pairbus.syphon.journal import storage as storage_module
from pairbus.syphon.journal.arrow_storage import ArrowStorage
from pairbus.syphon.journal.frame_format import END_FRAME
from pairbus.syphon.journal.journal import find_journal, open_journal
from pairbus.syphon.journal.row_format import SCHEMA, decode_rows
from pairbus.syphon.journal.storage import join, split, storage_at
from pairbus.syphon.journal.storage_port import Extent
from tests.support.journal_rows import HEAD, mock_root, numbers, only_file, read_journal, rows

ROOT = Path(__file__).resolve().parents[4]


def written(folder: Path, *writes: Rows, close: bool = True) -> Path:
    """Write a journal on a disk; unless it is closed, it is left as a killed process leaves it."""
    journal = open_journal(str(folder), HEAD)
    for each in writes:
        journal.write(each)
    if close:
        journal.close()
    return only_file(folder)


def journals_in(root: str) -> list[str]:
    """Return the paths of the journals in a folder of any storage."""
    names = {each.name.partition("/")[0] for each in storage_at(root).files("")}
    return [join(root, name) for name in sorted(names)]


@pytest.mark.parametrize("kind", ["disk", "file-uri", "hadoop-uri", "mount", "store"])
def test_a_journal_is_written_and_read_in_pieces(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a path, a file URI, a mount that cannot append and a store, up to its end."""
    uris = {"file-uri": tmp_path.as_uri(), "hadoop-uri": f"file:{tmp_path}", "store": mock_root()}
    root = uris.get(kind, str(tmp_path))
    if kind == "mount":
        monkeypatch.setattr(storage_module, "WHOLE_FILE_MOUNTS", (f"{tmp_path}/",))
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
    assert storage_at(root).is_file(split(path)[1]) is (kind not in ("mount", "store"))
    with pytest.raises(ValueError, match="closed"):
        journal.write(rows(5))


@pytest.mark.parametrize("store", [False, True])
def test_a_journal_without_rows_leaves_no_file(store: bool, tmp_path: Path) -> None:
    """Opening and closing it creates neither a file nor a folder; nor does a write of no rows."""
    root = mock_root() if store else str(tmp_path / "ledger" / "_journal" / "run")
    journal = open_journal(root, HEAD)
    journal.write(Rows())
    journal.close()
    assert storage_at(root).files("") == []
    assert not (tmp_path / "ledger").exists()


def test_a_file_is_durable_with_the_folders_that_lead_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each write syncs the file; its creation syncs its folder, and every folder that was created for it."""
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


def test_a_journal_cut_at_any_byte_is_read_to_the_last_whole_write(tmp_path: Path) -> None:
    """No row before the cut is lost, no row of the torn write is read, and the tear is reported."""
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
        assert part.end == ends[complete]


def _end_of_frame(data: bytes, start: int) -> int:
    return start + 12 + int.from_bytes(data[start + 4 : start + 8], "little")


@given(data=st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_flipped_bits_are_never_read_as_rows(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The writes before the flipped bits are read unchanged, and no row behind them is."""
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
def test_foreign_bytes_behind_a_journal_are_not_read(
    garbage: bytes, close: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """They are reported as a torn end, in an open journal and in a closed one."""
    path = written(tmp_path_factory.mktemp("garbage"), rows(1, 2), close=close)
    size = path.stat().st_size - len(END_FRAME) * close
    path.write_bytes(path.read_bytes() + garbage)
    part = read_journal(str(path))
    assert (numbers(part.table), part.end, part.finished, part.torn) == ([1, 2], size, close, True)


@pytest.mark.parametrize("content", [b"", b"PBJ1", b"\0" * 4096, b"PBJ1\xff\xff\xff\xff\0\0\0\0"])
def test_a_file_without_a_frame_has_no_rows(content: bytes, tmp_path: Path) -> None:
    """An empty file, half a header, zeros, a frame longer than the file: each is read without an error."""
    path = tmp_path / "0-0-0-00000000.journal"
    path.write_bytes(content)
    part = read_journal(str(path))
    assert (part.table.num_rows, part.end, part.finished, part.torn) == (0, 0, False, bool(content))


def test_a_missing_journal_is_an_error(tmp_path: Path) -> None:
    """It is not read as an empty one."""
    with pytest.raises(FileNotFoundError, match=r"gone\.journal"):
        read_journal(str(tmp_path / "gone.journal"))
    with pytest.raises(FileNotFoundError, match=r"gone\.journal"):
        read_journal(join(mock_root(), "gone.journal"))


@pytest.mark.parametrize("kind", ["disk", "mount", "store"])
def test_a_prepared_journal_without_rows_leaves_no_file(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test data is removed, or overwritten by the first rows; preparing again changes nothing."""
    root = mock_root() if kind == "store" else str(tmp_path)
    if kind == "mount":
        monkeypatch.setattr(storage_module, "WHOLE_FILE_MOUNTS", (f"{tmp_path}/",))
    storage = storage_at(root)
    unused, used = open_journal(root, HEAD), open_journal(root, HEAD)
    unused.prepare()
    unused.close()
    assert storage.files("") == []
    assert storage.folders() == []
    used.prepare()
    used.write(rows(1))
    used.prepare()
    used.write(rows(2))
    used.close()
    (name,) = {each.name.partition("/")[0] for each in storage.files("")}
    part = read_journal(join(root, name))
    assert (numbers(part.table), part.finished, part.torn) == ([1, 2], True, False)


@pytest.mark.parametrize("operation", ["write", "fsync"])
@pytest.mark.parametrize("kind", ["disk", "mount"])
def test_preparing_a_journal_finds_a_full_disk(
    kind: str, operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It raises an OSError that names the path. Test data that was written in part is never read as rows."""
    if kind == "mount":
        monkeypatch.setattr(storage_module, "WHOLE_FILE_MOUNTS", (f"{tmp_path}/",))
    journal = open_journal(str(tmp_path), HEAD)
    with monkeypatch.context() as patch:
        patch.setattr(os, operation, failing(getattr(os, operation), errno.ENOSPC, half=operation == "write"))
        with pytest.raises(OSError, match=re.escape(str(tmp_path))) as raised:
            journal.prepare()
    assert raised.value.errno == errno.ENOSPC
    left = [each.name.partition("/")[0] for each in storage_at(str(tmp_path)).files("")]
    assert all(read_journal(f"{tmp_path}/{name}").table.num_rows == 0 for name in left)
    journal.prepare()
    journal.write(rows(1))
    journal.close()


def failing(real: Callable[..., Any], number: int, half: bool = False) -> Callable[..., Any]:
    """Return a file operation that fails once, with half of its work done if `half`."""
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
def test_the_write_after_a_failed_one_starts_a_new_file(
    operation: str, first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the path, the old file is cut back and closed, and a retry leaves each row once."""
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


def test_a_file_that_cannot_be_cut_back_stays_torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows before the torn frame are read, and a retry writes to another file."""
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
def test_the_number_of_a_failed_segment_is_skipped(half: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where files cannot grow, a failed write removes its file, and the next write uses another name."""
    monkeypatch.setattr(storage_module, "WHOLE_FILE_MOUNTS", (f"{tmp_path}/",))
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
def test_a_segment_is_read_once_it_is_whole(cut: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On storage that shows a file before it is whole, its rows come with a later read."""
    monkeypatch.setattr(storage_module, "WHOLE_FILE_MOUNTS", (f"{tmp_path}/",))
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


def test_a_journal_that_lost_bytes_after_it_was_measured_is_logged(
    root: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its rows were durable: the rest is read, and the log names the file. A missing journal is an error."""
    journal = open_journal(root, HEAD)
    journal.write(rows(1))
    journal.write(rows(2))
    (path,) = journals_in(root)
    storage, name = storage_at(root), split(path)[1]
    end = read_journal(path).end
    assert [numbers(batch) for batch in decode_rows(find_journal(storage, name).payloads(0, end))] == [[1], [2]]
    assert caplog.text == ""
    last = name if storage.is_file(name) else f"{name}/00000002.seg"
    storage.put(last, storage.read(last)[:-1])
    assert [numbers(batch) for batch in decode_rows(find_journal(storage, name).payloads(0, end))] == [[1]]
    assert storage.location(last) in caplog.text
    storage.delete(last)
    storage.delete_folder(name)
    with pytest.raises(FileNotFoundError):
        list(decode_rows(find_journal(storage, name).payloads(0, end)))


@pytest.mark.parametrize("finished", [False, True])
def test_a_journal_that_is_not_finished_keeps_later_segments(finished: bool) -> None:
    """A segment may be written after the listing. Only a finished journal is deleted as a whole."""
    root = mock_root()
    journal = open_journal(root, HEAD)
    journal.write(rows(1))
    (path,) = journals_in(root)
    storage, name = storage_at(root), split(path)[1]
    stored = find_journal(storage, name)
    journal.write(rows(2))
    stored.delete(finished=finished)
    assert [each.name for each in storage.files(name)] == ([] if finished else ["00000002.seg"])


def test_a_finished_journal_of_segments_is_measured_without_reading_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the last segment of an open one can be incomplete, and a read of a store costs a request."""
    root = mock_root()
    journal = open_journal(root, HEAD)
    for number in (1, 2, 3):
        journal.write(rows(number))
    journal.close()
    (path,) = journals_in(root)
    stored = find_journal(storage_at(root), split(path)[1])
    reads: list[str] = []
    monkeypatch.setattr(ArrowStorage, "read", lambda self, name, *_: reads.append(name))
    assert stored.measure(1) == Extent(end=3, has_rows=True, finished=True, torn=False)
    assert stored.measure(3) == Extent(end=3, has_rows=False, finished=True, torn=False)
    assert reads == []


def test_a_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    """A file has its name, which stops root too: the OSError names the path."""
    (tmp_path / "ledger").write_text("not a folder")
    journal = open_journal(str(tmp_path / "ledger" / "run"), HEAD)
    with pytest.raises(OSError, match=re.escape(str(tmp_path / "ledger"))):
        journal.write(rows(1))
    journal.close()


def test_a_folder_without_write_permission_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The PermissionError names the path, and the next write may succeed."""

    def refuse(path: str, mode: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    journal = open_journal(str(tmp_path), HEAD)
    with monkeypatch.context() as patch:
        patch.setattr(io, "FileIO", refuse)
        with pytest.raises(PermissionError, match=r"3-7-2-.*\.journal"):
            journal.write(rows(1))
    journal.write(rows(1))
    journal.close()
    assert numbers(read_journal(str(only_file(tmp_path))).table) == [1]


def test_a_journal_whose_file_was_removed_continues_in_a_new_file(tmp_path: Path) -> None:
    """Another syphon took the run for dead. The rows that went to the removed file are written again."""
    journal = open_journal(str(tmp_path), HEAD)
    journal.write(rows(1))
    only_file(tmp_path).unlink()
    journal.write(rows(2))
    journal.close()
    part = read_journal(str(only_file(tmp_path)))
    assert (numbers(part.table), part.finished) == ([2], True)


def test_a_journal_is_never_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If two journals get the same random name, the second raises and the first keeps its rows."""
    monkeypatch.setattr(secrets, "token_hex", lambda size: "same")
    path = written(tmp_path, rows(1))
    with pytest.raises(FileExistsError, match=r"same\.journal"):
        open_journal(str(tmp_path), HEAD).write(rows(2))
    assert numbers(read_journal(str(path)).table) == [1]


@given(batches=st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), max_size=6), store=st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_rows_in_any_number_of_writes(
    batches: list[list[int]], store: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """All rows are read, in order."""
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


def test_the_first_write_imports_no_module(tmp_path: Path) -> None:
    """Arrow imports pandas with its first array. `prepare` does that, before a message is locked."""
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
