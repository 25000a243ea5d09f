"""docs/testing-your-job.md: its job and its test are files that run as they stand."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from pathlib import Path

from pairbus.localbus import LocalBus
from pairbus.spark.testing import syphon_config

ROOT = Path(__file__).resolve().parents[2]


def test_the_guides_example_runs(tmp_path: Path) -> None:
    """With both files in a folder, pytest runs two tests that pass."""
    guide = (ROOT / "docs" / "testing-your-job.md").read_text()
    files = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", guide, re.MULTILINE | re.DOTALL))
    assert sorted(files) == ["orders_job.py", "test_orders_job.py"]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'temp'}"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "2 passed" in run.stdout


def test_a_configuration_for_tests_holds_no_secret(localbus: LocalBus, tmp_path: Path) -> None:
    """Connection strings are in files that only their owner can read, and the references find them."""
    config = syphon_config(localbus, localbus, tmp_path, queues=2)
    assert "SharedAccessKey" not in repr(config)
    assert (config.queues, config.primary.name) == ((0, 1), localbus.name)
    assert config.primary.resolve().host == f"127.0.0.1:{localbus.port}"
    modes = {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.glob("*.connection")}
    assert modes == {0o600}
