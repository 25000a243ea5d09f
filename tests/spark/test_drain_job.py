"""`jobs/drain.py`: its exit codes, its output, and its end by a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pairbus.spark import Ledger
from pairbus.spark.session import delta_jars
from tests.support.from_file import module_from
from tests.support.pairing import Pair
from tests.support.spark import Backlog, write_toml
from tests.support.waiting import wait_until

JOB = Path(__file__).resolve().parents[2] / "jobs" / "drain.py"


@pytest.fixture
def written(backlog: Backlog) -> Path:
    """A configuration file for the backlog."""
    backlog.config()
    return write_toml(backlog.folder / "pairbus.toml", backlog.mapping(task_budget=60, idle_poll_interval=1))


@pytest.fixture
def drain(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """A function that runs the job in this process and its session, and returns the exit code."""
    module = module_from("jobs/drain.py")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["drain.py", *arguments])
        code: int = module.main()
        return code

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


class TestUsage:
    """Exit code 2: nothing was started."""

    def test_bad_usage(self, drain: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
        """No configuration, or both ways to run at once."""
        for arguments in ([], ["--config", "x", "--once", "--continuous"]):
            with pytest.raises(SystemExit) as end:
                drain(*arguments)
            assert end.value.code == 2
        assert "not allowed with" in capsys.readouterr().err

    def test_a_bad_configuration(
        self, drain: Callable[..., int], backlog: Backlog, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """All mistakes are named at once, those of the command line too; no session is started."""
        mapping = backlog.mapping(late="perhaps", task_budget=0)
        del mapping["secondary"]
        assert drain("--config", str(write_toml(backlog.folder / "bad.toml", mapping))) == 2
        err = capsys.readouterr().err
        assert all(name in err for name in ("[secondary]", "late", "task_budget", "bad.toml"))
        mapping = backlog.mapping()
        mapping["ledger"]["path"] = "abfss://container/x"
        assert drain("--config", str(write_toml(backlog.folder / "bad.toml", mapping))) == 2
        assert "[ledger] path names no storage account" in capsys.readouterr().err
        assert drain("--config", str(backlog.folder / "nowhere.toml")) == 2
        assert "cannot be read" in capsys.readouterr().err

    def test_a_secret_that_is_not_there(
        self,
        spark: SparkSession,
        drain: Callable[..., int],
        backlog: Backlog,
        written: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """A reference that leads nowhere is a wrong configuration."""
        (backlog.folder / "secrets" / "secondary").unlink()
        assert drain("--config", str(written)) == 2
        assert "secondary cannot be read" in capsys.readouterr().err


class TestOnce:
    """`--once`, which is the default."""

    def test_what_is_held_is_listed(
        self,
        spark: SparkSession,
        pair: Pair,
        backlog: Backlog,
        written: Path,
        drain: Callable[..., int],
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """Exit code 0: all other messages were delivered; `--queues` leaves other queues alone."""
        queue, busy = pair.queue(), pair.queue()
        backlog.park({0: queue, 1: queue}, 5)
        backlog.park({0: busy}, 2)
        pair.primary.faults.busy(busy)
        assert drain("--config", str(written), "--once", "--queues", "0", "--max-rate", "1000") == 0
        out = capsys.readouterr().out
        assert f"held back in the backlog: 2 for {busy}: " in out
        assert "nothing else is in the requested part of the backlog" in out
        assert (pair.arrived(queue), backlog.depths()) == (5, {0: 2, 1: 5})

    def test_dead_letters_are_listed(
        self,
        spark: SparkSession,
        backlog: Backlog,
        written: Path,
        drain: Callable[..., int],
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """With their destination and the reason, because the exit code is 0."""
        backlog.park({0: "no-such-queue"}, 3)
        assert drain("--config", str(written)) == 0
        said = capsys.readouterr().out
        assert "dead-lettered in the backlog: 3 for no-such-queue: amqp:not-found" in said
        assert "the backlog is empty" in said

    def test_a_ledger_that_cannot_be_written(
        self, spark: SparkSession, backlog: Backlog, drain: Callable[..., int], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A file in place of the folder: one line that names the key, without Java's stack."""
        backlog.config()
        (backlog.folder / "file").write_text("not a folder")
        mapping = backlog.mapping()
        mapping["ledger"]["path"] = str(backlog.folder / "file")
        assert drain("--config", str(write_toml(backlog.folder / "bad.toml", mapping))) == 2
        said = capsys.readouterr().err
        assert "[ledger] path cannot be used: " in said
        assert "\tat " not in said

    def test_a_secondary_that_is_down(
        self,
        spark: SparkSession,
        pair: Pair,
        written: Path,
        drain: Callable[..., int],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Exit code 1, with the cause."""
        pair.secondary.kill()
        assert drain("--config", str(written)) == 1
        assert f"backlog depth unavailable for {pair.name}: " in caplog.text


def assert_stopped_early(spark: SparkSession, pair: Pair, backlog: Backlog, queue: str) -> None:
    """No journal is left, every delivered message is in the ledger, and the others are in the backlog."""
    arrived = pair.arrived(queue)
    assert 0 < arrived < 3000
    assert backlog.depths()[0] == 3000 - arrived
    assert list((backlog.folder / "ledger" / "_journal").rglob("*.journal")) == []
    assert Ledger(spark, str(backlog.folder / "ledger")).outcomes().count() == arrived


def test_sigterm(spark: SparkSession, pair: Pair, backlog: Backlog, written: Path, drain: Callable[..., int]) -> None:
    """`--continuous` ends with 0 on SIGTERM during a drain, after the messages in flight are settled."""
    queue = pair.queue()
    backlog.park({0: queue}, 3000)

    def stop() -> None:
        try:
            wait_until(lambda: pair.arrived(queue) > 0, 120)
        finally:  # else the job would never end
            if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:  # that would end the tests
                os.kill(os.getpid(), signal.SIGTERM)

    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(stop)
        assert drain("--config", str(written), "--continuous", "--max-rate", "50") == 0
        stopping.result()
    assert_stopped_early(spark, pair, backlog, queue)


def python() -> list[str]:
    """The command of a Python that starts the JVM."""
    return [sys.executable]


def spark_submit() -> list[str]:
    """The command of a JVM that starts Python."""
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]"]
    settings = ("spark.driver.host=127.0.0.1", "spark.ui.enabled=false", "spark.driver.extraJavaOptions=-Xss8m")
    confs = [word for setting in settings for word in ("--conf", setting)]
    return [*submit, "--jars", ",".join(map(str, delta_jars())), *confs]


@pytest.mark.parametrize("main", [spark_submit, pytest.param(python, marks=pytest.mark.campaign)])
def test_ctrl_c(
    spark: SparkSession, pair: Pair, backlog: Backlog, written: Path, main: Callable[[], list[str]]
) -> None:
    """The same in processes of its own, where Ctrl-C goes to both Python and the JVM."""
    queue = pair.queue()
    backlog.park({0: queue}, 3000)
    command = [*main(), str(JOB), "--config", str(written), "--continuous", "--max-rate", "50"]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    environment = {name: value for name, value in environment.items() if name != "PYSPARK_GATEWAY_PORT"}
    log = backlog.folder / "log"
    with log.open("w") as file:
        job = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
    try:
        wait_until(lambda: pair.arrived(queue) > 0 or job.poll() is not None, 240, log.read_text)
        os.killpg(job.pid, signal.SIGINT)
        assert job.wait(180) == 0, log.read_text()
    finally:
        job.kill()
        job.wait()
    assert_stopped_early(spark, pair, backlog, queue)
