"""`make demo` and `make demo-localbus` do what they say, from start to end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import pytest

from jobs.demo import SIGN, arguments, reckon
from jobs.demo_story.consumers import Arrived, Parked
from jobs.demo_story.goods import SHARES, Sent
from jobs.demo_story.reckoning import Reckoning
from jobs.demo_story.screen import Screen
from pairbus.sending.status import EntityStatus, PairingStatus
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
#: Enough for every kind of message, every destination and both ways, few enough for a test.
MESSAGES = 2400


def demo(folder: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "jobs.demo", f"--messages={MESSAGES}", f"--folder={folder}", *options]


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def checks(told: str) -> dict[str, str]:
    """The last table: what must be so → yes or NO."""
    return {what: answer for answer, what in re.findall(r"^   (yes|NO) +(\S.*?)  ", told, re.MULTILINE)}


class TestDemo:
    """`make demo`."""

    def test_it_is_not_a_toy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Who says nothing else sees at least 20,000 messages sent."""
        monkeypatch.setattr(sys, "argv", ["demo"])
        assert arguments().messages >= 20_000

    @pytest.mark.parametrize("what", ["folder", "file", "link", "above"])
    def test_it_empties_no_folder_of_somebody_else(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: str
    ) -> None:
        """`--folder` with what no demo has made is refused before anything is removed."""
        kept = tmp_path / "mine" / "kept"
        kept.parent.mkdir()
        kept.touch()
        (tmp_path / "link").symlink_to(kept.parent)
        named = {"folder": kept.parent, "file": kept, "link": tmp_path / "link", "above": kept.parent / ".."}[what]
        monkeypatch.setattr(sys, "argv", ["demo", f"--folder={named}"])
        with pytest.raises(SystemExit) as refused:
            arguments()
        assert refused.value.code == 2
        assert f"--folder {named.resolve()} is there and no demo has made it" in capsys.readouterr().err
        assert kept.exists()

    def test_it_empties_what_a_demo_has_left(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A folder that is not there, an empty one, or one with the sign of an earlier demo may be named."""
        (tmp_path / "empty").mkdir()
        (tmp_path / "earlier").mkdir()
        (tmp_path / "earlier" / SIGN).touch()
        (tmp_path / "earlier" / "drain.log").touch()
        for name in ("new", "empty", "earlier"):
            monkeypatch.setattr(sys, "argv", ["demo", f"--folder={tmp_path / name}"])
            assert arguments().folder == tmp_path / name

    def test_it_tells_an_outage_and_everything_adds_up(self, tmp_path: Path) -> None:
        """From the kill to the last message home; every check holds, and the ledger is left for the notebook."""
        ended = run(demo(tmp_path / "demo"))
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert ended.stderr == ""
        told = ended.stdout
        for chapter in ("kill -9 of the primary", "failed over: orders", "failed back: prices", "the Spark job"):
            assert chapter.lower() in told.lower()
        found = checks(told)
        assert len(found) == 10
        assert set(found.values()) == {"yes"}
        assert re.search(rf"sent = direct \+ parked +{MESSAGES:,} = ", told)
        assert re.search(r"^ +\d+  amqp:not-found  faxes refused it for good", told, re.MULTILINE)
        assert "\x1b" not in told
        assert "\r" not in told
        assert (tmp_path / "demo" / "ledger" / "outcomes" / "_delta_log").is_dir()
        assert (tmp_path / "demo" / SIGN).is_file()

    @pytest.mark.campaign
    def test_a_lost_message_is_noticed(self, tmp_path: Path) -> None:
        """One order is taken away before the consumers come: it is named, and the exit code is not 0."""
        ended = run(demo(tmp_path / "demo", "--lose=1"))
        assert ended.returncode == 1, ended.stdout + ended.stderr
        found = checks(ended.stdout)
        assert [what for what, answer in found.items() if answer == "NO"] == ["each arrived, or is a dead letter"]
        assert re.search(r"lost: order-\d+-\d+$", ended.stdout, re.MULTILINE)

    def test_ctrl_c_leaves_nothing_behind(self, tmp_path: Path) -> None:
        """Interrupted while both brokers and the Spark job run: it says so, and none of them is left."""
        environment = {
            **os.environ,
            "TMPDIR": str(tmp_path),
        }  # so that every process of it can be told by its arguments
        output = tmp_path / "output.txt"
        with output.open("w") as file:
            process = subprocess.Popen(
                demo(tmp_path / "demo"),
                cwd=ROOT,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                preexec_fn=hear_ctrl_c,
            )
        deadline = time.monotonic() + 240
        while not any("SparkSubmit" in line for line in running(tmp_path)):
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.1)
        assert sum("pairbus.cli localbus" in line for line in running(tmp_path)) == 2
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 1, output.read_text()
        assert "interrupted; everything that it had started has stopped" in output.read_text()
        wait_until(lambda: running(tmp_path) == [], 30, lambda: running(tmp_path))


def hear_ctrl_c() -> None:
    """A shell has what it starts in the background ignore Ctrl-C, and that is passed on: also to the tests."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def running(folder: Path) -> list[str]:
    """The processes of this machine that have the folder among their arguments."""
    found = subprocess.run(["ps", "-A", "-ww", "-o", "args="], capture_output=True, text=True, check=True)
    return [line for line in found.stdout.splitlines() if str(folder) in line]


class TestReckoning:
    """What the demo makes of what it has found."""

    def test_all_is_well(self) -> None:
        """A step that came both ways, because its answer was lost at the kill, is allowed."""
        assert wrong(world()) == {}

    @pytest.mark.parametrize(
        ("harm", "what"),
        [
            (lambda found: found["carts a"].pop(0), "each arrived, or is a dead letter"),
            (lambda found: found["carts a"].append(found["carts a"][0]), "twice, by answers lost at the kill"),
            (lambda found: found["carts a"].reverse(), "order within sessions, each way by itself"),
            (lambda found: found["carts a"].__setitem__(0, arrived("cart-0", b"other")), "bytes equal"),
            (lambda found: found["carts a"].append(arrived("stranger")), "each arrived, or is a dead letter"),
        ],
        ids=["lost", "twice", "disordered", "altered", "strange"],
    )
    def test_what_is_wrong_is_found(self, harm: Callable[[dict[str, list[Arrived]]], object], what: str) -> None:
        """A message that is lost, repeated, out of order, altered, or was never sent."""
        reckoning = world()
        harm(reckoning.arrived)
        assert what in wrong(reckoning)

    def test_what_is_wrong_is_told_and_decides(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A lost message is named in the last table, and the demo does not say that it adds up."""
        assert reckon(Screen(), world())
        assert set(checks(capsys.readouterr().out).values()) == {"yes"}
        reckoning = world()
        reckoning.arrived["carts a"].pop(0)
        assert not reckon(Screen(), reckoning)
        told = capsys.readouterr().out
        wrong_ones = [what for what, answer in checks(told).items() if answer == "NO"]
        assert wrong_ones == ["each arrived, or is a dead letter"]
        assert "lost: cart-0" in told

    def test_a_ledger_that_says_otherwise_is_found(self) -> None:
        """A parked message without a row, and a ledger that does not prove conservation."""
        reckoning = world()
        reckoning.audit["rows"].pop()
        reckoning.audit["ok"] = False
        assert set(wrong(reckoning)) == {"rows of the ledger = parked", "conservation, by the ledger"}


AT = datetime(2026, 11, 17, tzinfo=timezone.utc)


def arrived(message_id: str, digest: bytes = b"same") -> Arrived:
    return Arrived(message_id, AT, digest)


def world() -> Reckoning:
    """Four steps of one cart: 0 and 1 direct, 2 both ways, 3 parked only; and one fax that is a dead letter."""
    book = {f"cart-{n}": Sent(f"cart-{n}", "carts", n, "a", None, b"same") for n in range(4)}
    book["fax-0"] = Sent("fax-0", "faxes", 0, None, None, b"same")
    parked = [Parked(name, "0", book[name].destination) for name in ("cart-2", "cart-3", "fax-0")]
    dead = [Parked("fax-0", "0", "faxes", "amqp:not-found", "faxes refused it")]
    entity = partial(EntityStatus, state="available", since=AT, last_error=None, last_error_at=None)
    entities = {
        name: entity(path=name, last_ping_at=None, last_ping_error=None, sent=sent, parked=kept)
        for name, (sent, kept) in {**dict.fromkeys(SHARES, (0, 0)), "carts": (2, 2), "faxes": (0, 1)}.items()
    }
    status = PairingStatus("contoso", "backup", entities, {}, 1, {}, {}, False)
    home = {"carts a": [arrived(f"cart-{n}") for n in (0, 1, 2, 2, 3)]}
    rows = [[each.message_id, each.destination, "delivered"] for each in parked[:2]]
    audit = {"ok": True, "verification": "", "operations": 9, "rows": [*rows, ["fax-0", "faxes", "dead-lettered"]]}
    return Reckoning(book, status, parked, dead, home, audit)


def wrong(reckoning: Reckoning) -> dict[str, tuple[str, ...]]:
    return {each.what: each.wrong for each in reckoning.checks() if not each.ok}


def test_a_terminal_gets_a_live_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Progress overwrites itself there, and a line that stays wipes it first."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    screen = Screen()
    screen.progress("1 of 2")
    screen.say("done")
    assert capsys.readouterr().out == "\r\x1b[K   … 1 of 2\r\x1b[Kdone\n"


def test_the_demo_of_localbus_shows_every_step() -> None:
    """It exits with 0 only if each of its steps came out as it prints."""
    ended = run([sys.executable, str(ROOT / "jobs" / "demo_localbus.py")])
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout + ended.stderr
    for step in ("a queue", "a session", "a topic with filters", "a dead letter", "a fault", "100 of 100 still there"):
        assert step in ended.stdout
