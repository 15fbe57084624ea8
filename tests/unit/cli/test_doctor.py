"""Tests of `tutti doctor`: each check finds its problem and names a remedy."""

from __future__ import annotations

import http.server
import json
import os
import re
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from ipaddress import ip_address
from pathlib import Path

import pytest

from tests.support.certificates import certificate
from tests.support.ports import free_base
from tests.support.processes import expect_end
from tutti import limits
from tutti.batching import appender
from tutti_gateway.cli.doctor import java, machine, spark
from tutti_gateway.cli.doctor.machine import Finding
from tutti_gateway.cli.main import main
from tutti_spark.common import requirements
from tutti_spark.common.requirements import InterpreterReport


@pytest.fixture
def _busy_disk_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the disk's speed: other processes write to this machine's disk during the test."""
    monkeypatch.setattr(machine, "SYNC_MS_MAX", 60_000.0)


@pytest.mark.usefixtures("_busy_disk_is_good")
def test_a_good_machine(tmp_path: Path) -> None:
    for finding in (machine.python(), machine.packages(), machine.disk_space(tmp_path), machine.sync_time(tmp_path)):
        assert finding.good, finding
    assert list(tmp_path.iterdir()) == []


def test_for_a_missing_directory_its_parent_is_checked(tmp_path: Path) -> None:
    assert machine.nearest(tmp_path / "a" / "b") == tmp_path
    assert str(tmp_path) in machine.disk_space(tmp_path / "a" / "b").found


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PACKAGES", ("pyarrow", "no-such-package"))
    found = machine.packages()
    assert (found.good, found.found.endswith("; missing: no-such-package")) == (False, True)


@pytest.fixture
def _no_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the packages of every extra look uninstalled."""
    extras = {f"no-such-package-of-{name}" for name in machine.EXTRAS}
    monkeypatch.setattr(machine, "EXTRAS", {name.removeprefix("no-such-package-of-"): (name,) for name in extras})


def doctor(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Finding]]:
    """Return the exit code and the findings of `tutti doctor`, by subject."""
    code = main(["doctor", "--json", *options])
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] == (code == 0)
    return code, {finding["subject"]: Finding(**finding) for finding in told["findings"]}


@pytest.mark.usefixtures("_no_extras")
def test_what_is_not_installed_is_not_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    """A client has no extra, and a gateway has no pyspark: neither is a mistake."""
    code, found = doctor(capsys)
    assert code == 0
    skipped = {name: finding.found for name, finding in found.items() if finding.skipped}
    assert skipped == {
        name: f"not installed: the extra {name} adds no-such-package-of-{name}" for name in ("gateway", "spark", "kafka")
    }
    assert not found.keys() & {"ports", "disk space", "java", "pyspark"}
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "all 4 checks passed"
    assert "-      spark: not installed: the extra spark adds no-such-package-of-spark" in lines


