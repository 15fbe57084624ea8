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
    "--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Rounds for each figure; the median is reported."
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    metavar="DIR",
    help="Directory for the logs, on the disk to be measured. [default: the directory for temporary files]",
)
@json_option
def bench(name: str | None, quick: bool, rounds: int, data: Path | None, as_json: bool) -> None:
    """Run a benchmark that needs no Spark.

    Without NAME, list the benchmarks. The command runs only in the source tree, where `make bench` also runs the Spark benchmarks.
    """
    known = _benchmarks()
    if name is None:
        for each, benchmark in known.items():
            print(f"{each:<12} {benchmark.about}")
        return
    if name not in known:
        raise UsageError(f"unknown benchmark {name!r}; benchmarks without Spark: {', '.join(known)}")
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
        raise UsageError("the benchmarks are not part of the installed package: run the command in the source tree") from None
    return {name: benchmark for name, benchmark in registry.BENCHMARKS.items() if not benchmark.needs_spark}
