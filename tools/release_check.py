"""Checks what a release needs before its long tests begin: `python -m tools.release_check` prints each problem and ends with 1.

docs/how-to/release.md has the steps of a release. `make release-check` runs this module first, because its checks take seconds.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from importlib import metadata
from pathlib import Path

from tests.compat.make import lacking

ROOT = Path(__file__).resolve().parents[1]
NAME = "tutti-ingest"
FINAL = re.compile(r"\d+\.\d+\.\d+")  # no .dev0, no rc1
SECTION = re.compile(r"^## (\S+)(?: - (.+)| .*)?$", re.MULTILINE)
# Files that repeat the version, with the text around it.
MENTIONS = {
    "README.md": r"\bTutti (\d+\.\d+\.\d+\S*)",
    "docs/explanation/faq.md": r"\bVersion (\d+\.\d+\.\d+\S*)",
    "deploy/kubernetes/kustomization.yaml": r'\bnewTag: "([^"]+)"',
    "deploy/kubernetes/kafka-in/kustomization.yaml": r'\bnewTag: "([^"]+)"',
}


def version_of(root: Path) -> str:
    """Return the version in pyproject.toml."""
    return str(tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["version"])


def version_problems(root: Path, installed: Callable[[str], str] = metadata.version) -> Iterator[str]:
    """Check that the version is a final one, and the same wherever it stands."""
    version = version_of(root)
    if not FINAL.fullmatch(version):
        yield f"pyproject.toml: the version {version} is not of the form 1.2.3: remove its suffix"
    if (found := installed(NAME)) != version:
        yield f"the environment has {NAME} {found} and pyproject.toml has {version}: run make setup"
    for name, pattern in MENTIONS.items():
        mentions = re.findall(pattern, (root / name).read_text("utf-8"))
        if not mentions:
            yield f"{name}: names no version: write {version}, or change MENTIONS in tools/release_check.py"
        for mentioned in mentions:
            if mentioned != version:
                yield f"{name}: names version {mentioned} and pyproject.toml has {version}: write {version}"


def changelog_problems(root: Path, today: date) -> Iterator[str]:
    """Check that the change log begins with the section of this version, and that the section has a date and lists changes."""
    version, text = version_of(root), (root / "CHANGELOG.md").read_text("utf-8")
    wanted = f"'## {version} - YYYY-MM-DD'"
    first = SECTION.search(text)
    if first is None or first[1] != version:
        begins = f"begins with the section {first[1]}" if first else "has no section"
        yield f"CHANGELOG.md {begins}, not with that of {version}: its heading is {wanted}"
        return
    try:
        released = date.fromisoformat(first[2] or "")
    except ValueError:
        dated = f"the date {first[2]}" if first[2] else "no date"
        yield f"CHANGELOG.md: the section {version} has {dated}: its heading is {wanted}"
    else:
        if released > today:
            yield f"CHANGELOG.md: the date {released} of {version} is later than today, {today}"
    following = SECTION.search(text, first.end())
    if not re.search("^- ", text[first.end() : following.start() if following else None], re.MULTILINE):
        yield f"CHANGELOG.md: the section {version} lists no change"


def commit_problems(root: Path) -> Iterator[str]:
    """Check that the checkout is a commit without changes, and that no other commit has the tag of this version."""
    if changed := _git(root, "status", "--porcelain").splitlines():
        yield f"{len(changed)} files differ from the commit, {changed[0][3:]} first: commit or remove the changes"
    tag = f"v{version_of(root)}"
    if _git(root, "tag", "--list", tag) and _git(root, "rev-list", "-n", "1", tag) != _git(root, "rev-parse", "HEAD"):
        yield f"the tag {tag} names another commit: a released version does not change, so choose the next one"


def fixture_problems(missing: Callable[[], list[str]] = lacking) -> Iterator[str]:
    """Check that tests/compat has what this release writes and sends."""
    for name in missing():
        yield f"tests/compat has no {name}: run python -m tests.compat.make, and commit what it adds"


def docs_problems(root: Path) -> Iterator[str]:
    """Build the site of the documentation, and check each of its links."""
    with tempfile.TemporaryDirectory() as site:
        # Not with --quiet, which hides the warnings from the strict mode of mkdocs.yml.
        command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", site]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        found = [line for line in done.stderr.splitlines() if line.startswith(("WARNING", "ERROR"))]
        yield from (f"docs: {line}" for line in found or [f"mkdocs ends with {done.returncode}: {done.stderr[-1000:]}"])


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"release-check: git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.rstrip("\n")


def problems(root: Path) -> list[str]:
    """Return all problems of the checkout, the quickest check first."""
    today = datetime.now(UTC).date()
    checks = (
        version_problems(root),
        changelog_problems(root, today),
        commit_problems(root),
        fixture_problems(),
        docs_problems(root),
    )
    return [problem for check in checks for problem in check]


def main() -> int:
    """Print the problems and return 1, or report that there are none."""
    found = problems(ROOT)
    for problem in found:
        print(f"release-check: {problem}", file=sys.stderr)
    if found:
        return 1
    print(f"release-check: version, change log, commit, fixtures and docs of {version_of(ROOT)} are ready")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