def test_a_part_of_an_extra_is_named_as_not_complete(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An application may use packages of the extra itself, so only `--role` makes the missing one a failure."""
    extras = {"gateway": ("msgspec", "no-such-package"), "kafka": ("no-kafka",), "spark": ("no-spark",)}
    monkeypatch.setattr(machine, "EXTRAS", extras)
    code, found = doctor(capsys)
    assert (code, found["gateway"].skipped) == (0, True)
    assert found["gateway"].found == "not complete, so not checked: no-such-package missing"
    assert found["gateway"].do.startswith("if you need the role gateway here, run ")
    assert found["gateway"].do.endswith("; then run tutti doctor --role gateway")
    assert main(["doctor"]) == 0
    assert f"       do: {found['gateway'].do}" in capsys.readouterr().out.splitlines()
    code, found = doctor(capsys, "--role", "gateway")
    assert (code, found["gateway packages"].good) == (1, False)


@pytest.mark.usefixtures("_no_extras")
@pytest.mark.parametrize(("role", "more"), [("gateway", ""), ("kafka", ", no-such-package-of-gateway")])
def test_a_role_needs_its_extra(role: str, more: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = doctor(capsys, "--role", role)
    wrong = found[f"{role} packages"]
    assert (code, wrong.good, wrong.found) == (1, False, f"missing: no-such-package-of-{role}{more}")
    assert f"pip install '.[{role}]'" in wrong.do


def test_the_role_kafka_needs_the_packages_of_a_gateway_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "EXTRAS", {"gateway": ("no-such-package",), "kafka": ("msgspec",), "spark": ("no-spark",)})
    code, found = doctor(capsys, "--role", "kafka")
    assert (code, found["kafka packages"].good) == (1, False)
    assert found["kafka packages"].found.endswith("; missing: no-such-package")


def test_the_role_spark_needs_pyspark(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def not_found(_: str) -> str:
        raise PackageNotFoundError

    monkeypatch.setattr(spark, "version", not_found)
    code, found = doctor(capsys, "--role", "spark")
    assert (code, found["pyspark"].good) == (1, False)
    assert not found.keys() & {"ports", "gateway packages", "kafka packages"}


@pytest.mark.usefixtures("_no_extras")
def test_the_role_client_needs_no_extra(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = doctor(capsys, "--role", "client")
    assert (code, list(found)) == (0, ["python", "packages", "send()", "open files"])


def test_the_packages_of_extras_are_those_of_the_distribution() -> None:
    declared = requires("tutti-ingest") or []
    for extra, names in machine.EXTRAS.items():
        assert all(any(re.match(rf"{name}\b.*extra == .{extra}.", line) for line in declared) for name in names), extra


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--role", "kafka", "--spark"], "--spark checks Spark, which --role kafka does not need"),
        (["--role", "client", "--data", "x"], "--port and --data are checks of a gateway, not of --role client"),
        (["--role", "spark", "--port", "7400"], "--port and --data are checks of a gateway, not of --role spark"),
        (["--role", "broker"], "'broker' is not one of 'gateway', 'client', 'spark', 'kafka'"),
    ],
)
def test_options_that_do_not_fit_the_role(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *options]) == 2
    assert words in capsys.readouterr().err


def test_a_missing_data_directory_is_reported(tmp_path: Path) -> None:
    missing = machine.data_directory(tmp_path / "a" / "b")
    assert missing.good
    assert missing.found == f"{tmp_path / 'a' / 'b'} is missing: the gateway creates it, below {tmp_path}"
    assert machine.data_directory(tmp_path).found == f"{tmp_path} exists"
    (tmp_path / "file").touch()
    wrong = machine.data_directory(tmp_path / "file")
    assert (wrong.good, wrong.found) == (False, f"{tmp_path / 'file'} is not a directory")


def test_the_compiled_send_is_reported_and_both_forms_are_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "compiled", appender)
    assert machine.compiled() == Finding("send()", True, f"compiled, {appender.__file__}")
    monkeypatch.setattr(appender, "compiled", None)
    found = machine.compiled()
    assert found.good
    assert "gcc" in found.found


def test_few_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    found = machine.open_files()
    assert (found.good, found.found) == (False, "256 (at most 4096)")
    assert "ulimit -n" in found.do


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=limits.DISK_LOW_BYTES)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    found = machine.disk_space(tmp_path)
    assert not found.good
    assert found.found == f"256.0 MiB free at {tmp_path}"
    assert "rejects records below 256.0 MiB" in found.do


def test_a_slow_disk_and_one_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "SYNC_MS_MAX", 0.0)
    assert not machine.sync_time(tmp_path).good

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", refuse)
    found = machine.sync_time(tmp_path)
    assert (found.good, found.found) == (False, f"{tmp_path}: permission denied")


@pytest.fixture
def admin() -> Iterator[http.server.HTTPServer]:
    """Something that answers as a gateway's admin port."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"gateway": "jfk"} if self.path == "/v1/status" else {"status": "ok"}).encode())

        def log_message(self, *_: object) -> None:
            """Be quiet."""

    with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_ports_of_another_program_and_of_a_gateway(admin: http.server.HTTPServer) -> None:
    port = int(admin.server_address[1])
    ours = machine.ports(port - 3)
    assert (ours.good, ours.found) == (True, f"{port - 3} to {port} on 127.0.0.1 belong to gateway jfk, which is running")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        found = machine.ports(taken)
    assert not found.good
    assert f"in use by another program: {taken} (clients)" in found.found


def test_ports_are_checked_on_every_address_of_the_host() -> None:
    taken = free_base()
    with socket.socket() as other:
        other.bind(("127.0.0.9", taken))
        other.listen()
        found = machine.ports(taken)
    assert (found.good, found.found.endswith(" on 127.0.0.9")) == (False, True)
    assert machine.ports(taken).found == f"{taken} to {taken + 3} are free on all addresses of this host"


def test_the_tables_of_the_kernel_name_listening_addresses_of_both_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def words(address: str) -> str:
        packed = ip_address(address).packed
        return "".join(f"{int.from_bytes(packed[at : at + 4], sys.byteorder):08X}" for at in range(0, len(packed), 4))

    lines = [
        "sl local_address rem_address st",
        f"0: {words('10.1.2.3')}:1CE8 00000000:0000 0A more",
        f"1: {words('fe80::1:2')}:1CE8 00000000:0000 0A more",
        f"2: {words('10.1.2.4')}:1CE8 00000000:0000 01 a connection",
        f"3: {words('10.1.2.5')}:1CE9 00000000:0000 0A another port",
    ]
    (tmp_path / "tcp").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(machine, "_TCP_TABLES", (str(tmp_path / "tcp"), str(tmp_path / "none")))
    monkeypatch.setattr(machine, "_gateway_at", lambda *_: "")
    assert machine.ports(7400).found == "in use by another program: 7400 (clients), 7401 (group) on 10.1.2.3, 10.1.2.5, fe80::1:2"


def test_ports_of_a_gateway_with_a_certificate(admin: http.server.HTTPServer, tmp_path: Path) -> None:
    certificate(tmp_path, "tls")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.pem", tmp_path / "tls.key")
    admin.socket = context.wrap_socket(admin.socket, server_side=True)
    port = int(admin.server_address[1])
    found = machine.ports(port - 3)
    assert (found.good, found.found) == (
        True,
        f"{port - 3} to {port} on 127.0.0.1 belong to a gateway with a certificate, which is running",
    )


def a_java(directory: Path, says: str, code: int = 0) -> Path:
    command = directory / "bin" / "java"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    command.chmod(0o755)
    return command


@pytest.mark.parametrize(
    ("says", "code", "good"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 0, True),
        ('openjdk version "25" 2025-09-16', 0, True),
        ('java version "1.8.0_402"', 0, False),
        ('openjdk version "11.0.2"', 0, False),
        ("nonsense", 0, False),
        ('openjdk version "17.0.15"', 1, False),
    ],
)
def test_the_java_of_java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, code: int, good: bool) -> None:
    a_java(tmp_path, says, code)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = java.java()
    assert found.good == good
    assert "Java 17" in found.do


