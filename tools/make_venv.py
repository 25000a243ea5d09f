"""Set-up of .venv, with an editable pairbus and its pinned dependencies, unless it is up to date.

`make` runs this before everything else, so the usual case, nothing to do, must be fast. It uses only the standard
library. Two files hold the state. The stamp inside .venv names the files that it was made from, and is written last.
The unfinished mark beside .venv exists during the set-up, so that the next run detects an interruption and starts over.
"""

import fcntl
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TextIO

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = "dev,localbus,eventhubs,spark"
BUILT_FROM_SOURCE = "python-qpid-proton"


def say(text: str) -> None:
    print(f"pairbus: {text}", file=sys.stderr, flush=True)


def give_up(reason: str) -> NoReturn:
    say(reason)
    sys.exit(1)


class Environment:
    """The virtual environment of one clone."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / ".venv"
        self.python = self.folder / "bin" / "python"
        self.stamp = self.folder / ".pairbus-stamp"
        self.unfinished = root / ".venv-unfinished"
        self.constraints = root / "constraints.txt"

    def recipe(self) -> str:
        """Return the expected content of the stamp: the path, and a digest of the files that determine the packages.

        The scripts in .venv and the editable install contain the path. Without it in the stamp, a copied or moved clone
        would run the code of the old one.
        """
        digest = hashlib.sha256()
        for file in (self.root / "pyproject.toml", self.constraints, Path(__file__)):
            digest.update(file.read_bytes())
        return f"{digest.hexdigest()} {self.root}\n"

    def is_ready(self) -> bool:
        return (
            self.stamp.is_file()
            and not self.unfinished.exists()
            and self.stamp.read_text() == self.recipe()
            and self.fits(sys.version_info[:2])
        )

    def fits(self, version: tuple[int, int]) -> bool:
        """Return True if .venv works and has this Python version."""
        return self.answers(f"import sys; sys.exit(sys.version_info[:2] != {version})")

    def answers(self, code: str) -> bool:
        try:
            return subprocess.run([self.python, "-c", code], capture_output=True).returncode == 0
        except OSError:
            return False

    def why_start_over(self) -> str | None:
        if not self.folder.exists():
            return "making .venv"
        if self.unfinished.exists():
            return "the last set-up was interrupted; making .venv again"
        if not self.fits(sys.version_info[:2]):
            return f"making .venv again, with Python {sysconfig.get_python_version()}"
        if not self.answers("import pip"):
            return "making .venv again: it has no pip"
        return None

    def create(self) -> None:
        if (reason := why_no_venv()) is not None:
            give_up(reason)
        # Run by the old .venv, this still uses the Python that the old one was made with.
        if subprocess.run([sys.executable, "-m", "venv", "--clear", self.folder]).returncode != 0:
            give_up(f"{sys.executable} -m venv failed (see above)")

    def pip(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        run = [
            str(self.python),
            "-m",
            "pip",
            *arguments,
            "--quiet",
            "--disable-pip-version-check",
            "--no-input",
        ]
        code = subprocess.run(run, cwd=self.root, env=environment).returncode
        if code < 0 or code == 130:
            sys.exit(130)
        if code != 0:
            # A pip that fails restores what it had replaced, so the next run can continue from here.
            self.unfinished.unlink(missing_ok=True)
            give_up("pip failed (see above); correct that and run make again")

    def install(self, compiler: str | None) -> None:
        self.pip("install", "--constraint", "constraints.txt", "pip")
        self.pip(
            "install",
            "--no-compile",  # saves a third of the time; Python compiles the few modules that are imported
            "--constraint=constraints.txt",
            "--build-constraint=constraints.txt",
            f"--editable=.[{EXTRAS}]",
            environment={**os.environ, "CC": compiler} if compiler else None,
        )

    def has_proton(self) -> bool:
        return self.answers("import cproton, proton")

    def has_proton_wheel(self) -> bool:
        """Return True if pip can install Proton without compiling: from its cache, a folder of wheels or the index."""
        pip = [str(self.python), "-m", "pip", "--disable-pip-version-check"]
        cached = subprocess.run([*pip, "cache", "list", BUILT_FROM_SOURCE], capture_output=True, text=True)
        ours = f"cp{sys.version_info[0]}{sys.version_info[1]}-"
        if re.search(rf"python_qpid_proton-\S*({ours}|abi3)\S*\.whl", cached.stdout):
            return True
        dry_run = ["install", "--dry-run", "--no-deps", f"--only-binary={BUILT_FROM_SOURCE}"]
        given = subprocess.run(
            [*pip, *dry_run, f"--constraint={self.constraints}", BUILT_FROM_SOURCE], capture_output=True
        )
        return given.returncode == 0


def why_no_venv() -> str | None:
    """Return the reason why this Python cannot create a virtual environment with pip, or None if it can."""
    if importlib.util.find_spec("ensurepip") is not None and importlib.util.find_spec("venv") is not None:
        return None
    package = f"python{sysconfig.get_python_version()}-venv"
    return f"{sys.executable} cannot make a virtual environment: apt install {package} (Debian, Ubuntu)"


def require_compiler(has_wheel: Callable[[], bool]) -> str | None:
    """Exit with a one-line message unless Proton, which PyPI offers as source only, is built or can be built here.

    Return the compiler to use if it is not Python's default. Building needs only a compiler and Python's headers.
    Without pkg-config and OpenSSL's headers, Proton is built without TLS, which Python's ssl handles here.
    """
    include = Path(sysconfig.get_path("include"))
    usual = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    compiler = next((c for c in (usual, "cc", "gcc", "clang") if shutil.which(shlex.split(c)[0])), None)
    missing: list[str] = []
    debian: list[str] = []
    fedora: list[str] = []
    has_headers = (include / "Python.h").is_file()
    if compiler is None or (has_headers and not compiles(compiler, include)):
        missing.append("a C compiler" + (f" that works ({compiler} does not)" if compiler else ""))
        debian += ["gcc", "libc6-dev"]
        fedora += ["gcc"]
    if not has_headers:
        missing.append(f"Python's headers ({include / 'Python.h'})")
        debian += [f"python{sysconfig.get_python_version()}-dev"]
        fedora += ["python3-devel"]
    if missing and not has_wheel():
        give_up(
            f"{BUILT_FROM_SOURCE} is compiled during set-up, and this machine lacks {' and '.join(missing)}: "
            f"apt install {' '.join(debian)} (Debian, Ubuntu), dnf install {' '.join(fedora)} (Fedora) "
            "or xcode-select --install (macOS)"
        )
    return None if missing or compiler == usual else compiler


def compiles(compiler: str, include: Path) -> bool:
    """Return True if the compiler works: Debian's gcc may lack the C library's headers, macOS has a stub."""
    test = [*shlex.split(compiler), "-fsyntax-only", f"-I{include}", "-x", "c", "-"]
    return subprocess.run(test, input=b"#include <Python.h>\n", capture_output=True).returncode == 0


def wait_for_turn(root: Path) -> TextIO:
    """Wait until no other set-up runs in this clone, by a lock on an existing file."""
    file = (root / "constraints.txt").open()
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("another make is setting up .venv; waiting for it")
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:
        pass  # some network file systems do not support locks
    return file


def main() -> None:
    environment = Environment(ROOT)
    if environment.is_ready():
        return
    with wait_for_turn(ROOT):
        if environment.is_ready():
            return
        if (start_over := environment.why_start_over()) is not None:
            say(start_over)
            environment.unfinished.touch()
            environment.create()
            environment.unfinished.unlink()
        compiler = None if environment.has_proton() else require_compiler(environment.has_proton_wheel)
        say("installing the pinned dependencies into .venv (the first time takes a minute or two)")
        environment.unfinished.touch()
        environment.install(compiler)
        environment.stamp.write_text(environment.recipe())
        environment.unfinished.unlink()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        say("interrupted; run make again to continue")
        sys.exit(130)
