"""`tutti demo`: runs a Spark job on real input through a group of gateways, and checks the results."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
import orjson

from tutti.errors import Unavailable
from tutti_gateway.cli.common.options import json_option
from tutti_gateway.cli.common.output import note, print_json
from tutti_gateway.cli.group.dev import GATEWAYS_MAX

if TYPE_CHECKING:
    from tutti_gateway.cli.demo.run import Plan

#: Maximum disk space of a run: for each gateway, and for all other files together (checkpoints, results, temporary files of Spark).
GATEWAY_BYTES, OTHER_BYTES = 1024**3, 1024**3


@click.command()
@click.option("--gateways", "count", type=click.IntRange(1, GATEWAYS_MAX), default=3, show_default=True, help="Number of gateways.")
@click.option(
    "--data",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("data/demo"),
    show_default=True,
    metavar="DIR",
    help="Directory for all files of the run.",
)
@click.option("--keep", is_flag=True, help="Keep all files of the run; by default, only the report page and the JSON report stay.")
@click.option("--port", type=click.IntRange(1, 65_532), default=7400, show_default=True, help="Base port of the first gateway.")
@json_option
def demo(count: int, directory: Path, keep: bool, port: int, as_json: bool) -> int:
    """Run a Spark job on real input, with failures, and check it.

    336,776 departures from New York's airports pass through a group of gateways, one for each airport, to a Spark job. The job
    joins each departure with the weather, and computes delay statistics. During the run, the demo kills the group's coordinator
    while Spark reads, and later the job. Afterwards the demo checks that the log has each departure exactly once, each airport's
    departures in order, and the same records on every gateway. The demo also replays the log files of the killed gateway, and
    checks that the result equals the live result byte for byte. A failed check ends the command with exit code 1. The demo takes 2
    to 4 minutes on 2 cores.
    """
    started_s = time.monotonic()

    def report(text: str) -> None:
        note(f"{time.monotonic() - started_s:6.1f} s  {text}")

    _check_prerequisites(directory, count, port)
    from tutti_gateway.cli.demo.run import Plan, prepare_directory

    with prepare_directory(directory):
        return _run(Plan(directory, port, count), keep, as_json, report)


def _run(plan: Plan, keep: bool, as_json: bool, report: Callable[[str], None]) -> int:
    """Run the demo in a prepared directory, print its checks and measurements, and return the exit code."""
    from tutti_gateway.cli.demo.run import PICTURE, REPORT, Demo, sweep

    directory = plan.directory
    try:
        outcome = Demo(plan, report).run()
    except BaseException:
        note(f"all files are kept in {directory}; the logs of each process are in {directory / 'logs'}")
        raise
    (directory / REPORT).write_bytes(orjson.dumps(outcome.fields(), option=orjson.OPT_INDENT_2) + b"\n")
    if as_json:
        print_json(outcome.fields() | {"picture": str(directory / PICTURE)})
    else:
        for check in outcome.checks:
            print(f"{'held    ' if check.held else 'NOT HELD'}  {check.promise}: {check.counted}")
        speed = outcome.speed
        print(f"log digest {outcome.digest}")
        print(
            f"{speed.records:,} records in {speed.seconds:.0f} s at the pace of the demo ({speed.records_a_second:,.0f} a second); "
            f"commit latency p50 {speed.p50_ms:.2f} ms, p99 {speed.p99_ms:.2f} ms, longest {speed.max_ms:.0f} ms (over the kill)"
        )
        print(f"picture: {directory / PICTURE}")
    if not outcome.held:
        note(f"error: not every promise held; all files are kept in {directory}")
        return 1
    if not keep:
        sweep(directory, keep=(".tutti-demo", PICTURE, REPORT))
    return 0


def _check_prerequisites(directory: Path, count: int, port: int) -> None:
    """Raise `Unavailable` if the demo cannot run on this machine: missing software, ports in use, or too little disk space."""
    from tutti_gateway.cli.demo.departures import package_data
    from tutti_gateway.cli.demo.gateways import addresses
    from tutti_gateway.cli.doctor import java, machine, spark

    package_data()
    for finding in (spark.pyspark(), java.java()):
        if not finding.good:
            raise Unavailable(f"the demo needs {finding.subject} ({finding.found}): {finding.do}")
    for name, address in addresses(count, port).items():
        base = int(address.rpartition(":")[2])
        in_use = machine.ports_in_use(base)
        if in_use:
            raise Unavailable(
                f"the demo needs the ports {base} to {base + 3} for gateway {name}, but other programs use {in_use}: "
                "choose other ports with --port"
            )
    existing = machine.nearest(directory)
    free, needed = shutil.disk_usage(existing).free, OTHER_BYTES + count * GATEWAY_BYTES
    if free < needed:
        raise Unavailable(
            f"the demo needs {needed >> 20} MiB and {existing} has {free >> 20} MiB free: "
            "free some space, or choose another directory with --data"
        )
