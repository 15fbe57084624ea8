"""Proves that the tree keeps the rules of the house: sizes, forbidden patterns, pages and lock file that are true."""

import builtins
import os
import re
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.architecture import rules

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("tutti", "gateway/tutti_gateway", "streaming/tutti_spark", "streaming/pyspark_tutti", "connectors/tutti_connect")
OUR_MODULES = {*(Path(package).name for package in PACKAGES), "benchmarks", "tests"}
Rule = Callable[[str], Iterator[str]]
RULES: tuple[Rule, ...] = (rules.length, rules.function_length, rules.swallowed_errors, rules.loose_comments)
FOLDER_FILES_MAX = 16
TEXT = {".py", ".md", ".toml", ".sh", ".yml", ".yaml", ".json", ".html", ".svg", ".txt", ".cfg", ""}


def files(suffixes: set[str], under: str = ".") -> list[Path]:
    """Return the files with one of the suffixes, without hidden folders and build output."""
    found = []
    for folder, folders, names in os.walk(ROOT / under):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in ("build", "dist", "__pycache__")]
        found += [Path(folder, name) for name in names if not name.startswith(".") and Path(name).suffix in suffixes]
    return sorted(path for path in found if ".egg-info" not in str(path))


def findings(paths: list[Path], *checks: Rule) -> list[str]:
    """Return each violation of a rule in one of the files, with its position."""
    found = []
    for path in paths:
        text = path.read_text("utf-8")
        try:
            found += [f"{path.relative_to(ROOT)}: {finding}" for rule in checks for finding in rule(text)]
        except SyntaxError as error:
            found.append(f"{path.relative_to(ROOT)}: line {error.lineno}: does not parse: {error.msg}")
    return found


def read(name: str) -> str:
    """The text of one file of the tree."""
    return (ROOT / name).read_text("utf-8")


def project() -> dict[str, Any]:
    """pyproject.toml."""
    return tomllib.loads(read("pyproject.toml"))


def modules_of(*extras: str) -> set[str]:
    """Modules that the dependencies bring, with those of the extras, and our own."""
    metadata = project()["project"]
    lists = [metadata["dependencies"], *(metadata["optional-dependencies"][extra] for extra in extras)]
    wanted = {canonicalize_name(Requirement(text).name) for text in chain(*lists)}
    installed = packages_distributions().items()
    return {module for module, names in installed if wanted & {canonicalize_name(name) for name in names}} | OUR_MODULES


def make_targets() -> set[str]:
    """What `make` knows."""
    return set(re.findall(r"^([a-z][a-z-]*):", read("Makefile"), flags=re.MULTILINE))


def test_the_code_keeps_the_rules() -> None:
    paths = [path for path in files({".py"}) if path.relative_to(ROOT).parts[0] != "tests"]
    assert paths
    assert findings(paths, *RULES) == []


def test_the_tests_keep_the_rules_and_none_is_skipped_or_cannot_fail() -> None:
    paths = files({".py"}, "tests")
    assert paths
    assert findings(paths, *RULES, rules.hollow_tests) == []


def test_core_and_data_call_nothing_of_the_outside() -> None:
    paths = files({".py"}, "gateway/tutti_gateway/core") + files({".py"}, "tutti/data")
    assert paths
    assert findings(paths, rules.impure_calls) == []


def test_no_path_of_one_machine() -> None:
    assert findings([*files(TEXT), ROOT / ".ci/run"], rules.machine_paths) == []


@pytest.mark.parametrize(
    ("room", "extras"),
    [
        ("tutti", ["archive", "gateway", "otel", "pandas", "polars"]),
        ("gateway", ["gateway"]),
        ("gateway/tutti_gateway/cli", ["gateway", "demo"]),
        ("streaming", ["spark"]),
        ("benchmarks", ["spark", "kafka", "zeromq", "demo", "dev"]),
    ],
)
def test_what_is_imported_is_declared(room: str, extras: list[str]) -> None:
    paths = [path for path in files({".py"}, room) if room == "gateway/tutti_gateway/cli" or "cli" not in path.parts]
    declared = modules_of(*extras)
    assert paths
    assert findings(paths, lambda text: rules.undeclared_imports(text, declared)) == []


def test_every_protocol_has_its_notes() -> None:
    shared = {ROOT / "gateway/tutti_gateway/core", *(ROOT / "gateway/tutti_gateway/core" / name for name in ("protocol", "view"))}
    rooms = {path.parent for path in files({".py"}, "gateway/tutti_gateway/core")} - shared
    assert [str(room.relative_to(ROOT)) for room in sorted(rooms) if not (room / "NOTES.md").is_file()] == []


def test_no_folder_has_too_many_modules() -> None:
    """Proves that no folder of the product holds more modules than a reader keeps in mind."""
    folders = {path.parent for package in PACKAGES for path in files({".py"}, package)}
    assert folders
    counted = {
        str(folder.relative_to(ROOT)): len([path for path in folder.glob("*.py") if path.name != "__init__.py"])
        for folder in folders
    }
    assert {folder: count for folder, count in counted.items() if count > FOLDER_FILES_MAX} == {}


def test_readme_is_short_and_names_both_commands() -> None:
    text = read("README.md")
    assert "make demo" in text
    assert "make test" in text
    assert text.count("\n") <= 120


def test_pages_name_only_targets_that_exist() -> None:
    pages = [path for path in files({".md"}) if path.name != "design.md"]
    targets = make_targets()
    assert {"demo", "test", "check", "bench", "clean"} <= targets
    assert findings(pages, lambda text: rules.unknown_targets(text, targets)) == []


