"""What runs kept, put together from the files of several."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from benchmarks.machine import MEASURES
from benchmarks.pages import Found
from benchmarks.peers.side import MACHINE

_EACH = ("machine", "versions", "command", "foreign_cpu")
KINDS = {"peers": ("rounds", "systems"), "laws": ("laws", "machine_limits"), "figures": ("figures",)}


class Kept:
    """All that was measured. Of what two files have, the later one counts; limits of the machine are of all.

    Attributes:
        sources: where each file came from: its machine, versions, command, and what others used.
        peers: of each measure, what each system had.
        promises: what a receipt of each system says.
        laws: of each law, what was found.
        limits: of the machine, in each round of any file.
        figures: of benchmarks and Spark.
    """

    def __init__(self, files: Sequence[dict[str, Any]] = ()) -> None:
        """Of what `read` gave."""
        self.sources = list(files)
        self.peers: Found = {}
        self.promises: dict[str, str] = {}
        self.laws: dict[str, Found] = {}
        self.limits: Found = {}
        self.figures: dict[str, Figure] = {}
        for one in files:
            if one["kind"] == "peers":
                self.peers, self.promises = one["rounds"], one["systems"]
                self._add_limits(one["rounds"])
            elif one["kind"] == "laws":
                self.laws |= one["laws"]
                self._add_limits(one["machine_limits"])
            self.figures |= named([Figure(**figure) for figure in one.get("figures", [])])

    def _add_limits(self, found: Found) -> None:
        for name in MEASURES:
            rounds = found.get(name, {}).get(MACHINE, [])
            if rounds:
                self.limits.setdefault(name, {}).setdefault(MACHINE, []).extend(rounds)


def named(figures: Sequence[Figure]) -> dict[str, Figure]:
    """By name; one that is indented belongs to the last that is not."""
    found, above = {}, ""
    for one in figures:
        if one.name.startswith(" "):
            found[f"{above}: {one.name.strip()}"] = one
        else:
            above = one.name
            found[above] = one
    return found


def read(path: Path) -> dict[str, Any]:
    """A file of figures.

    Raises:
        ValueError: it is none.
        OSError: it cannot be read.
    """
    try:
        kept = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"it is no JSON file of --json: {error}") from error
    if not isinstance(kept, dict) or kept.get("kind") not in KINDS:
        raise ValueError("it has no figures of benchmarks, benchmarks.laws or benchmarks.peers")
    lacking = [name for name in (*_EACH, *KINDS[kept["kind"]]) if name not in kept]
    if lacking:
        raise ValueError(f"it is not whole: {', '.join(lacking)} of it is missing")
    return kept
