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

_PORT = 7400


@click.command()
@click.option(
    "--role",
    type=click.Choice(["gateway", "client", "spark", "kafka"]),
    help="Check what this role needs; a missing package is then a failure. [default: every role that is installed]",
)
@click.option("--spark", is_flag=True, help="Run a small Spark job too, and check the packages of its Python workers.")
@click.option("--master", metavar="URL", help="With --spark: master URL of the cluster to check.")
@click.option("--port", type=click.IntRange(1, 65_532), help=f"Base port of the planned gateway. [default: {_PORT}]")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Data directory of the planned gateway. [default: the working directory]",
)
@json_option
def doctor(role: str | None, spark: bool, master: str | None, port: int | None, data: Path | None, as_json: bool) -> int:
    """Check that Tutti can run on this machine.

    The checks of a role:

    \b
    client   Python, packages, limits; the other roles include these checks
    gateway  packages of the extra gateway, ports, the disk
    spark    pyspark, Java, the Python and the settings of Spark
    kafka    packages of the extra kafka, for the connectors

    Without --role, the command checks every role whose extra is installed, and reports the other extras as not installed, which is
    not a failure. For each failed check, the command prints a remedy. The exit code is 1 if a check fails.
    """
    if master is not None and not spark:
        raise UsageError("--master needs --spark: give both")
    if spark and role not in (None, "spark"):
        raise UsageError(f"--spark checks Spark, which --role {role} does not need: give --role spark, or no --role")
    if role not in (None, "gateway") and (port is not None or data is not None):
        raise UsageError(f"--port and --data are checks of a gateway, not of --role {role}: give --role gateway, or no --role")
    findings = []
    for finding in _findings(role, spark, master, _PORT if port is None else port, data or Path()):
        findings.append(finding)
        if not as_json:
            _print(finding)
    checks = [finding for finding in findings if not finding.skipped]
    wrong = [finding.subject for finding in checks if not finding.good]
    if as_json:
        print_json({"ok": not wrong, "findings": [finding._asdict() for finding in findings]})
    else:
        print(f"{len(wrong)} of {len(checks)} checks failed: {', '.join(wrong)}" if wrong else f"all {len(checks)} checks passed")
    return 1 if wrong else 0


def _findings(role: str | None, spark: bool, master: str | None, port: int, data: Path) -> Iterator[Finding]:
    from tutti_gateway.cli.doctor import spark as sparks

    yield from (machine.python(), machine.packages(), machine.compiled(), machine.open_files())
    checks: dict[str, list[Callable[[], Finding]]] = {
        "gateway": [
            lambda: machine.extra_packages("gateway"),
            lambda: machine.ports(port),
            lambda: machine.data_directory(data),
            lambda: machine.disk_space(data),
            lambda: machine.sync_time(data),
        ],
        "spark": [java.java, sparks.pyspark, sparks.python_of_workers, sparks.settings],
        "kafka": [lambda: machine.extra_packages("kafka")],
    }
    failed = []
    for extra in (role,) if role in checks else () if role else checks:
        requested = role is not None or (spark and extra == "spark")
        skipped = None if requested else machine.not_installed(extra)
        for finding in [skipped] if skipped else (check() for check in checks[extra]):
            if not finding.good:
                failed.append(finding.subject)
            yield finding
    if spark:
        needed = [subject for subject in failed if subject in ("java", "pyspark")]
        if needed:  # the Spark job would fail too, and the same problem would be reported twice
            note(f"the trial of Spark is skipped: it needs {' and '.join(needed)}")
        else:
            yield sparks.trial(master or sparks.LOCAL)


def _print(finding: Finding) -> None:
    mark = "-    " if finding.skipped else "good " if finding.good else "WRONG"
    if on_terminal() and not finding.skipped:
        mark = click.style(mark, fg="green" if finding.good else "red")
    print(f"{mark}  {finding.subject}: {finding.found}")
    if finding.do and (finding.skipped or not finding.good):
        print(f"       do: {finding.do}")
