"""`tutti demo`."""

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

#: What a run takes at most: each gateway's reserves and segments; checkpoints, results and what Spark puts aside.
GATEWAY_BYTES, REST_BYTES = 1024**3, 1024**3


@click.command()
@click.option("--gateways", "count", type=click.IntRange(1, GATEWAYS_MAX), default=3, show_default=True, help="How many.")
@click.option(
    "--data",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("data/demo"),
    show_default=True,
    metavar="DIR",
    help="Where everything of the run is kept.",
)
@click.option("--keep", is_flag=True, help="Keep log, checkpoint and results; otherwise the picture and the report alone.")
@click.option("--port", type=click.IntRange(1, 65_532), default=7400, show_default=True, help="The first gateway's base port.")
@json_option
def demo(count: int, directory: Path, keep: bool, port: int, as_json: bool) -> int:
    """The main job on real input, start to end, and what was checked.

    336,776 departures from New York's airports go through a group of gateways, one an airport, to a Spark job, which joins the
    weather and keeps delay statistics. On the way the group's coordinator is killed while Spark reads, and so is the job. At the
    end: each departure exactly once, each airport in its order, the same log on every gateway, the live result the same bytes as a
    replay from the log files of the one that was killed. Any mismatch fails. Takes 2 to 4 minutes on 2 cores.
    """
    begun_s = time.monotonic()

    def say(text: str) -> None:
        note(f"{time.monotonic() - begun_s:6.1f} s  {text}")

    _look_around(directory, count, port)
    from tutti_gateway.cli.demo.run import Plan, prepare_directory

    with prepare_directory(directory):
        return _run(Plan(directory, port, count), keep, as_json, say)


def _run(plan: Plan, keep: bool, as_json: bool, say: Callable[[str], None]) -> int:
    """Run it in the prepared directory and report; the exit code."""
    from tutti_gateway.cli.demo.run import PICTURE, REPORT, Demo, sweep

    directory = plan.directory
    try:
        outcome = Demo(plan, say).run()
    except BaseException:
        note(f"everything is left in {directory} as it was; the logs of each process are in {directory / 'logs'}")
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
        note(f"error: not every promise held; everything is left in {directory}")
        return 1
    if not keep:
        sweep(directory, keep=(".tutti-demo", PICTURE, REPORT))
    return 0


def _look_around(directory: Path, count: int, port: int) -> None:
    """Raises `Unavailable`, in one sentence, when the demo cannot run here."""
    from tutti_gateway.cli.demo.departures import package_data
    from tutti_gateway.cli.demo.gateways import addresses
    from tutti_gateway.cli.doctor import java, machine, spark

    package_data()
    for finding in (spark.pyspark(), java.java()):
        if not finding.good:
            raise Unavailable(f"the demo needs {finding.subject}: {finding.found}: {finding.do}")
    for name, address in addresses(count, port).items():
        base = int(address.rpartition(":")[2])
        taken = machine.ports_taken(base)
        if taken:
            raise Unavailable(
                f"the demo needs the ports {base} to {base + 3} for gateway {name}, of which these are in use: {taken}; "
                "choose others with --port"
            )
    place = machine.nearest(directory)
    free, needed = shutil.disk_usage(place).free, REST_BYTES + count * GATEWAY_BYTES
    if free < needed:
        raise Unavailable(
            f"the demo needs {needed >> 20} MiB and {place} has {free >> 20} MiB free: make room, or name another --data"
        )
