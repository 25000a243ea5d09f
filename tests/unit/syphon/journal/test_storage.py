"""Storage: paths and URIs mean what they mean to Spark, and every kind of storage keeps the promises of the port."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pairbus.domain.outcome import Head
from pairbus.errors import OptionError
from pairbus.syphon.journal.arrow_storage import ArrowStorage
from pairbus.syphon.journal.journal import open_journal
from pairbus.syphon.journal.local_storage import LocalStorage, MountStorage
from pairbus.syphon.journal.storage import join, split, storage_at
from pairbus.syphon.journal.storage_port import Storage, errors_naming
from tests.support.journal_rows import mock_root


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
    """The query of a URI stays at its end."""
    assert join(folder, "n") == path
    assert split(path) == (folder.rstrip("/").replace("/?", "?"), "n")


def test_a_name_without_a_folder_is_in_the_current_one() -> None:
    """And one in the root is in the root."""
    assert split("n") == (".", "n")
    assert split("/n") == ("/", "n")


@pytest.mark.parametrize(
    ("folder", "path", "kind"),
    [
        ("s3a://bucket/a b/_journal?region=eu-west-1", "bucket/a b/_journal/n", ArrowStorage),
        ("abfss://box@account.dfs.core.windows.net/led%20ger", "box/led%20ger/n", ArrowStorage),
        ("dbfs:/ledger", "/dbfs/ledger/n", MountStorage),
        ("/Volumes/a/b/c", "/Volumes/a/b/c/n", MountStorage),
        ("/Volumes/../tmp", "/tmp/n", LocalStorage),
        ("/Volumesque", "/Volumesque/n", LocalStorage),
        ("file:///tmp/a%20b", "/tmp/a%20b/n", LocalStorage),
        ("file://localhost/tmp/a", "/tmp/a/n", LocalStorage),
    ],
)
def test_a_path_means_what_it_means_to_spark(folder: str, path: str, kind: type) -> None:
    """The same string names the same folder, and the kind of storage follows from it."""
    storage = storage_at(folder)
    assert storage.location("n") == path
    assert type(storage) is kind
    assert storage.publishes_exclusively is (kind is LocalStorage)


def test_an_unknown_scheme_is_refused_by_name() -> None:
    """Nothing else of the URI is in the error: it may hold a key."""
    with pytest.raises(ValueError, match=r"gopher://") as raised:
        open_journal("gopher://user:secret@host/x", Head("contoso", 3))
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("folder", ["abfss://container/x", "s3:///x", "s3://bucket/x?colour=red", "file://host/x"])
def test_a_uri_that_names_no_storage_is_an_option_error(folder: str) -> None:
    """Commands print it in one line and exit with the code for a bad set-up."""
    with pytest.raises(OptionError, match=r"journal can(not)? be kept on \w+://"):
        storage_at(folder)


# --- the port, on every kind of storage ------------------------------------------------------------------------------


@pytest.fixture
def storage(root: str) -> Storage:
    return storage_at(root)


def test_a_file_is_read_as_it_was_put(storage: Storage) -> None:
    """With the folders above it; the whole of it or a part, and never beyond its end."""
    storage.put("a/b", b"0123456789")
    assert storage.read("a/b") == b"0123456789"
    assert storage.read("a/b", 3) == b"3456789"
    assert storage.read("a/b", 3, 5) == b"34"
    assert storage.read("a/b", 8, 99) == b"89"
    assert storage.read("a/b", 99) == b""
    assert storage.read("a/b", 5, 3) == b""
    storage.put("a/b", b"new")
    assert storage.read("a/b") == b"new"


def test_files_and_folders_are_listed(storage: Storage) -> None:
    """Files with all folders below, by name and with the time of their change; folders of one level."""
    assert (storage.files(""), storage.files("a"), storage.folders()) == ([], [], [])
    for name in ("a/2", "a/1", "a/c/3", "b/4"):
        storage.put(name, b"")
    assert [each.name for each in storage.files("a")] == ["1", "2", "c/3"]
    assert [each.name for each in storage.files("")] == ["a/1", "a/2", "a/c/3", "b/4"]
    assert storage.folders() == ["a", "b"]
    assert all((each.changed_at or 0) > 1e18 for each in storage.files(""))
    assert [storage.is_file(name) for name in ("a", "a/1", "a/3")] == [False, True, False]


def test_a_missing_file_is_an_error_that_names_it(storage: Storage) -> None:
    """To read it; to delete it is none, nor to delete a missing folder."""
    with pytest.raises(FileNotFoundError) as raised:
        storage.read("a/b")
    assert raised.value.filename == storage.location("a/b")
    storage.delete("a/b")
    storage.delete_folder("a")
    storage.delete_empty_folder("a")


def test_the_first_content_that_is_published_stays(storage: Storage) -> None:
    """The second call gets the content of the first, and no temporary file stays."""
    assert storage.publish("a/b", b"first") == b"first"
    assert storage.publish("a/b", b"second") == b"first"
    assert storage.read("a/b") == b"first"
    assert [each.name for each in storage.files("a")] == ["b"]


def test_a_folder_is_deleted_with_everything_in_it(storage: Storage) -> None:
    """And nothing beside it."""
    for name in ("a/1", "a/c/2", "ab/3"):
        storage.put(name, b"")
    storage.delete("a/1")
    assert [each.name for each in storage.files("a")] == ["c/2"]
    storage.delete_folder("a/c")
    storage.delete_empty_folder("a", unused=True)
    assert (storage.files("a"), storage.folders()) == ([], ["ab"])


def test_a_folder_with_a_file_is_not_deleted_as_empty(storage: Storage) -> None:
    """Though its caller says that no process uses it."""
    storage.put("a/1", b"")
    storage.delete_empty_folder("a", unused=True)
    assert [each.name for each in storage.files("a")] == ["1"]


def test_an_empty_folder_in_use_is_kept_where_a_file_may_appear_meanwhile(storage: Storage) -> None:
    """A store looks and removes in two steps. A disk does both at once."""
    storage.put("a/1", b"")
    storage.delete("a/1")
    storage.delete_empty_folder("a")
    assert storage.folders() == (["a"] if isinstance(storage, ArrowStorage) else [])


class RivalFilesystem:
    """A file system on which another process publishes first, or on which no rename works."""

    def __init__(self, real: Any, content: bytes | None) -> None:
        self._real = real
        self._content = content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def move(self, source: str, target: str) -> None:
        if self._content is not None:
            with self._real.open_output_stream(target) as stream:
                stream.write(self._content)
        raise OSError("no rename")


@pytest.mark.parametrize("content", [b"rival", None])
def test_a_rename_that_fails_leaves_no_temporary_file(content: bytes | None) -> None:
    """If another process has published first, its content counts. Otherwise the error is raised."""
    from pyarrow import fs

    filesystem, folder = fs.FileSystem.from_uri(mock_root())
    storage = ArrowStorage(RivalFilesystem(filesystem, content), folder, atomic=False)
    if content is None:
        with pytest.raises(OSError, match="no rename"):
            storage.publish("a/b", b"mine")
    else:
        assert storage.publish("a/b", b"mine") == b"rival"
    assert [each.name for each in storage.files("a")] == (["b"] if content else [])


@pytest.mark.parametrize("kind", [LocalStorage, MountStorage])
def test_files_are_synced_with_their_folders(
    kind: type[LocalStorage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data first, then the entry of the folder that leads to it."""
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    storage = kind(str(tmp_path))
    storage.put("put", b"x")
    assert synced == [str(tmp_path / "put"), str(tmp_path)]
    synced.clear()
    storage.publish("published", b"x")
    assert synced[0].startswith(str(tmp_path / "published."))
    assert synced[1:] == [str(tmp_path)]


