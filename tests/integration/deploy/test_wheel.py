"""Tests of the installed wheel: the library is typed and light, and works beside a user's modules of any name."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[3]
NAMES = ("tutti", "tutti_gateway", "tutti_spark", "tutti_connect", "pyspark_tutti")
SOURCES = {"tutti", "gateway", "streaming", "connectors", "conf", "examples", "pyproject.toml", "README.md", "LICENSE"}
#: A user's modules with the names of the project's folders.
OWN = {"gateway.py": "ANSWER = 42\n", "streaming/__init__.py": "", "connectors/__init__.py": "", "reader.py": "", "limits.py": ""}
APPLICATION = """
import asyncio
import concurrent.futures

from tutti import Producer, Reader, Receipt
from tutti.aio import AsyncProducer, AsyncReader


def send(producer: Producer, values: list[bytes]) -> list[int]:
    receipts: list[Receipt] = [producer.send("flights", value) for value in values]
    return [receipt.result(10) for receipt in receipts]


def first(url: str) -> bytes | None:
    with Reader(url, topics=["flights"], start=0) as reader:
        for record in reader.records():
            return record.value
    return None


async def send_soon(producer: AsyncProducer, values: list[bytes]) -> list[int]:
    receipts: list[Receipt] = [producer.send("flights", value) for value in values]
    await producer.drain()
    return [await receipt for receipt in receipts] + await asyncio.gather(*receipts)


async def first_soon(url: str) -> bytes | None:
    async with AsyncReader(url, topics=["flights"], start=0) as reader:
        async for batch in reader:
            print(batch.num_rows)
        async for record in reader.records():
            return record.value
    return None


async def wait(receipt: Receipt) -> int:
    done, _ = concurrent.futures.wait([receipt])
    return await receipt + await asyncio.wrap_future(receipt) + sum(future.result() for future in done)
"""
#: Megabytes of the base installation without pyarrow and numpy, which are most of it; what they take is theirs.
REST_MB_MAX = 40
IMPORT_MODULES_MAX = 150  # that `from tutti import errors` loads; a reader or a producer loads more at its first use


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with the wheel, and with the libraries that a base installation brings: nothing of the extras."""
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if name.split("/")[0] in SOURCES:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name, follow_symlinks=False)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(place),
        str(source),
    ]
    subprocess.run([*build, str(source)], check=True, cwd=place)
    (wheel,) = place.glob("*.whl")
    packages = place / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    for name in _base():
        for file in distribution(name).files or []:
            top = Path(str(file)).parts[0]
            if top not in ("..", "__pycache__") and not (packages / top).exists():
                (packages / top).symlink_to(Path(sysconfig.get_path("purelib"), top))
    yield packages
    shutil.rmtree(place)


def _base(name: str = "tutti-ingest", extra: str = "") -> set[str]:
    """Return the distributions that `name` needs without extras, and their own requirements."""
    found: set[str] = set()
    for text in distribution(name).requires or []:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            found |= {requirement.name, *_base(requirement.name)}
    return found