def test_java_on_path_or_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert java.java().found == "there is no java on PATH, and JAVA_HOME is not set"
    command = a_java(tmp_path, 'openjdk version "21.0.1"')
    assert java.java().found == f"21.0.1 at {command}"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    found = java.java()
    assert (found.good, f"JAVA_HOME={tmp_path / 'nowhere'} has no bin/java" in found.found) == (False, True)


def told(**packages: str) -> InterpreterReport:
    """Return the report on this interpreter, with these versions of packages in place of its own."""
    found = requirements.describe_interpreter()
    found["packages"].update(packages)
    return found


def a_python(directory: Path, found: InterpreterReport) -> Path:
    command = directory / "python3"
    command.write_text(f"#!/bin/sh\necho '{json.dumps(found)}'\n")
    command.chmod(0o755)
    return command


def test_the_python_that_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert spark.python_of_workers().good
    monkeypatch.delenv("PYSPARK_PYTHON")
    a_python(tmp_path, told() | {"missing": ["streaming"]})
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    found = spark.python_of_workers()
    assert (found.good, found.found.endswith(": it lacks streaming")) == (False, True)
    assert "python3 on PATH, as PYSPARK_PYTHON is not set" in found.found
    assert f"export PYSPARK_PYTHON={sys.executable}" in found.do
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "nowhere"))
    assert not spark.python_of_workers().good


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (told(pyarrow="21.0.0"), "pyarrow is 21.0.0 (22 or newer is needed)"),
        (told(orjson=""), "orjson is missing (3.11 or newer is needed)"),
        (told(pandas="3.0.1"), "pandas is 3.0.1 (2.2 or newer, below 3 is needed)"),
        (told() | {"python": "3.10.2"}, "it is Python 3.10.2 (3.11 or newer, below 3.14 is needed)"),
    ],
)
def test_versions_that_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: InterpreterReport, words: str) -> None:
    """Proves that the doctor names the installed and the required versions."""
    monkeypatch.setenv("PYSPARK_PYTHON", str(a_python(tmp_path, found)))
    finding = spark.python_of_workers()
    assert not finding.good
    assert words in finding.found


