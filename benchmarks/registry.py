"""Which benchmarks there are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.figures import Figure


class Benchmark(NamedTuple):
    """A benchmark: what it measures, whether it needs Spark, and the function (directory, rounds, quick) -> figures."""

    about: str
    needs_spark: bool
    run: Callable[[Path, int, bool], list[Figure]]


def _limits(directory: Path, rounds: int, _: bool) -> list[Figure]:
    from benchmarks.machine import limits

    return limits(directory, rounds)


def _ingest(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    from benchmarks.ingest import ingest

    return ingest(directory, rounds, quick)


def _latency(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    from benchmarks.ingest import latency

    return latency(directory, rounds, quick)


def _group(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    from benchmarks.group import group

    return group(directory, rounds, quick)


def _unordered(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    from benchmarks.unordered import unordered

    return unordered(directory, rounds, quick)


def _aio(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    from benchmarks.aio import aio

    return aio(directory, rounds, quick)


def _http(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    from benchmarks.http import http

    return http(directory, rounds, quick)


def _archive(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    from benchmarks.archive import archive

    return archive(directory, rounds, quick)


def _rejoin(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    from benchmarks.joins import rejoin

    return rejoin(directory, rounds, quick)


def _growth(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    from benchmarks.joins import growth

    return growth(directory, rounds, quick)


def _beside(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    from benchmarks.beside import beside_a_scan

    return beside_a_scan(directory, rounds, quick)


def _memory(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    from benchmarks.footprint import memory

    return memory(directory, rounds, quick)


def _start(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    from benchmarks.footprint import start

    return start(directory, rounds, quick)


def _spark(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    from benchmarks.spark import spark_reads

    return spark_reads(directory, rounds, quick)


def _sustained(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    from benchmarks.spark import sustained

    return sustained(directory, rounds, quick)


def _stage(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    from benchmarks.stage import spark_stage

    return spark_stage(directory, rounds, quick)


def _streaming(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    from benchmarks.spark import streaming

    return streaming(directory, rounds, quick)


def _batches(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    from benchmarks.spark_growth import micro_batches

    return micro_batches(directory, rounds, quick)


def _sink(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    from benchmarks.spark_sink import sink

    return sink(directory, rounds, quick)


def _kafka(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    from benchmarks.kafka_connectors import kafka_connectors

    return kafka_connectors(directory, rounds, quick)


def _spool(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    from benchmarks.spool import spool

    return spool(directory, rounds, quick)


BENCHMARKS: dict[str, Benchmark] = {
    "limits": Benchmark("the machine's own limits: disk, memory, loopback", False, _limits),
    "ingest": Benchmark("send() and send_batch() with fdatasync, beside the raw disk", False, _ingest),
    "latency": Benchmark("one record at a time, and paced", False, _latency),
    "group": Benchmark("groups of one, three and five beside bare ZeroMQ with the same syncs, and idle members", False, _group),
    "unordered": Benchmark("unordered sends beside ordered ones, throughput and one at a time", False, _unordered),
    "aio": Benchmark("AsyncProducer beside Producer: CPU of a record in bulk, latency one at a time", False, _aio),
    "spool": Benchmark("a producer's spool beside a producer without, and read back after an outage", False, _spool),
    "http": Benchmark("posts over HTTP beside the plain Producer", False, _http),
    "kafka": Benchmark("records from Kafka and to Kafka by the connectors, beside Kafka's bare client", False, _kafka),
    "rejoin": Benchmark("commit latency while one of three learns 1 GB that it missed", False, _rejoin),
    "growth": Benchmark("a group of one with a log grows to three and five while records commit", False, _growth),
    "scan": Benchmark("commit latency alone and beside a full scan", False, _beside),
    "archive": Benchmark("archiving a backlog beside commits, and what these wait for it", False, _archive),
    "memory": Benchmark("PSS idle, under load, a minute after", False, _memory),
    "start": Benchmark("start on a large log", False, _start),
    "spark": Benchmark("Spark batch reads by Flight, short-circuit, files; beside memory and Spark's Kafka source", True, _spark),
    "sustained": Benchmark("a Spark stream over ten million records, beside its Kafka source", True, _sustained),
    "stage": Benchmark("a long Spark stage on the group's processors: views that ended, gaps, commit latency", True, _stage),
    "streaming": Benchmark("send() to foreachBatch, beside Spark's Kafka source", True, _streaming),
    "sink": Benchmark("Spark writes to one gateway and to three; a micro-batch beside Spark's no-op sink", True, _sink),
    "batches": Benchmark("memory of a query over 2,000 micro-batches: driver, planner, workers", True, _batches),
}
