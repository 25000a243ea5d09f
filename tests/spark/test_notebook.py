"""notebooks/after_the_outage.ipynb runs on a ledger, and is committed without outputs."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import nbformat
import pandas as pd  # type: ignore[import-untyped]
import pytest
from nbclient import NotebookClient
from pyspark.sql import SparkSession

from pairbus.domain.outcome import Outcome, QueueSummary
from pairbus.spark import Ledger
from pairbus.spark.ledger import BatchRow
from pairbus.syphon.journal.folding import JournalFolder
from tests.support.spark import MOMENT, write_journal

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "notebooks" / "after_the_outage.ipynb"


@pytest.fixture
def notebook() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)


@pytest.fixture
def ledger(spark: SparkSession, tmp_path: Path) -> str:
    """A small ledger: two queues, one batch, deliveries and dead letters."""
    folder = str(tmp_path / "ledger")
    root = f"{folder}/_journal"
    journals = JournalFolder(root)
    journals.begin("run", None)
    write_journal(root, range(1, 41))
    write_journal(root, range(1, 6), queue_index=1, outcome=Outcome.DEAD_LETTERED, settled_at=MOMENT + 2500)
    made = Ledger(spark, folder)
    made.fold(journals)
    journals.finish()
    rows = [
        BatchRow(QueueSummary(0, received=40, delivered=40, operations=120, seconds=1.5, empty=True), 40, 0),
        BatchRow(QueueSummary(1, received=5, dead_lettered=5, operations=10, seconds=0.5, empty=True), 5, 0),
    ]
    made.append_batch("contoso", "run", 0, datetime.fromtimestamp(MOMENT / 1000, timezone.utc), rows)
    return folder


def test_it_is_committed_without_outputs(notebook: Any) -> None:
    """So that each run shows its own ledger, and changes of the notebook can be reviewed."""
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)


def test_make_runs_it_with_valid_options() -> None:
    """The command line of `make notebook`, with a notebook that does not exist: no option is refused."""
    (line,) = [line for line in (ROOT / "Makefile").read_text().splitlines() if "jupyter-execute" in line]
    options = [word for word in line.split() if word.startswith("--")]
    assert options
    assert "unrecognized arguments" not in complaint(*options)
    assert "unrecognized arguments" in complaint(*options, "--no-such-option")


def complaint(*options: str) -> str:
    command = [str(Path(sys.executable).with_name("jupyter-execute")), *options, "no-such.ipynb"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode
    return ended.stderr


def in_this_process(notebook: Any, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run the cells in this process and its session; return the number of plots, and the output."""
    names: dict[str, Any] = {}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            *statements, last = ast.parse(cell.source).body
            shows = isinstance(last, ast.Expr)
            exec(compile(ast.Module(statements if shows else [*statements, last], []), "cell", "exec"), names)
            if isinstance(last, ast.Expr):
                print(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
    return len(plt.get_fignums()), capsys.readouterr().out


def in_a_kernel(notebook: Any, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run the notebook in a kernel of Jupyter's; return the same."""
    NotebookClient(notebook, timeout=240, kernel_name="python3").execute(cwd=str(NOTEBOOK.parent))
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    plots = sum("image/png" in output.get("data", {}) for output in outputs)
    shown = [output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in outputs]
    return plots, "\n".join(shown)


def test_a_folder_without_a_ledger_is_an_error(
    notebook: Any,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In the first cell, rather than empty plots later."""
    monkeypatch.setenv("PAIRBUS_LEDGER", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="holds no ledger of pairbus"):
        in_this_process(notebook, capsys)


@pytest.mark.parametrize("run", [in_this_process, pytest.param(in_a_kernel, marks=pytest.mark.campaign)])
def test_it_runs_on_a_ledger(
    notebook: Any,
    ledger: str,
    run: Callable[..., tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It shows four plots, the counts, the dead letters, and the result of `verify`."""
    backend = "agg" if run is in_this_process else "inline"
    for name, value in (("PAIRBUS_LEDGER", ledger), ("SPARK_LOCAL_IP", "127.0.0.1"), ("MPLBACKEND", backend)):
        monkeypatch.setenv(name, value)
    if run is in_a_kernel:
        for name in [name for name in os.environ if name.startswith(("PYSPARK_GATEWAY", "COV_"))]:
            monkeypatch.delenv(name)
    with plt.rc_context(), pd.option_context("display.max_columns", None):
        plots, shown = run(notebook, capsys)
    plt.close("all")
    assert plots == 4
    assert "45 rows, 2 of batches" in shown
    assert "every message is accounted for" in shown
    assert "dead_lettered" in shown
