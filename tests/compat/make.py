"""Writes the fixtures that this release still lacks: `python -m tests.compat.make`.

A folder `written-N` holds what releases with certain versions of all forms (`versions.json`) wrote and said: one archive a log,
with what was found in it, and messages of both protocols. It is evidence and is left as it is; only what is missing is added (a
new message, another log, a new form). Where the version of any form has changed, a new folder begins beside the old ones.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from tests.compat.archived import ARCHIVES, archive_facts
from tests.compat.facts import lane_facts, read_facts, start_facts
from tests.compat.forms import versions
from tests.compat.logs import LOGS
from tests.compat.say import said
from tutti.log.files.layout import IDENTITY, LIVE, LOCK

HERE = Path(__file__).parent
SAID, VERSIONS = "said.json", "versions.json"
ARCHIVED = ".archive.tar.xz"  # how the file of an archive is called, beside those of logs
_LEFT_OUT = {LOCK, LIVE}  # they belong to a process and a boot


def folders() -> list[Path]:
    """The folders of fixtures, oldest first."""
    return sorted(HERE.glob("written-*"), key=lambda path: int(path.name.rpartition("-")[2]))


def current() -> Path:
    """The folder of this release: the newest one, if it is of the same versions, else one that is to be begun."""
    found = folders()
    if found and json.loads((found[-1] / VERSIONS).read_text()).items() <= versions().items():
        return found[-1]
    return HERE / f"written-{len(found) + 1}"


def archive(directory: Path) -> bytes:
    """The directory as tar.xz, with nothing of this machine in it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:xz", preset=9) as tar:
        for path in sorted(directory.rglob("*")):
            if path.is_file() and path.name not in _LEFT_OUT:
                info = tarfile.TarInfo(str(path.relative_to(directory)))
                info.size, info.mode = path.stat().st_size, 0o644
                with path.open("rb") as data:
                    tar.addfile(info, data)
    return out.getvalue()


def name_disk(directory: Path) -> None:
    """Give the directory the incarnation that the logs' rosters name, so that a gateway which is started on it has a vote."""
    told = json.loads((directory / IDENTITY).read_text())
    (directory / IDENTITY).write_text(json.dumps(told | {"incarnation": bytes(16).hex()}))


def unpack(data: Path, into: Path) -> Path:
    """The directory as it was: `archive` puts files into it and nothing else, and not every Python 3.11 extracts with a filter."""
    into.mkdir(parents=True)
    with tarfile.open(data) as tar:
        for member in tar:
            path = into / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with tar.extractfile(member) or io.BytesIO() as file:
                path.write_bytes(file.read())
    return into


def write(target: Path, *, anew: bool = False) -> None:
    """What `target` lacks, or everything `anew`."""
    target.mkdir(exist_ok=True)
    _json(target / VERSIONS, versions())
    before = {} if anew or not (target / SAID).exists() else json.loads((target / SAID).read_text())
    _json(target / SAID, said() | before)
    for name, make in LOGS.items():
        data = target / f"{name}.tar.xz"
        if anew or not data.exists():
            with tempfile.TemporaryDirectory() as scratch:
                made = Path(scratch, "made")
                make(made)
                name_disk(made)
                data.write_bytes(archive(made))
                read = read_facts(unpack(data, Path(scratch, "read")))
                start = start_facts(unpack(data, Path(scratch, "start")))
                lanes = lane_facts(unpack(data, Path(scratch, "lanes")))
                _json(target / f"{name}.json", {"read": read, "start": start, "lanes": lanes})
    for name, make_archive in ARCHIVES.items():
        data = target / f"{name}{ARCHIVED}"
        if anew or not data.exists():
            with tempfile.TemporaryDirectory() as scratch:
                make_archive(made := Path(scratch, "made"))
                data.write_bytes(archive(made))
                _json(target / f"{name}.archive.json", archive_facts(unpack(data, Path(scratch, "read"))))


def lacking() -> list[str]:
    """Return the names of the missing fixtures of this release: its folder, files, versions and messages."""
    target = current()
    if target not in folders():
        return [f"folder {target.name} for the versions {versions()}"]
    files = [f"{name}{suffix}" for name in LOGS for suffix in (".tar.xz", ".json")]
    files += [f"{name}{suffix}" for name in ARCHIVES for suffix in (ARCHIVED, ".archive.json")]
    missing = [f"{target.name}/{name}" for name in (VERSIONS, SAID, *files) if not (target / name).exists()]
    if (target / VERSIONS).exists() and json.loads((target / VERSIONS).read_text()) != versions():
        missing.append(f"version of each form in {target.name}/{VERSIONS}")
    kept = json.loads((target / SAID).read_text()) if (target / SAID).exists() else {}
    return missing + [f"message {name!r} in {target.name}/{SAID}" for name in sorted(said().keys() - kept.keys())]


def _json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.compat.make")
    parser.add_argument("--anew", action="store_true", help="also what is there: only while no release has written it")
    target = current()
    write(target, anew=parser.parse_args().anew)
    sys.stdout.write(f"wrote {target}\n")
