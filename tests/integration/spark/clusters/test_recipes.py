"""Tests of the recipes of docs/how-to/clusters.md, typed as printed, on a real standalone cluster and any other available Spark."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.integration.spark.clusters import recipes
from tests.integration.spark.clusters.conftest import COUNT, send_all
from tests.integration.spark.clusters.kubernetes import ApiServer
from tests.integration.spark.clusters.standalone import Standalone
from tests.integration.spark.rows import until
from tests.support.ports import free_base, free_port
from tests.support.running_group import RunningGroup
from tutti.sources.flight import FlightSource

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]
GATEWAYS = "tutti://g1:7400,g2:7400,g3:7400"
MASTER = "spark://master:7077"


def names(group: RunningGroup, shared: Path, **more: str) -> dict[str, str]:
    """Map the names on the page to those of this test."""
    return {" job.py": f" {recipes.JOB}", GATEWAYS: group.url, "/shared/checkpoints": str(shared)} | more


def all_of(group: RunningGroup) -> str:
    """How many records the log has by now."""
    return str(FlightSource(group.url).frontier().offset)


def read_batches(group: RunningGroup) -> list[float]:
    """How many batches of records each gateway has served."""
    served = []
    for gateway in group.all.values():
        with urllib.request.urlopen(f"http://127.0.0.1:{gateway.port + 3}/metrics") as page:
            lines = page.read().decode().splitlines()
        served.append(next(float(line.split()[1]) for line in lines if line.startswith("tutti_reads_batches_total")))
    return served


def workers_of(where: str) -> set[str]:
    """The workers' directories (their numbers) in which tasks ran."""
    return {place.split("/app-")[0].rpartition("/")[2] for place in where.split()}