def run(site: Path, place: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(site)}
    command = [sys.executable, "-S", *arguments]
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=check)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A user's directory, with modules of the user's own."""
    for name, text in OWN.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_wheel_has_the_packages_and_nothing_else(site: Path) -> None:
    names = {path.name for path in site.iterdir() if not path.is_symlink() and not path.name.endswith(".dist-info")}
    assert names == set(NAMES)
    assert [name for name in NAMES if not (site / name / "py.typed").is_file()] == []
    assert (site / "tutti_gateway/reads/admin/console/index.html").is_file()


def test_the_configurations_and_the_examples_are_in_the_wheel(site: Path, place: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "conf", "examples"], cwd=ROOT, check=True, capture_output=True, text=True)
    shipped = site / "tutti_gateway/cli/setup/shipped"
    found = {str(path.relative_to(shipped)): path.read_bytes() for path in shipped.rglob("*") if path.is_file()}
    assert found == {name: (ROOT / name).read_bytes() for name in listed.stdout.splitlines()}
    tutti = ["-m", "tutti_gateway"]
    assert run(site, place, *tutti, "config", "init", "--kind", "group").stdout.startswith("wrote jfk.toml\nwrote lga.toml\n")
    assert ": valid: gateway lga of group ingest" in run(site, place, *tutti, "config", "check", "lga.toml").stdout
    run(site, place, *tutti, "config", "init", "--kind", "kafka-out")
    assert "`tutti connect kafka-out`" in run(site, place, *tutti, "config", "check", "kafka-out.toml").stdout
    run(site, place, *tutti, "examples")
    assert (place / "examples/python/send.py").read_bytes() == (ROOT / "examples/python/send.py").read_bytes()


def test_it_works_beside_a_users_own_modules(site: Path, place: Path) -> None:
    code = "import gateway, tutti; from tutti import Producer, Reader, Unavailable; print(gateway.ANSWER, Producer.__module__)\n"
    code += "try: Reader('tutti://127.0.0.1:1', connect_timeout=0.1)\nexcept Unavailable as error: print('unavailable')"
    assert run(site, place, "-c", code).stdout == "42 tutti.producer\nunavailable\n"
    for name in NAMES[1:3]:
        assert run(site, place, "-c", f"import {name}").returncode == 0


def test_commands_of_the_base_run_and_others_name_their_extra(site: Path, place: Path) -> None:
    (place / "gateway.toml").write_text('name = "g1"\ndata = "data"\nlisten = "127.0.0.1:17400"\n')
    tutti = ["-m", "tutti_gateway"]
    assert "Start here:" in run(site, place, *tutti, "--help").stdout
    away = run(site, place, *tutti, "tail", "--url", "tutti://127.0.0.1:1", check=False)
    assert (away.returncode, "Traceback" in away.stderr) == (3, False), away.stderr
    serve = run(site, place, *tutti, "serve", "--config", "gateway.toml", check=False)
    assert serve.returncode == 2
    assert re.fullmatch(
        r"error: this command needs \w+, which is not installed: run pip install '\.\[gateway\]' in a checkout of Tutti, or .*\n",
        serve.stderr,
    )


def test_the_doctor_accepts_a_base_installation(site: Path, place: Path) -> None:
    command = ["-m", "tutti_gateway", "doctor", "--json"]
    told = run(site, place, *command, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    absent = [finding["subject"] for finding in json.loads(told.stdout)["findings"] if finding["skipped"]]
    assert absent == ["gateway", "spark", "kafka"]
    wrong = run(site, place, *command, "--role", "gateway", check=False)
    assert (wrong.returncode, "missing: h11, " in wrong.stdout) == (1, True)


def test_an_application_is_typed(site: Path, place: Path) -> None:
    typed = place / "typed"
    typed.mkdir()
    for name in NAMES:
        (typed / name).symlink_to(site / name)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--follow-imports=silent", "application.py"]

    def checked(text: str) -> subprocess.CompletedProcess[str]:
        (place / "application.py").write_text(text)
        environment = os.environ | {"MYPYPATH": str(typed)}
        return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)

    good = checked(APPLICATION)
    assert good.returncode == 0, good.stdout
    wrong = checked(APPLICATION.replace("receipt.result(10)", "receipt.result(10).upper()"))
    assert '"int" has no attribute "upper"' in wrong.stdout, "Producer is Any"
    wrong = checked(APPLICATION.replace("[await receipt for", "[(await receipt).upper() for"))
    assert '"int" has no attribute "upper"' in wrong.stdout, "AsyncProducer is Any"


def test_the_base_is_light(site: Path, place: Path) -> None:
    rest = sum(
        file.stat().st_size
        for path in site.iterdir()
        if not path.name.startswith(("pyarrow", "numpy"))
        for file in ([path] if path.is_file() else path.rglob("*"))
        if file.is_file() and "__pycache__" not in file.parts
    )
    assert rest < REST_MB_MAX * 1_000_000
    code = "import sys; before = set(sys.modules); from tutti import errors; print(len(set(sys.modules) - before))"
    assert int(run(site, place, "-c", code).stdout) < IMPORT_MODULES_MAX
    heavy = "import sys; from tutti import Producer\n"
    heavy += "print([m for m in ('pyarrow.flight', 'pyarrow.dataset', 'nacl', 'pandas') if m in sys.modules])"
    assert run(site, place, "-c", heavy).stdout == "[]\n"
