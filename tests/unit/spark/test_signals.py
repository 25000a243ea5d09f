"""Signals between the driver, its reader and its tasks."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from pairbus.spark.signals import FolderProbe, KillSignal, ReaderNote, ReaderNotes, StopSignal


class TestReaderNote:
    """The note to the reader."""

    def test_what_is_written_is_read(self, tmp_path: Path) -> None:
        """Queue indexes are numbers again, and no file is an empty note."""
        file = tmp_path / "note"
        assert ReaderNote.read(None) == ReaderNote.read(file) == ReaderNote()
        note = ReaderNote(3, {0: 5, 7: None}, 12.5, 99.0, True)
        note.write(file)
        assert ReaderNote.read(file) == note

    def test_notes_of_a_run_are_numbered(self, tmp_path: Path) -> None:
        """And once the run is stopping, each says so."""
        file, stopping = tmp_path / "note", threading.Event()
        notes = ReaderNotes(file, stopping)
        notes.write(ReaderNote(depths={0: 5}))
        first = ReaderNote.read(file)
        stopping.set()
        notes.write(ReaderNote())
        second = ReaderNote.read(file)
        assert [(each.serial, each.stopping) for each in (first, second)] == [(1, False), (2, True)]

    def test_a_note_that_cannot_be_written_is_a_warning(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """The reader queries by itself."""
        ReaderNotes(tmp_path / "no folder" / "note", threading.Event()).write(ReaderNote())
        assert "the reader queries by itself" in caplog.text


class TestJournalFolderSignals:
    """Files in the journal folder."""

    def test_a_stop(self, tmp_path: Path) -> None:
        """Seen by tasks of its run only, until it is removed."""
        signal, other = StopSignal(str(tmp_path), "run"), StopSignal(str(tmp_path), "other")
        assert not signal.is_set()
        signal.set()
        assert (signal.is_set(), other.is_set()) == (True, False)
        signal.remove()
        assert not signal.is_set()
        assert list(tmp_path.iterdir()) == []

    def test_storage_that_fails_stops_nothing(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        (tmp_path / "run.stop").mkdir()
        assert not StopSignal(str(tmp_path), "run").is_set()
        assert "stop signal of run run cannot be read" in caplog.text

    def test_a_kill(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """A file that cannot be read is taken for a kill of a moment ago."""
        signal = KillSignal(str(tmp_path), "run")
        assert signal.until() == 0.0
        signal.set(12.5)
        assert signal.until() == 12.5
        (tmp_path / "run.killed").write_text("12.")
        assert signal.until() == 12.0
        (tmp_path / "run.killed").write_text("half a ma")
        assert signal.until() > time.time()
        assert "kill signal of run run cannot be read" in caplog.text
        signal.remove()
        assert signal.until() == 0.0

    def test_a_probe_is_seen_where_the_folder_is_shared(self, tmp_path: Path) -> None:
        probe = FolderProbe(str(tmp_path), "run")
        probe.set()
        assert probe.is_seen()
        assert not FolderProbe(str(tmp_path / "other"), "run").is_seen()

    def test_a_probe_that_cannot_be_read_is_not_seen(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        (tmp_path / "run.sample").mkdir()
        assert not FolderProbe(str(tmp_path), "run").is_seen()
        assert "cannot be read" in caplog.text

    def test_signals_have_files_of_their_own(self, tmp_path: Path) -> None:
        """Names that other versions of pairbus know."""
        for signal in (StopSignal(str(tmp_path), "run"), FolderProbe(str(tmp_path), "run")):
            signal.set()
        KillSignal(str(tmp_path), "run").set(1.0)
        assert {path.name for path in tmp_path.iterdir()} == {"run.stop", "run.killed", "run.sample"}
