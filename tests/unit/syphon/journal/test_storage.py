"""The names of storage: paths and URIs mean to the journal what they mean to Spark."""

from __future__ import annotations

import pytest

from pairbus.domain.outcome import Head
from pairbus.errors import OptionError
from pairbus.syphon.journal.arrow_storage import ArrowStorage
from pairbus.syphon.journal.journal import open_journal
from pairbus.syphon.journal.local_storage import LocalStorage, MountStorage
from pairbus.syphon.journal.storage import join, split, storage_at


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
