"""Tries the wheel of dist/ on every supported Python that is at hand: `python -m tools.wheels [PYTHON ...]`, after `make dist`.

Each Python gets a fresh environment with the dependencies that the wheel declares. A wheel with the compiled function of `send()`
fits one Python only, so the other Pythons build their own wheel from the sdist. In each environment, a gateway commits a record and
returns it. The interpreters are the named ones, `python3.N` on the PATH, and those that uv finds. The last line names the Pythons
that were not at hand.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from tests.support.ports import free_base
from tools.release_check import ROOT, version_of

PREFIX = "Programming Language :: Python :: "
ASK_VERSION = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
INSTALL_S, COMMAND_S = 900.0, 60.0


def supported(root: Path) -> list[str]:
    """Return the supported versions of Python, from pyproject.toml."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    return [text.removeprefix(PREFIX) for text in project["classifiers"] if text.startswith(f"{PREFIX}3.")]


def version_at(python: str) -> str:
    """Return the version of an interpreter that can create environments, or "". A pyenv shim may start no interpreter."""
    try:
        return run([python, "-c", ASK_VERSION]).strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def find(version: str, given: Sequence[str]) -> str | None:
    """Return an interpreter of the version: a given one, one on the PATH, or one that uv finds."""
    candidates = [*given, f"python{version}"]
    if uv := shutil.which("uv"):
        found = subprocess.run(
            [uv, "python", "find", "--no-python-downloads", version], capture_output=True, text=True, check=False
        )
        candidates += found.stdout.split()
    return next((python for python in candidates if version_at(python) == version), None)


def run(command: Sequence[str | Path], stdin: str = "", timeout_s: float = COMMAND_S) -> str:
    """Run a command outside of the checkout's environment, and return its output.

    Raises:
        SubprocessError: the command fails, or takes too long.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TUTTI", "VIRTUAL_ENV"))}
    return subprocess.run(
        command, input=stdin, env=environment, cwd="/", capture_output=True, text=True, timeout=timeout_s, check=True
    ).stdout


def package_for(version: str, dist: Path) -> Path:
    """Return the wheel if it fits this Python, else the sdist.

    Raises:
        FileNotFoundError: dist/ has neither.
    """
    tags = (f"-cp{version.replace('.', '')}-", "-py3-")
    fitting = [path for path in dist.glob("*.whl") if any(tag in path.name for tag in tags)]
    for path in [*fitting, *dist.glob("*.tar.gz")]:
        return path
    raise FileNotFoundError(f"{dist} has no package for Python {version}: run make dist")


def try_out(python: str, package: Path, release: str) -> None:
    """Install the package for a gateway into a fresh environment, and send a record through a gateway of it.

    Raises:
        RuntimeError: the installed command has another version, or the record does not come back.
        SubprocessError: a command fails, or takes too long.
    """
    with tempfile.TemporaryDirectory() as scratch:
        installed = Path(scratch, "venv", "bin")
        run([python, "-m", "venv", installed.parent])
        pip: list[str | Path] = [installed / "python", "-m", "pip", "--disable-pip-version-check", "--quiet"]
        run([*pip, "install", f"{package}[gateway]"], timeout_s=INSTALL_S)
        run([*pip, "check"])
        _expect("tutti --version", run([installed / "tutti", "--version"]), f"tutti {release}\n")
        _send_and_read(installed / "tutti", Path(scratch))


def _send_and_read(tutti: Path, scratch: Path) -> None:
    port = str(free_base())
    url, topic = ("--url", f"tutti://127.0.0.1:{port}"), ("--topic", "greetings")
    command = [str(tutti), "dev", "--port", port, "--data", str(scratch / "data")]
    log = scratch / "log"
    with log.open("wb") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, cwd="/") as group:
        try:
            if group.stdout is None or not select.select([group.stdout], [], [], COMMAND_S)[0] or not group.stdout.readline():
                raise RuntimeError(f"tutti dev is not ready: {log.read_text()[-2000:]}")
            run([tutti, "produce", *url, *topic], stdin="hello\n")
            _expect("tutti tail", run([tutti, "tail", *url, *topic, "--format", "value"]), "hello\n")
        finally:
            group.terminate()
            try:
                code = group.wait(COMMAND_S)
            except subprocess.TimeoutExpired:
                group.kill()
                raise
    _expect("the exit code of tutti dev", str(code), "0")


def _expect(what: str, found: str, wanted: str) -> None:
    if found != wanted:
        raise RuntimeError(f"{what} is {found!r} and not {wanted!r}")


def main(given: Sequence[str]) -> int:
    """Try all Pythons; return 1 if one fails or none is at hand, and 2 for an interpreter that is not a supported one."""
    versions, release = supported(ROOT), version_of(ROOT)
    for python in given:
        if version_at(python) not in versions:
            print(f"wheels: {python} is not a Python {', '.join(versions)} that creates environments", file=sys.stderr)
            return 2
    passed: list[str] = []
    absent: list[str] = []
    for version in versions:
        found = find(version, given)
        if found is None:
            absent.append(version)
            continue
        try:
            try_out(found, package_for(version, ROOT / "dist"), release)
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            details = getattr(error, "stderr", None) or ""
            print(f"wheels: Python {version} ({found}): {error}\n{details}".rstrip(), file=sys.stderr)
            return 1
        passed.append(version)
    untried = f"; NOT TRIED, because not at hand: Python {', '.join(absent)}" if absent else ""
    print(f"wheels: {release} works on Python {', '.join(passed) or '(none)'}{untried}")
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
