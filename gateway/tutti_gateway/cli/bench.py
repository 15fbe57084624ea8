"""`tutti bench`: the benchmarks that need no Spark."""

from __future__ import annotations

import tempfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tutti.errors import UsageError
from tutti_gateway.cli.common.options import json_option
from tutti_gateway.cli.common.output import print_json

if TYPE_CHECKING:
    from benchmarks.registry import Benchmark


@click.command()
@click.argument("name", required=False)
@click.option("--quick", is_flag=True, help="Smaller volumes, one round.")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Rounds of each figure; the median counts."
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    metavar="DIR",
    help="Where the logs lie: the disk that is measured. [the directory for temporary files]",
)
@json_option
def bench(name: str | None, quick: bool, rounds: int, data: Path | None, as_json: bool) -> None:
    """Run a benchmark that needs no Spark.

    Without a name, list them. They come with the source tree, whose `make bench` runs all of them, those with Spark too.
    """
    known = _benchmarks()
    if name is None:
        for each, benchmark in known.items():
            print(f"{each:<12} {benchmark.about}")
        return
    if name not in known:
        raise UsageError(f"there is no benchmark {name!r} without Spark: there are {', '.join(known)}")
    with tempfile.TemporaryDirectory(prefix="tutti-bench-", dir=data) as directory:
        figures = known[name].run(Path(directory), 1 if quick else rounds, quick)
    if as_json:
        print_json([figure._asdict() | {"reached": figure.reached} for figure in figures])
        return
    for figure in figures:
        print(figure.line())


def _benchmarks() -> dict[str, Benchmark]:
    try:
        registry = import_module("benchmarks.registry")
    except ModuleNotFoundError as error:
        if error.name not in ("benchmarks", "benchmarks.registry"):
            raise
        raise UsageError("the benchmarks are not part of the installed package: run this inside of the source tree") from None
    return {name: benchmark for name, benchmark in registry.BENCHMARKS.items() if not benchmark.needs_spark}
