"""`tutti doctor`: runs the checks of this machine, and prints the result of each check."""

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
@click.option("--spark", is_flag=True, help="Run a small Spark job too, and check the packages of its Python workers.")
@click.option("--master", metavar="URL", help="With --spark: master URL of the cluster to check.")
@click.option("--port", type=click.IntRange(1, 65_532), default=7400, show_default=True, help="Base port of the planned gateway.")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Data directory of the planned gateway. [default: the working directory]",
)
@json_option
def doctor(spark: bool, master: str | None, port: int, data: Path, as_json: bool) -> int:
    """Check that Tutti can run on this machine.

    The checks cover Python, packages, ports, limits, the disk, Java and Spark. For each failed check, the command prints a remedy.
    The exit code is 1 if a check fails.
    """
    if master is not None and not spark:
        raise UsageError("--master needs --spark: give both")
    findings = []
    for finding in _findings(spark, master, port, data):
        findings.append(finding)
        if not as_json:
            _print(finding)
    wrong = [finding.subject for finding in findings if not finding.good]
    if as_json:
        print_json({"ok": not wrong, "findings": [finding._asdict() for finding in findings]})
    else:
        print(
            f"{len(wrong)} of {len(findings)} checks failed: {', '.join(wrong)}" if wrong else f"all {len(findings)} checks passed"
        )
    return 1 if wrong else 0


def _findings(spark: bool, master: str | None, port: int, data: Path) -> Iterator[Finding]:
    from tutti_gateway.cli.doctor import spark as sparks

    checks: list[Callable[[], Finding]] = [
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
    for check in checks:
        findings.append(check())
        yield findings[-1]
    if spark:
        needed = {sparks.pyspark, java.java}
        failed = [finding.subject for check, finding in zip(checks, findings, strict=True) if check in needed and not finding.good]
        if failed:  # the Spark job would fail too, and the same problem would be reported twice
            note(f"the trial of Spark is skipped: it needs {' and '.join(failed)}")
        else:
            yield sparks.trial(master or sparks.LOCAL)


def _print(finding: Finding) -> None:
    mark = "good " if finding.good else "WRONG"
    if on_terminal():
        mark = click.style(mark, fg="green" if finding.good else "red")
    print(f"{mark}  {finding.subject}: {finding.found}")
    if not finding.good:
        print(f"       do: {finding.do}")
