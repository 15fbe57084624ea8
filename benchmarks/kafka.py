"""A real Kafka broker, and Spark's own source for it, to stand beside ours in the same run. Spark's own Ivy fetches their jars."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.fleet import free_bases
from gateway.children import ending_with_this

#: What is fetched: the broker with all that it asks for, of the connector only what Spark has not.
_BROKER = ("org.apache.kafka:kafka_2.13:4.1.0",)
_CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.12.1",
)
#: Maven's central repository alone: Ivy would take what a `~/.m2` describes, also where it has no jar of it.
_REPOSITORIES = """<ivysettings><settings defaultResolver="central"/><resolvers>
<ibiblio name="central" m2compatible="true"/></resolvers></ivysettings>"""
_WANTED = """<ivy-module version="2.0"><info organisation="tutti" module="peers"/>
<configurations><conf name="default"/></configurations><dependencies>{}</dependencies></ivy-module>"""
_SETTINGS = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
log.dirs={logs}
num.partitions={partitions}
log.segment.bytes=1073741824
message.max.bytes=8388608
"""
PARTITIONS = 2  # one a processor, which is the best for it; records of different ones have no order
_START_S = 60


def jars() -> tuple[Path, Path] | None:
    """Folders with the jars of the broker and of Spark's source, fetched once; None where they cannot be had."""
    found = broker_jars(), _fetched("kafka-spark-4.2.0", _CONNECTOR, alone=True)
    return None if found[0] is None or found[1] is None else (found[0], found[1])


def broker_jars() -> Path | None:
    """Folder with the jars of the broker, fetched once; None where they cannot be had."""
    return _fetched("kafka-broker-4.1.0", _BROKER, alone=False)


def _fetched(name: str, wanted: tuple[str, ...], *, alone: bool) -> Path | None:
    kept = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tutti-bench"
    kept.mkdir(parents=True, exist_ok=True)
    with (kept / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two that want the same fetch it once
        folder = kept / name
        if folder.exists() or _fetch(folder, wanted, alone):
            return folder
    return None


def _fetch(folder: Path, wanted: tuple[str, ...], alone: bool) -> bool:
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None:
        return False
    asked = "".join(
        f'<dependency org="{group}" name="{name}" rev="{version}" transitive="{str(not alone).lower()}" conf="default->default"/>'
        for group, name, version in (one.split(":") for one in wanted)
    )
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        here = Path(scratch)
        (here / "ivy.xml").write_text(_WANTED.format(asked))
        (here / "settings.xml").write_text(_REPOSITORIES)
        ivy = ["java", "-cp", f"{Path(spark.origin).parent}/jars/*", "org.apache.ivy.Main", "-warn"]
        files = ["-settings", "settings.xml", "-ivy", "ivy.xml", "-cache", "cache", "-types", "jar", "bundle"]
        target = ["-retrieve", f"{scratch}/jars/[artifact]-[revision].[ext]"]
        ran = subprocess.run([*ivy, *files, *target], cwd=here, check=False, stdout=subprocess.DEVNULL)
        if ran.returncode or not (here / "jars").is_dir():
            return False
        (here / "jars").rename(folder)
    return True


class Broker:
    """A broker of one node, which may be killed and started again on the same logs.

    Attributes:
        address: HOST:PORT to bootstrap from.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        """Prepare its directory under `root`; `folder` has the jars."""
        self._own = Path(tempfile.mkdtemp(prefix="kafka-", dir=root))
        [base] = free_bases(1)
        self.address = f"127.0.0.1:{base}"
        self._settings = self._own / "server.properties"
        self._settings.write_text(_SETTINGS.format(port=base, controller=base + 1, logs=self._own / "logs", partitions=PARTITIONS))
        self._java = ["java", "-Xms512m", "-Xmx1g", "-cp", f"{folder}/*"]
        self._process: subprocess.Popen[bytes] | None = None
        format_it = ["kafka.tools.StorageTool", "format", "-t", str(uuid.uuid4()), "-c", str(self._settings)]
        with (self._own / "log").open("wb") as log:
            subprocess.run([*self._java, *format_it], stdout=log, stderr=log, check=True)

    def start(self) -> None:
        """Start it and wait until it answers."""
        with (self._own / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._java, "kafka.Kafka", str(self._settings)],
                stdout=log,
                stderr=log,
                preexec_fn=ending_with_this(9),  # noqa: PLW1509 - it calls prctl(2) alone
            )
        self._wait(self._process)

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        host, _, port = self.address.partition(":")
        deadline = time.monotonic() + _START_S
        while process.poll() is None and time.monotonic() < deadline:
            try:
                socket.create_connection((host, int(port)), 1).close()
            except OSError:
                time.sleep(0.2)
            else:
                return
        raise RuntimeError(f"the Kafka broker at {self.address} did not start (exit code {process.poll()})")

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """End it, and remove its directory."""
        self.kill()
        shutil.rmtree(self._own, ignore_errors=True)


@contextmanager
def broker(root: Path, folder: Path) -> Iterator[Broker]:
    """A broker with its logs under `root`; it ends with the block."""
    made = Broker(root, folder)
    try:
        made.start()
        yield made
    finally:
        made.close()


def fill(rows: Any, address: str, topic: str) -> None:
    """Write the column `value` of a DataFrame to a topic."""
    rows.select("value").write.format("kafka").option("kafka.bootstrap.servers", address).option("topic", topic).save()


class Sender:
    """Sends records one at a time through Kafka's own Java producer, inside of Spark's driver."""

    def __init__(self, spark: Any, address: str, topic: str) -> None:
        """Connect; each record leaves at once (no linger)."""
        self._jvm = spark._jvm
        settings = self._jvm.java.util.Properties()
        for name, value in {
            "bootstrap.servers": address,
            "acks": "all",
            "linger.ms": "0",
            "key.serializer": "org.apache.kafka.common.serialization.StringSerializer",
            "value.serializer": "org.apache.kafka.common.serialization.StringSerializer",
        }.items():
            settings.put(name, value)
        self._producer = self._jvm.org.apache.kafka.clients.producer.KafkaProducer(settings)
        self._topic = topic

    def send(self, _: str, value: bytes) -> None:
        """Send one record; it returns at once."""
        record = self._jvm.org.apache.kafka.clients.producer.ProducerRecord(self._topic, value.decode())
        self._producer.send(record)

    def flush(self) -> None:
        """Wait until all are there."""
        self._producer.flush()

    def close(self) -> None:
        """Close."""
        self._producer.close()