def test_another_python_version_than_the_drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that two good Pythons are not good together."""
    other = "3.12.1" if sys.version_info[:2] != (3, 12) else "3.13.1"
    monkeypatch.setenv("PYSPARK_PYTHON", str(a_python(tmp_path, told() | {"python": other})))
    finding = spark.python_of_workers()
    assert (finding.good, "the driver and the workers need the same version" in finding.do) == (False, True)


def test_another_spark_in_spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that a Spark that would start in place of pyspark's own is detected."""
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert spark.pyspark().found.endswith(f"and SPARK_HOME={tmp_path} has Spark none")
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-4.1.1.jar").touch()
    found = spark.pyspark()
    assert (found.good, found.found.endswith(f"and SPARK_HOME={tmp_path} has Spark 4.1.1")) == (False, True)
    (tmp_path / "jars" / "spark-core_2.13-4.1.1.jar").rename(tmp_path / "jars" / f"spark-core_2.13-{version('pyspark')}.jar")
    assert spark.pyspark().good


def test_settings_with_which_the_format_runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that both ways to name a Python for what Spark finds by itself, and not for the rest, are seen."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    assert "spark.python.unix.domain.socket.enabled is not true" in spark.settings().found
    file = tmp_path / "spark-defaults.conf"
    file.write_text("# ours\n\nspark.python.unix.domain.socket.enabled true\nspark.pyspark.python=/opt/tutti/bin/python\n")
    found = spark.settings()
    assert (found.good, f"spark.pyspark.python is /opt/tutti/bin/python in {file}" in found.found) == (False, True)
    assert "pyspark_tutti.register(spark)" in found.do
    file.write_text("spark.python.unix.domain.socket.enabled = true\n")
    assert spark.settings() == Finding("settings of Spark", True, "no conflict")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", str(Path(sys.executable).with_name("python3")))
    assert spark.settings().good
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "jupyter")
    found = spark.settings()
    assert (found.good, "PYSPARK_DRIVER_PYTHON=jupyter" in found.found) == (False, True)


def test_a_failing_trial_reports_its_last_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "_TRIAL", "import sys; sys.exit('no such luck')")
    found = spark.trial()
    assert (found.good, found.found) == (False, "ended with 1: no such luck")


#: Stands for pyspark, and its child for the JVM: it ignores Ctrl-C.
_HANGS = """\
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(2, signal.SIG_IGN); time.sleep(100)"])
open(os.environ["TRIAL_PID"], "w").write(f"{child.pid}\\n")
time.sleep(100)
"""


def a_pid(file: Path) -> int:
    """The process that a trial has written down, within 20 seconds."""
    deadline_s = time.monotonic() + 20
    while not (file.exists() and file.read_text().endswith("\n")):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    return int(file.read_text())


