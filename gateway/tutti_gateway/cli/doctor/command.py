"""`tutti doctor`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import click

from tutti.errors import UsageError
from tutti_gateway.cli.common.options import json_option
from tutti_gateway.cli.common.output import note, on_terminal, print_json
from tutti_gateway.cli.doctor import java, machine
from tutti_gateway.cli.doctor.machine import Finding


@click.command()
@click.option("--spark", is_flag=True, help="Start Spark for a moment and see what its Python workers have.")
@click.option("--master", metavar="URL", help="With --spark: the cluster to try, whose executors tell what they have.")
@click.option("--port", type=click.IntRange(1, 65_532), default=7400, show_default=True, help="Base port of the gateway to be.")
@click.option("--data", type=click.Path(path_type=Path), default=Path(), help="Where its data will be. [the working directory]")
@json_option
def doctor(spark: bool, master: str | None, port: int, data: Path, as_json: bool) -> int:
    """Say what is wrong with this machine, and what to do.

    Exit code 1 if anything is.
    """
    if master is not None and not spark:
        raise UsageError("--master is where Spark is tried: give --spark, too")
    findings = []
    for finding in _look(spark, master, port, data):
        findings.append(finding)
        if not as_json:
            _print(finding)
    wrong = [finding.subject for finding in findings if not finding.good]
    if as_json:
        print_json({"ok": not wrong, "findings": [finding._asdict() for finding in findings]})
    else:
        are = "is" if len(wrong) == 1 else "are"
        print(f"{len(wrong)} of {len(findings)} {are} wrong: {', '.join(wrong)}" if wrong else f"all {len(findings)} are good")
    return 1 if wrong else 0


def _look(spark: bool, master: str | None, port: int, data: Path) -> Iterator[Finding]:
    from tutti_gateway.cli.doctor import spark as sparks

    looks: list[Callable[[], Finding]] = [
        machine.python,
        machine.packages,
        machine.compiled,
        machine.open_files,
        lambda: machine.ports(port),
        lambda: machine.disk_space(data),
        lambda: machine.sync_time(data),
        java.java,
        sparks.pyspark,
        sparks.python_of_workers,
        sparks.settings,
    ]
    findings = []
    for look in looks:
        findings.append(look())
        yield findings[-1]
    if spark:
        needed = {sparks.pyspark, java.java}
        lacking = [finding.subject for look, finding in zip(looks, findings, strict=True) if look in needed and not finding.good]
        if lacking:  # it would fail for the same reason, and one mistake counts once
            note(f"a trial of Spark is left out: it needs {' and '.join(lacking)}")
        else:
            yield sparks.trial(master or sparks.LOCAL)


def _print(finding: Finding) -> None:
    mark = "good " if finding.good else "WRONG"
    if on_terminal():
        mark = click.style(mark, fg="green" if finding.good else "red")
    print(f"{mark}  {finding.subject}: {finding.found}")
    if not finding.good:
        print(f"       do: {finding.do}")