def fsync_failing(number: int) -> Callable[[int], None]:
    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_only_a_mount_may_lack_fsync(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes a file durable when it is closed. A disk that cannot sync has lost data, as any storage with EIO."""
    monkeypatch.setattr(os, "fsync", fsync_failing(number))
    with pytest.raises(OSError, match="a") as raised:
        LocalStorage(str(tmp_path)).put("a", b"x")
    assert (raised.value.errno, raised.value.filename) == (number, str(tmp_path / "a"))
    mount = MountStorage(str(tmp_path))
    if number == errno.EINVAL:
        mount.put("b", b"x")
        assert mount.read("b") == b"x"
    else:
        with pytest.raises(OSError, match="b"):
            mount.put("b", b"x")


def test_every_error_of_storage_names_its_path() -> None:
    """Of the operating system or of Arrow; an error that has a path keeps it."""
    for error, number in (
        (OSError("no reason"), errno.EIO),
        (FileNotFoundError("no reason"), errno.ENOENT),
        (OSError(errno.EACCES, "no"), errno.EACCES),
        (pa.ArrowInvalid("no reason"), errno.EIO),
    ):
        with pytest.raises(OSError, match="/the/path") as raised, errors_naming("/the/path"):
            raise error
        assert raised.value.errno == number
    with pytest.raises(OSError, match="/other") as raised, errors_naming("/the/path"):
        raise OSError(errno.EACCES, "no", "/other")
