"""A real Kafka broker, and Spark's own source for it, to stand beside ours in the same run. Spark's own Ivy fetches their jars."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.fleet import free_bases
from benchmarks.peers import fetched
from tutti.runtime.child_processes import end_with_this_process

BROKER_VERSION = "4.1.0"
#: Jars to fetch: the broker with all its dependencies, and the jars of Spark's Kafka source that Spark does not contain.
_BROKER = (f"org.apache.kafka:kafka_2.13:{BROKER_VERSION}",)
_CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.12.1",
)
_SETTINGS = """process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
offsets.topic.replication.factor={brokers}
transaction.state.log.replication.factor={brokers}
transaction.state.log.min.isr={in_sync}
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
    found = broker_jars(), fetched.jars("kafka-spark-4.2.0", _CONNECTOR, alone=True)
    return None if found[0] is None or found[1] is None else (found[0], found[1])


def broker_jars() -> Path | None:
    """Folder with the jars of the broker, fetched once; None where they cannot be had."""
    return fetched.jars(f"kafka-broker-{BROKER_VERSION}", _BROKER, alone=False)


class Broker:
    """A broker of one node, which may be killed and started again on the same logs.

    Attributes:
        address: HOST:PORT to bootstrap from.
    """

    def __init__(
        self, root: Path, folder: Path, node: int = 1, bases: Sequence[int] = (), cluster: str = "", options: Sequence[str] = ()
    ) -> None:
        """Prepare its directory under `root`; `folder` has the jars. One of several: which one, the base ports of
        all, and their cluster's id. `options` are Java's.
        """
        bases = bases or free_bases(1)
        port = bases[node - 1]
        self._own = Path(tempfile.mkdtemp(prefix="kafka-", dir=root))
        self.address = f"127.0.0.1:{port}"
        self._settings = self._own / "server.properties"
        self._settings.write_text(
            _SETTINGS.format(
                node=node,
                voters=",".join(f"{number}@127.0.0.1:{base + 1}" for number, base in enumerate(bases, start=1)),
                port=port,
                controller=port + 1,
                brokers=len(bases),
                in_sync=min(2, len(bases)),
                logs=self._own / "logs",
                partitions=PARTITIONS,
            )
        )
        self._java = ["java", "-Xms512m", "-Xmx1g", *options, "-cp", f"{folder}/*"]
        self._process: subprocess.Popen[bytes] | None = None
        format_it = ["kafka.tools.StorageTool", "format", "-t", cluster or str(uuid.uuid4()), "-c", str(self._settings)]
        with (self._own / "log").open("wb") as log:
            subprocess.run([*self._java, *format_it], stdout=log, stderr=log, check=True)

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None  # it was started
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Start it."""
        with (self._own / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._java, "kafka.Kafka", str(self._settings)],
                stdout=log,
                stderr=log,
                preexec_fn=end_with_this_process(9),  # noqa: PLW1509 - it calls prctl(2) alone
            )

    def wait(self) -> None:
        """Wait until it answers; RuntimeError when it ends, or does not within a minute."""
        process = self._process
        assert process is not None  # it was started
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


class Cluster:
    """Brokers of one cluster, each with both roles of KRaft.

    Attributes:
        address: to bootstrap from.
        brokers: each; `brokers[0]` is node 1.
    """

    def __init__(self, root: Path, folder: Path, count: int) -> None:
        """Prepare their directories under `root`."""
        bases, cluster = free_bases(count), str(uuid.uuid4())
        self.brokers = [Broker(root, folder, node, bases, cluster) for node in range(1, count + 1)]
        self.address = ",".join(broker.address for broker in self.brokers)

    def start(self) -> None:
        """Start all and wait until they answer."""
        for each in self.brokers:
            each.launch()
        for each in self.brokers:
            each.wait()

    def close(self) -> None:
        """End them, and remove their directories."""
        for each in self.brokers:
            each.close()


@contextmanager
def broker(root: Path, folder: Path, options: Sequence[str] = ()) -> Iterator[Broker]:
    """A broker with its logs under `root`; it ends with the block."""
    made = Broker(root, folder, options=options)
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
