"""Delta Lake for the tests, and the contents of a Delta table, read with Spark and without Spark and Delta Lake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

#: Maven's central repository alone: Ivy would take what a `~/.m2` describes, also where it has no jar of it.
SETTINGS = """<ivysettings><settings defaultResolver="central"/><resolvers>
<ibiblio name="central" m2compatible="true"/></resolvers></ivysettings>"""


def conf(directory: Path) -> dict[str, str]:
    """Settings for a session with Delta Lake; its jars are fetched once a machine."""
    file = directory / "ivysettings.xml"
    file.write_text(SETTINGS)
    cache = Path.home() / ".cache" / "tutti-test-jars"
    return {
        "spark.jars.ivySettings": str(file),
        "spark.jars.ivy": str(cache),
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "1",
    }


def arguments(directory: Path) -> list[str]:
    """The same for the command line."""
    return ["--master", "local[2]", *(part for name, value in conf(directory).items() for part in ("--conf", f"{name}={value}"))]


def commits(table: Path) -> list[list[dict[str, Any]]]:
    """The actions of each commit, in order; tests are too short for checkpoints."""
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in sorted((table / "_delta_log").glob("*.json"))]


def rows(table: Path) -> list[tuple[int, Any]]:
    """Offset and value of the rows of the newest version, in the order of offsets."""
    files: dict[str, None] = {}
    for actions in commits(table):
        for action in actions:
            if "remove" in action:
                files.pop(action["remove"]["path"])
        files |= {action["add"]["path"]: None for action in actions if "add" in action}
    if not files:
        return []
    found = ds.dataset([str(table / name) for name in files]).to_table(["offset", "value"])
    return sorted((row["offset"], row["value"]) for row in found.to_pylist())


def claims(table: Path) -> list[str]:
    """Return what backfills recorded in their commits: the operation and its range, in order."""
    told = [json.loads(actions[0]["commitInfo"].get("userMetadata", "{}")) for actions in commits(table)]
    return [f"{one['did']} {one['start']}-{one['end']}" for one in told if one]