def test_a_trial_that_takes_too_long_leaves_no_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRIAL_PID", str(tmp_path / "pid"))
    monkeypatch.setattr(spark, "_TRIAL", _HANGS)
    monkeypatch.setattr(spark, "_TRIAL_WAIT_S", 3.0)
    found = spark.trial()
    assert (found.good, found.found) == (False, "did not end within 3 s")
    expect_end(a_pid(tmp_path / "pid"))


def test_an_interrupted_trial_leaves_no_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRIAL_PID", str(tmp_path / "pid"))
    code = f"from tutti_gateway.cli.doctor import spark; spark._TRIAL = {_HANGS!r}; spark.trial()"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as doctor:
        try:
            child = a_pid(tmp_path / "pid")
            doctor.send_signal(signal.SIGINT)
            assert "KeyboardInterrupt" in doctor.communicate(timeout=20)[1]
        finally:
            doctor.kill()
    expect_end(child)


def test_no_trial_without_java(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """One mistake counts once."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setattr(spark, "trial", lambda: pytest.fail("it was tried"))
    assert main(["doctor", "--spark", "--data", str(tmp_path), "--json"]) == 1
    said = capsys.readouterr()
    wrong = [finding["subject"] for finding in json.loads(said.out)["findings"] if not finding["good"]]
    assert "java" in wrong
    assert "a trial of Spark" not in wrong
    assert said.err == "the trial of Spark is skipped: it needs java\n"


@pytest.mark.parametrize(
    ("workers", "source", "failed", "words"),
    [
        ([told()], "the option gateways is missing", "", ""),
        ([told(), told(pyarrow="")], "the option gateways is missing", "", "pyarrow is missing"),
        ([told() | {"missing": ["streaming"]}], "the option gateways is missing", "", "it lacks streaming"),
        ([told()], "[DATA_SOURCE_NOT_FOUND] tutti", "", "Spark does not find the format tutti"),
        ([], "", "Cannot run program", "on local[1]: Cannot run program"),
    ],
)
def test_the_report_of_a_trial(
    monkeypatch: pytest.MonkeyPatch, workers: list[InterpreterReport], source: str, failed: str, words: str
) -> None:
    for number, worker in enumerate(workers):
        worker["host"] = f"h{number}"
    answer = json.dumps({"workers": workers, "source": source, "failed": failed})
    said = subprocess.CompletedProcess([], 0, f"noise\nTRIAL {answer}\n", "")
    monkeypatch.setattr(spark, "_run_trial", lambda *_: said)
    found = spark.trial()
    assert found.good == (not words)
    assert words in found.found


def test_a_cluster_is_tried_only_when_spark_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Proves that a master without --spark is a mistake that is told."""
    assert main(["doctor", "--master", "spark://h:7077"]) == 2
    assert "--master needs --spark: give both" in capsys.readouterr().err


@pytest.mark.usefixtures("_busy_disk_is_good")
def test_the_exit_code_shows_whether_a_check_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["doctor", "--port", str(port), "--data", str(tmp_path)]) == 1
        lines = capsys.readouterr().out.splitlines()
        assert lines[-1] == "1 of 14 checks failed: ports"
        assert "       do: choose another base port, or stop that program" in lines
        assert main(["doctor", "--port", str(port), "--data", str(tmp_path), "--json"]) == 1
        told = json.loads(capsys.readouterr().out)
        assert [finding["subject"] for finding in told["findings"] if not finding["good"]] == ["ports"]


@pytest.mark.spark
def test_a_trial_of_spark_from_outside_of_an_activated_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("PATH", os.defpath)
    found = spark.trial()
    assert found.good, found
    host = socket.gethostname()
    assert found.found == f"workers run {sys.executable} {sys.version.split()[0]} on {host}, and Spark finds the format tutti"


def test_a_missing_library_makes_one_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tutti.batching.appender", None)
    found = machine.compiled()
    assert not found.good
    assert "cannot be checked" in found.found
