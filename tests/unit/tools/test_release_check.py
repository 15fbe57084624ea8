"""Tests of the checks before a release: each problem is named with its place and the remedy, and a ready checkout has none."""

from __future__ import annotations

import shutil
import subprocess
from datetime import date
from pathlib import Path

import pytest

from tools import release_check
from tools.release_check import (
    MENTIONS,
    ROOT,
    changelog_problems,
    commit_problems,
    docs_problems,
    fixture_problems,
    problems,
    version_of,
    version_problems,
)

TODAY = date(2030, 5, 6)
CHANGES = "# Changelog\n\n## 1.2.3 - 2030-05-06\n\n- A change.\n\n## 1.2.2 - 2030-01-01\n\n- An older change.\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small checkout of release 1.2.3, committed."""
    texts = {
        "pyproject.toml": '[project]\nversion = "1.2.3"\n',
        "CHANGELOG.md": CHANGES,
        "README.md": "Tutti 1.2.3 is an alpha release.\n\n[first](docs/first.md)\n",
        "docs/README.md": "# Pages\n",
        "docs/first.md": "# First\n\n[pages](README.md)\n",
        "docs/explanation/faq.md": "Version 1.2.3 is an alpha release.\n",
        "deploy/kubernetes/kustomization.yaml": 'newTag: "1.2.3"\n',
        "deploy/kubernetes/kafka-in/kustomization.yaml": 'newTag: "1.2.3"\n',
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools/site.py", tmp_path / "tools/site.py")
    settings, _, _ = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")
    (tmp_path / "mkdocs.yml").write_text(settings)
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(root: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--allow-empty", "--message", "a state")


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def found_versions(root: Path, installed: str = "1.2.3") -> list[str]:
    return list(version_problems(root, lambda _: installed))


@pytest.mark.slow
def test_a_ready_checkout_has_no_problem(checkout: Path) -> None:
    assert found_versions(checkout) == []
    assert list(changelog_problems(checkout, TODAY)) == []
    assert list(commit_problems(checkout)) == []
    assert list(fixture_problems(list)) == []
    assert list(docs_problems(checkout)) == []


@pytest.mark.parametrize("version", ["1.2.3.dev0", "1.2.3rc1", "1.2"])
def test_a_version_that_is_not_final_is_refused(checkout: Path, version: str) -> None:
    replace(checkout / "pyproject.toml", "1.2.3", version)
    assert f"pyproject.toml: the version {version} is not of the form 1.2.3: remove its suffix" in found_versions(checkout)


def test_another_installed_version_is_named(checkout: Path) -> None:
    assert found_versions(checkout, "1.2.2") == [
        "the environment has tutti-ingest 1.2.2 and pyproject.toml has 1.2.3: run make setup"
    ]


@pytest.mark.parametrize("name", MENTIONS)
def test_a_page_or_manifest_of_another_version_is_named(checkout: Path, name: str) -> None:
    replace(checkout / name, "1.2.3", "1.2.2")
    assert found_versions(checkout) == [f"{name}: names version 1.2.2 and pyproject.toml has 1.2.3: write 1.2.3"]


@pytest.mark.parametrize("name", MENTIONS)
def test_a_page_or_manifest_without_its_sentence_is_named(checkout: Path, name: str) -> None:
    (checkout / name).write_text("another sentence\n")
    assert found_versions(checkout) == [f"{name}: names no version: write 1.2.3, or change MENTIONS in tools/release_check.py"]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("## 1.2.3 - 2030-05-06", "## Unreleased", "begins with the section Unreleased, not with that of 1.2.3"),
        ("## 1.2.3 - 2030-05-06", "## 1.2.3", "the section 1.2.3 has no date: its heading is '## 1.2.3 - YYYY-MM-DD'"),
        ("2030-05-06", "2030-13-01", "the section 1.2.3 has the date 2030-13-01: its heading is '## 1.2.3 - YYYY-MM-DD'"),
        ("2030-05-06", "2030-05-07", "the date 2030-05-07 of 1.2.3 is later than today, 2030-05-06"),
        ("- A change.", "", "the section 1.2.3 lists no change"),
        (CHANGES, "# Changelog\n", "has no section, not with that of 1.2.3"),
    ],
)
def test_a_change_log_without_the_dated_section_is_refused(checkout: Path, old: str, new: str, problem: str) -> None:
    replace(checkout / "CHANGELOG.md", old, new)
    (found,) = changelog_problems(checkout, TODAY)
    assert problem in found


def test_changes_that_are_not_committed_are_named(checkout: Path) -> None:
    replace(checkout / "README.md", "alpha", "beta")
    (checkout / "zzz").write_text("new")
    assert list(commit_problems(checkout)) == ["2 files differ from the commit, README.md first: commit or remove the changes"]


def test_a_tag_of_this_version_at_another_commit_is_refused(checkout: Path) -> None:
    git(checkout, "tag", "v1.2.3")
    assert list(commit_problems(checkout)) == []
    commit(checkout)
    assert list(commit_problems(checkout)) == [
        "the tag v1.2.3 names another commit: a released version does not change, so choose the next one"
    ]


def test_a_directory_without_git_ends_the_check(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"release-check: git status --porcelain: .*not a git repository"):
        list(commit_problems(tmp_path))


def test_missing_fixtures_are_named() -> None:
    (found,) = fixture_problems(lambda: ["written-9/alone.tar.xz"])
    assert found == "tests/compat has no written-9/alone.tar.xz: run python -m tests.compat.make, and commit what it adds"


@pytest.mark.slow
def test_a_broken_link_of_the_docs_is_named(checkout: Path) -> None:
    replace(checkout / "docs/first.md", "README.md", "missing.md")
    (found,) = docs_problems(checkout)
    assert found.startswith("docs: WARNING")
    assert "missing.md" in found


def test_the_command_prints_each_problem_and_ends_with_one(
    checkout: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release_check, "ROOT", checkout)
    monkeypatch.setattr(release_check, "problems", lambda root: [f"{version_of(root)} is wrong"])
    assert release_check.main() == 1
    assert capsys.readouterr().err == "release-check: 1.2.3 is wrong\n"
    monkeypatch.setattr(release_check, "problems", lambda _: [])
    assert release_check.main() == 0
    assert "1.2.3 are ready" in capsys.readouterr().out


@pytest.mark.slow
def test_all_checks_run(checkout: Path) -> None:
    replace(checkout / "pyproject.toml", "1.2.3", "1.2.4.dev0")
    replace(checkout / "docs/first.md", "README.md", "missing.md")
    found = "\n".join(problems(checkout))
    assert all(text in found for text in ("not of the form", "CHANGELOG.md begins", "files differ", "docs: WARNING"))