def test_installs_name_a_checkout_or_a_wheel() -> None:
    """Proves that no page or error installs from a package index, because Tutti is on none, and that errors use one function."""
    extras = set(project()["project"]["optional-dependencies"])
    shown = [path for path in files({".py", ".md", ".sh", ".ipynb"}) if path.parent != ROOT / "tests/architecture"]
    assert findings(shown, lambda text: rules.unknown_installs(text, extras)) == []
    code = [path for package in PACKAGES for path in files({".py"}, package)]
    assert [path.name for path in code if "pip install" in path.read_text("utf-8")] == []
    page = read("docs/how-to/install.md")
    assert [extra for extra in extras if f"`{extra}`" not in page] == []


def test_remedies_name_an_extra_that_exists() -> None:
    extras = set(project()["project"]["optional-dependencies"])
    code = "\n".join(path.read_text("utf-8") for package in PACKAGES for path in files({".py"}, package))
    named = re.findall(r"install_remedy\(['\"]([\w-]+)['\"]", code)
    assert len(named) > 5
    assert set(named) <= extras


def test_links_of_pages_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in files({".md"})
        for link in rules.links(page.read_text("utf-8"))
        if not (page.parent / link).exists()
    ]
    assert broken == []


def test_changelog_begins_with_this_version_or_unreleased_changes() -> None:
    version = tomllib.loads(read("pyproject.toml"))["project"]["version"]
    first = re.search(r"^## (.+)$", read("CHANGELOG.md"), flags=re.MULTILINE)
    assert first
    heading = re.fullmatch(r"(\S+)(?: - \d{4}-\d\d-\d\d)?", first[1])
    assert heading, first[1]
    assert heading[1] in (version, "Unreleased")


def test_ci_runs_check_and_test() -> None:
    text = read(".ci/run")
    steps = [line.split()[:2] for line in text.splitlines() if line.startswith("make ")]
    assert steps == [["make", "check"], ["make", "test-fast"], ["make", "test-rest"]]
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


def test_every_example_config_is_loaded_by_a_test() -> None:
    tests = [path.read_text("utf-8") for path in files({".py"}, "tests") if "architecture" not in path.parts]
    all_are_loaded = any('"conf"' in text and 'glob("*.toml")' in text for text in tests)
    unloaded = [path.name for path in files({".toml"}, "conf") if not any(path.name in text for text in tests)]
    assert all_are_loaded or unloaded == []


def locked(name: str) -> dict[str, set[Version]]:
    """Versions that a lock file pins, by package; one package may have several, each for other Pythons."""
    pins: dict[str, set[Version]] = {}
    for package, version in re.findall(r"^([a-z0-9-]+)==([^ ;]+)", read(name), flags=re.MULTILINE):
        pins.setdefault(package, set()).add(Version(version))
    return pins


def test_lock_pins_what_the_project_asks_for() -> None:
    metadata = project()["project"]
    extras = metadata["optional-dependencies"]
    asked = [Requirement(text) for text in chain(metadata["dependencies"], *extras.values())]
    pins = locked("requirements.lock")
    wrong = [
        str(requirement)
        for requirement in asked
        if requirement.name != metadata["name"]
        and not (pins.get(requirement.name) and all(pin in requirement.specifier for pin in pins[requirement.name]))
    ]
    assert wrong == [], "run make lock"


def test_lock_has_hashes_and_no_address() -> None:
    locks = [path.name for path in ROOT.glob("requirements*.lock")]
    assert "requirements.lock" in locks
    for name in locks:
        text = read(name)
        assert "://" not in text
        assert "--index-url" not in text
        for entry in re.split(r"\n(?=[a-z0-9-]+==)", text)[1:]:
            assert "--hash=sha256:" in entry, entry


def test_pyspark_is_pinned_once_for_each_version_that_make_offers() -> None:
    default = re.search(r"^PYSPARK \?= (\S+)$", read("Makefile"), flags=re.MULTILINE)
    assert default
    assert locked("requirements.lock")["pyspark"] == {Version(default[1])}
    for path in ROOT.glob("requirements-pyspark-*.lock"):
        assert locked(path.name)["pyspark"] == {Version(path.stem.removeprefix("requirements-pyspark-"))}


def test_docstrings_name_errors_that_exist() -> None:
    sources = [path for package in PACKAGES for path in files({".py"}, str(package))]
    texts = {path.relative_to(ROOT): path.read_text("utf-8") for path in sources}
    classes = {name for text in texts.values() for name in re.findall(r"^ *class (\w+)", text, flags=re.MULTILINE)}
    known = {*dir(builtins), *classes}
    assert [f"{path}:{found}" for path, text in texts.items() for found in rules.unknown_errors(text, known)] == []


@pytest.mark.parametrize("notes", [path for path in files({".md"}) if path.name == "NOTES.md"], ids=lambda path: path.parent.name)
def test_notes_name_modules_that_exist(notes: Path) -> None:
    """A path is relative to the folder of the notes, to a folder below it, to the package or to the checkout."""
    below = [folder for folder in notes.parent.rglob("*") if folder.is_dir()]
    near = [notes.parent, *below, ROOT, *(ROOT / package for package in PACKAGES)]
    missing = rules.missing_modules(notes.read_text("utf-8"), lambda path: any((folder / path).exists() for folder in near))
    assert list(missing) == []


def test_pages_and_notes_name_tests_that_exist() -> None:
    """Proves that each test that a page names as a proof is a function, or a module, of the tests."""
    sources = files({".py"}, "tests")
    functions = {
        name
        for path in sources
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text("utf-8"), flags=re.MULTILINE)
    }
    pages = [*files({".md"}, "docs"), *(path for path in files({".md"}) if path.name == "NOTES.md")]
    known = functions | {path.stem for path in sources}
    assert functions
    assert pages
    assert findings(pages, lambda text: rules.missing_tests(text, known)) == []
