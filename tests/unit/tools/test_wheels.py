"""Tests of the trial of a wheel: interpreters are found by their version, and a Python that is absent is reported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import wheels
from tools.release_check import ROOT
from tools.wheels import find, main, package_for, supported, try_out, version_at

HERE = "{}.{}".format(*sys.version_info[:2])


def interpreter(directory: Path, version: str, code: int = 0) -> str:
    """A program that answers as an interpreter of the version does, or as a shim that finds none."""
    path = directory / f"python{version}"
    path.write_text(f"#!/bin/sh\necho {version}\nexit {code}\n")
    path.chmod(0o755)
    return str(path)


def test_the_supported_versions_are_those_of_the_project() -> None:
    assert supported(ROOT) == ["3.11", "3.12", "3.13"]


def test_an_interpreter_is_found_by_the_version_that_it_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find("3.12", []) is None
    assert version_at(sys.executable) == HERE
    assert version_at(interpreter(tmp_path, "3.13", code=127)) == ""
    assert find("3.13", []) is None, "a shim without an interpreter"
    interpreter(tmp_path, "3.12")
    assert find("3.12", []) == "python3.12"
    (tmp_path / "given").mkdir()
    given = interpreter(tmp_path / "given", "3.12")
    assert find("3.12", [given]) == given


def test_a_wheel_is_used_on_its_own_python_and_the_sdist_on_others(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no package for Python 3.11: run make dist"):
        package_for("3.11", tmp_path)
    wheel, sdist = tmp_path / "t-1-cp311-cp311-linux_x86_64.whl", tmp_path / "t-1.tar.gz"
    wheel.touch()
    sdist.touch()
    assert package_for("3.11", tmp_path) == wheel
    assert package_for("3.12", tmp_path) == sdist
    wheel.rename(tmp_path / "t-1-py3-none-any.whl")
    assert package_for("3.12", tmp_path).suffix == ".whl"


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Interpreters that `main` would try. None is started, and Python 3.13 is absent."""
    asked: list[str] = []
    monkeypatch.setattr(wheels, "find", lambda version, _: None if version == "3.13" else f"python{version}")
    monkeypatch.setattr(wheels, "package_for", lambda version, dist: dist / version)
    monkeypatch.setattr(wheels, "try_out", lambda python, *_: asked.append(python))
    return asked


def test_a_python_that_is_not_at_hand_is_reported_and_never_counts_as_tried(
    tried: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([]) == 0
    assert tried == ["python3.11", "python3.12"]
    said = capsys.readouterr().out
    assert said.endswith("works on Python 3.11, 3.12; NOT TRIED, because not at hand: Python 3.13\n")
    monkeypatch.setattr(wheels, "find", lambda *_: None)
    assert main([]) == 1
    assert "works on Python (none); NOT TRIED" in capsys.readouterr().out


@pytest.mark.usefixtures("tried")
def test_a_failed_trial_ends_with_its_command_and_its_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise subprocess.CalledProcessError(1, ["pip", "install"], stderr="no such dependency")

    monkeypatch.setattr(wheels, "try_out", fail)
    assert main([]) == 1
    said = capsys.readouterr()
    assert "Python 3.11 (python3.11): Command '['pip', 'install']' returned non-zero exit status 1.\nno such dependency" in said.err
    assert said.out == ""


@pytest.mark.slow
def test_a_package_that_cannot_be_installed_fails(tmp_path: Path) -> None:
    (tmp_path / "t-1-py3-none-any.whl").write_text("no archive")
    with pytest.raises(subprocess.CalledProcessError):
        try_out(sys.executable, tmp_path / "t-1-py3-none-any.whl", "1")


def test_a_named_interpreter_of_another_version_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = interpreter(tmp_path, "3.8")
    assert main([old]) == 2
    assert f"wheels: {old} is not a Python 3.11, 3.12, 3.13" in capsys.readouterr().err
