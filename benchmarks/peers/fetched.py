"""What peers are made of, fetched once into the user's cache: jars by Maven's coordinates, Go programs by their modules."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Maven's central repository alone: Ivy would take what a `~/.m2` describes, also where it has no jar of it.
_REPOSITORIES = """<ivysettings><settings defaultResolver="central"/><resolvers>
<ibiblio name="central" m2compatible="true"/></resolvers></ivysettings>"""
_WANTED = """<ivy-module version="2.0"><info organisation="tutti" module="peers"/>
<configurations><conf name="default"/></configurations><dependencies>{}</dependencies></ivy-module>"""
_BUILD_S_MAX = 900


def jars(name: str, wanted: tuple[str, ...], *, alone: bool) -> Path | None:
    """The folder of the jars of `wanted` (group:name:version), unless `alone` with all that they ask for; None: not to be had.

    Spark's own Ivy fetches them.
    """
    with _kept(name) as folder:
        return folder if folder.exists() or _retrieved(folder, wanted, alone) else None


def program(name: str, module: str) -> Path | None:
    """The program `name` that Go makes of `module` (PATH@VERSION); None without Go, or where it cannot be had."""
    go = shutil.which("go")
    with _kept(module.replace("/", "-")) as folder:
        if not (folder / name).exists():
            if go is None:
                return None
            environment = {**os.environ, "GOBIN": str(folder), "GOFLAGS": "-mod=mod"}
            subprocess.run([go, "install", module], env=environment, check=False, stderr=subprocess.DEVNULL, timeout=_BUILD_S_MAX)
        return folder / name if (folder / name).exists() else None


def built(folder: Path) -> Path | None:
    """Return the program that Go makes of the module in `folder`, with the versions in its go.sum; None if that is impossible."""
    sources = hashlib.sha256(b"".join(one.read_bytes() for one in sorted(folder.iterdir()) if one.is_file())).hexdigest()[:16]
    with _kept(f"{folder.name}-{sources}") as made:
        if not made.exists() and (go := shutil.which("go")) is not None:
            command = [go, "build", "-buildvcs=false", "-o", str(made), "."]
            subprocess.run(command, cwd=folder, check=False, stderr=subprocess.DEVNULL, timeout=_BUILD_S_MAX)
        return made if made.exists() else None


@contextmanager
def _kept(name: str) -> Iterator[Path]:
    kept = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tutti-bench"
    kept.mkdir(parents=True, exist_ok=True)
    with (kept / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two that want the same fetch it once
        yield kept / name


def _retrieved(folder: Path, wanted: tuple[str, ...], alone: bool) -> bool:
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None:
        return False
    asked = "".join(
        f'<dependency org="{group}" name="{name}" rev="{version}" transitive="{str(not alone).lower()}" conf="default->default"/>'
        for group, name, version in (one.split(":") for one in wanted)
    )
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        here = Path(scratch)
        (here / "ivy.xml").write_text(_WANTED.format(asked))
        (here / "settings.xml").write_text(_REPOSITORIES)
        ivy = ["java", "-cp", f"{Path(spark.origin).parent}/jars/*", "org.apache.ivy.Main", "-warn"]
        files = ["-settings", "settings.xml", "-ivy", "ivy.xml", "-cache", "cache", "-types", "jar", "bundle"]
        target = ["-retrieve", f"{scratch}/jars/[artifact]-[revision].[ext]"]
        ran = subprocess.run([*ivy, *files, *target], cwd=here, check=False, stdout=subprocess.DEVNULL)
        if ran.returncode or not (here / "jars").is_dir():
            return False
        (here / "jars").rename(folder)
    return True