@pytest.mark.soak
def test_installed_at_one_path(group: RunningGroup, cluster: Standalone, shared: Path) -> None:
    """Proves that batch and stream run on two hosts with PYSPARK_PYTHON alone, that tasks read from different gateways, and that a
    restarted stream continues with each record once although a worker is killed in the middle of a task.
    """
    recipe = names(group, shared, **{MASTER: cluster.url, "/opt/tutti/bin/python": sys.executable})
    before = read_batches(group)
    script = "\n".join(recipes.submitted("Installed on every host", recipe).splitlines()[2:])  # without the installation
    first = recipes.told(recipes.start(script, shared))
    assert (first["BATCH"], first["STREAM"], first["BATCHES"]) == (str(COUNT), str(COUNT), str(COUNT // 2000))
    assert workers_of(first["WHERE"]) == {"1", "2"}
    assert {place.split("|")[1] for place in first["WHERE"].split()} == {sys.executable}
    assert sum(now > then for now, then in zip(read_batches(group), before, strict=True)) > 1

    send_all(group.url, "s")
    second = recipes.start(f"{script} STREAM HOLD={COUNT + 2500}", shared)
    try:
        until((shared / "held").exists, "a task that holds a record")
        cluster.kill_worker(int(workers_of((shared / "held").read_text()).pop()))
        (shared / "let-go").touch()
        assert recipes.told(second)["STREAM"] == str(2 * COUNT)
    finally:
        recipes.end(second)


@pytest.mark.soak
def test_shipped_with_py_files(group: RunningGroup, cluster: Standalone, shared: Path, tmp_path: Path) -> None:
    """Proves that hosts which have only the libraries read with the package that `--py-files` brings, once it is registered."""
    python = recipes.environment_without_package(tmp_path / "libraries")
    recipe = names(group, shared, **{MASTER: cluster.url, "/opt/libraries/bin/python": str(python)})
    script = recipes.submitted("Shipped with the job: `--py-files`", recipe, "REGISTER")
    assert script.startswith("python -m tutti_spark.launch --zip tutti.zip\n")
    found = recipes.told(recipes.start(script, tmp_path))
    assert (found["BATCH"], found["STREAM"]) == (all_of(group), all_of(group))
    for place in found["WHERE"].split():
        _, ran, package = place.split("|")
        assert (ran, package) == (str(python), "./tutti.zip/tutti_spark/__init__.py")  # in the task's own directory


@pytest.mark.soak
def test_shipped_with_its_libraries(group: RunningGroup, cluster: Standalone, shared: Path, tmp_path: Path) -> None:
    """Proves that hosts which have nothing but Spark and a Python read with the environment that `--archives` brings."""
    make = {"python3 -m venv env": f"{sys.executable} -m venv --without-pip env", "env/bin/pip install /path/to/checkout": "true"}
    recipe = names(group, shared, **{MASTER: cluster.url}, **make)
    venv, _, tar, *submit = recipes.submitted("Shipped with its libraries: `--archives`", recipe).splitlines()
    subprocess.run(venv.split(), cwd=tmp_path, check=True)
    recipes.fill(tmp_path / "env", "google_crc32c", "msgspec", "numpy", "orjson", "pyarrow")
    subprocess.run(tar.split(), cwd=tmp_path, check=True, env=os.environ | {"GZIP": "-1"})
    found = recipes.told(recipes.start("\n".join(submit), tmp_path))
    assert (found["BATCH"], found["STREAM"]) == (all_of(group), all_of(group))
    for place in found["WHERE"].split():
        directory, ran, package = place.split("|")
        assert ran == f"{directory}/env/bin/python"
        assert package.startswith(f"{directory}/env/lib/")


@pytest.mark.soak
def test_a_cluster_on_one_machine(group: RunningGroup, shared: Path) -> None:
    """Proves that the installed recipe holds for Spark's cluster of local processes, where jobs are tested."""
    recipe = names(group, shared, **{"/opt/tutti/bin/python": sys.executable})
    found = recipes.told(recipes.start(recipes.submitted("A cluster on one machine: `local-cluster`", recipe), shared))
    assert (found["BATCH"], found["STREAM"]) == (all_of(group), all_of(group))
    assert len({place.split("|")[0] for place in found["WHERE"].split()}) == 2


@pytest.mark.soak
def test_spark_connect(group: RunningGroup, shared: Path) -> None:
    """Proves that batch and stream run through a Connect server whose Python alone has the package, that a write in foreachBatch
    with the micro-batch's number in its writeId is there once when it runs again, and that what needs a plan is refused.
    """
    port = free_port()
    here = {"/opt/tutti/bin/python": sys.executable, "address=server": "address=127.0.0.1", "15002": str(port)}
    recipe = here | {"sc://server": "sc://127.0.0.1", GATEWAYS: group.url}
    lines = recipes.submitted("Spark Connect", recipe).splitlines()
    server = recipes.start("\n".join(lines[:2]) + " --conf spark.master=local[2] >server.log 2>&1", shared)
    try:
        until(lambda: server.poll() is not None or listens(port), "the server of Connect")
        client = [sys.executable, str(recipes.JOB.with_name("connect_client.py")), "\n".join(lines[2:]), str(shared)]
        bare = recipes.environment(PYTHONPATH=str(recipes.ROOT))
        run = subprocess.run(client, env=bare, capture_output=True, text=True, timeout=recipes.WAIT_S, check=False)
        assert run.returncode == 0, run.stdout + run.stderr + (shared / "server.log").read_text()[-3000:]
        found = dict(line.split(" ", 1) for line in run.stdout.splitlines())
        assert (found["BATCH"], found["STREAM"]) == (all_of(group), all_of(group))
        assert (shared / "failed").exists()
        assert found["COPIES"] == "0", "copies but for what there was to copy"
        assert "Connect" in found["REFUSED"]
    finally:
        recipes.end(server)


def listens(port: int) -> bool:
    """Return whether a listener accepts connections there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_kubernetes_is_asked_for_a_driver_that_runs_the_job(tmp_path: Path) -> None:
    """Proves that the command for Kubernetes creates the pod that the page describes, whose image has the Python."""
    with ApiServer() as server:
        image, submit = recipes.commands("Kubernetes", {"k8s://https://kubernetes:6443": server.url})
        submit = submit.replace("spark-submit ", "spark-submit --conf spark.kubernetes.submission.waitAppCompletion=false ")
        process = recipes.start(submit, tmp_path)
        recipes.told(process)
    pod, settings = server.made["Pod"]["spec"], server.made["ConfigMap"]["data"]["spark.properties"]
    (driver,) = pod["containers"]
    assert driver["image"] == image.split(" -t ")[1].split()[0]
    assert driver["args"][-3:] == [word for word in submit.split() if "://" in word][-3:]
    assert (pod["serviceAccountName"], "spark.executor.instances=2" in settings) == ("spark", True)
    assert "PYSPARK_PYTHON" not in json.dumps(driver["env"])  # else it would not be the image's
    dockerfile = (recipes.ROOT / image.split(" -f ")[1].split()[0]).read_text()
    assert "\nENV PYSPARK_PYTHON=/opt/tutti/bin/python\n" in dockerfile
    copied = {word.removesuffix("/") for line in dockerfile.splitlines() if line.startswith("COPY ") for word in line.split()[1:-1]}
    assert all((recipes.ROOT / path).exists() for path in copied if not path.startswith(("-", "/")))


@pytest.mark.soak
def test_the_doctor_asks_the_executors_of_a_cluster(cluster: Standalone, tmp_path: Path) -> None:
    """Proves that `tutti doctor` finds on a cluster what its hosts lack, before a job does."""
    python = recipes.environment_without_package(tmp_path / "libraries")
    command = f"export PYSPARK_PYTHON={python}; {sys.executable} -m tutti_gateway doctor --spark --master {cluster.url} --json"
    process = recipes.start(f"{command} --data {tmp_path} --port {free_base()} || test $? = 1", tmp_path)
    try:
        findings = json.loads(process.communicate(timeout=recipes.WAIT_S)[0])["findings"]
    finally:
        recipes.end(process)
    found = {finding["subject"]: finding for finding in findings}
    lacks = "it lacks pyspark_tutti, tutti_spark, tutti"
    assert found["python of Spark's workers"]["found"].endswith(lacks)
    assert found["a trial of Spark"]["found"].startswith(f"workers run {python} ")
    assert found["a trial of Spark"]["found"].endswith(lacks)
