"""Tests of the metrics endpoint: it serves all counters of the gateway under stable names, in a form that Prometheus' own
parser accepts.
"""

import json
import re
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tutti_gateway.core import limits
from tutti_gateway.reads.admin.metric_catalog import HISTOGRAM, METRICS
from tutti_gateway.reads.admin.metrics import LogFigures, exposition

READS: dict[str, Any] = {
    "calls": {"stream": 2, "follow": 1, "action": 0},
    "busy": {"stream": 3, "follow": 0, "action": 0, "room": 4},
    "streams": {
        "opened": 5,
        "failed": 1,
        "records": 1000,
        "batches": 7,
        "bytes": 4096,
        "batch_us": {"bounds": [100], "counts": [7, 0], "sum": 70},
    },
    "actions": {"act_us": {"bounds": [100], "counts": [1, 1], "sum": 400}},
    "admin": {"turned_away": {"crowded": 9}},
    "memory": {"private_bytes": 1 << 20, "batches_bytes": 5000},
}
STATUS: dict[str, Any] = {
    "gateway": "jfk",
    "group": "ingest",
    "log": "ab" * 16,
    "version": "0.1",
    "state": "primary",
    "view": {"id": 65537, "members": ["jfk"]},
    "frontier": 336776,
    "lag": {"jfk": 0, "lga": 8},
    "silent": ["lga"],
    "start": 0,
    "tick": {"number": 8, "time_us": 1_500_000},
    "disk": {
        "free_bytes": 5,
        "low": False,
        "failed": "",
        "syncs": 40,
        "bytes": 9,
        "sync_us": {"bounds": [100, 1000], "counts": [3, 2, 1], "sum": 4000},
        "frames_per_sync": {"bounds": [1, 2], "counts": [30, 5, 5], "sum": 77},
        "lanes": {"syncs": 7, "bytes": 8},
        "damage": {"lost": [], "found": 2, "mended_frames": 9},
    },
    "lanes": [{"lane": "1-ab", "halted": "", "damaged": ""}],
    "repair": {"requests": 3, "repairs": 2, "repaired_frames": 9, "refused": 1, "discarded_frames": 4, "dropped_messages": 5},
    "refused": {"too_large": 2, "no_space": 1},
    "queues": {"disk": 3},
    "ingest": {"frames": 11, "records": 22, "bytes": 33},
    "committed": {"frames": 6, "records": 12},
    "unordered": {"frames": 5, "records": 10},
    "transport": {
        "kind": "multicast",
        "peers": [{"name": "lga", "up": True, "connects": 2, "sent": 7, "sent_bytes": 900, "lost": 3, "received": 6}],
        "multicast": {"peers": {"lga": {"hears": True, "received": 5, "lost": 4}}},
    },
}


def scrape(status: dict[str, Any] | None, **kwargs: Any) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = exposition(status, READS, LogFigures(**kwargs)).decode()
    samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in samples
            samples[key] = sample.value
    return samples


def test_figures_of_the_links_to_other_gateways() -> None:
    found = scrape(STATUS)
    lga = (("peer", "lga"),)
    assert (found["tutti_link_up", lga], found["tutti_link_connects_total", lga]) == (1, 2)
    assert (found["tutti_link_sent_messages_total", lga], found["tutti_link_lost_messages_total", lga]) == (7, 3)
    assert found["tutti_multicast_lost_messages_total", lga] == 4
    alone = scrape({**STATUS, "transport": {"kind": "mesh", "peers": []}})
    assert not [name for name, _ in alone if name.startswith(("tutti_link", "tutti_multicast"))]


def test_unreadable_frames_are_counted_by_the_kind_of_reader() -> None:
    well = scrape(STATUS)
    names = ("tutti_disk_lost_positions", "tutti_lanes_damaged", "tutti_lanes_halted")
    assert [well[name, ()] for name in names] == [0, 0, 0]
    assert (well["tutti_disk_damage_found_total", ()], well["tutti_disk_mended_frames_total", ()]) == (2, 9)
    disk = {**STATUS["disk"], "damage": {"lost": [11, 20], "found": 3, "mended_frames": 9}}
    lanes = [{"halted": "", "damaged": "a body"}, {"halted": "its end", "damaged": "its end"}, {"halted": "", "damaged": ""}]
    ill = scrape({**STATUS, "disk": disk, "lanes": lanes})
    assert [ill[name, ()] for name in names] == [10, 2, 1]


def test_figures_of_the_gateway() -> None:
    found = scrape(STATUS)
    assert found["tutti_up", ()] == 1
    assert found["tutti_frontier_offset", ()] == 336776
    assert found["tutti_tick_timestamp_seconds", ()] == 1.5
    assert found["tutti_ingest_records_total", ()] == 22
    assert found["tutti_committed_records_total", ()] + found["tutti_unordered_committed_records_total", ()] == 22
    assert found["tutti_disk_lanes_written_bytes_total", ()] == 8
    assert (found["tutti_repair_requests_total", ()], found["tutti_repaired_frames_total", ()]) == (3, 9)
    assert (found["tutti_repairs_total", ()], found["tutti_repair_refusals_total", ()]) == (2, 1)
    assert (found["tutti_group_discarded_frames_total", ()], found["tutti_group_dropped_messages_total", ()]) == (4, 5)
    assert found["tutti_state", (("state", "primary"),)] == 1
    assert found["tutti_state", (("state", "halted"),)] == 0
    assert found["tutti_state", (("state", "leaving"),)] == 0
    assert found["tutti_members_silent", ()] == 1
    assert found["tutti_member_lag_positions", (("member", "lga"),)] == 8
    assert found["tutti_refused_total", (("code", "too_large"),)] == 2
    assert found["tutti_queue_length", (("queue", "disk"),)] == 3
    assert found["tutti_disk_failed", ()] == 0
    assert found["tutti_view_members", ()] == 1
    info = (("gateway", "jfk"), ("group", "ingest"), ("log", "ab" * 16), ("version", "0.1"))
    assert found["tutti_info", info] == 1


def test_histograms_are_cumulative_and_in_seconds() -> None:
    found = scrape(STATUS)
    name = "tutti_disk_sync_duration_seconds"
    assert [found[f"{name}_bucket", (("le", le),)] for le in ("0.0001", "0.001", "+Inf")] == [3, 5, 6]
    assert (found[f"{name}_count", ()], found[f"{name}_sum", ()]) == (6, 0.004)
    assert found["tutti_disk_sync_frames_bucket", (("le", "2.0"),)] == 35


def test_figures_of_the_reads_process_come_without_the_gateway_too() -> None:
    found = scrape(None)
    assert found["tutti_up", ()] == 0
    assert found["tutti_reads_records_total", ()] == 1000
    assert found["tutti_reads_busy_total", (("kind", "room"),)] == 4
    assert found["tutti_reads_memory_batches_bytes", ()] == 5000
    assert found["tutti_reads_calls", (("kind", "follow"),)] == 1
    assert found["tutti_reads_busy_total", (("kind", "stream"),)] == 3
    assert ("tutti_frontier_offset", ()) not in found


def test_fields_missing_in_a_status_are_left_out() -> None:
    assert ("tutti_sessions", ()) not in scrape(STATUS)
    assert scrape({"view": None, "disk": "odd", "refused": None})["tutti_up", ()] == 1


def test_topics_and_readers_are_bounded() -> None:
    found = scrape(
        STATUS, topics={f"t{number}": (number, 7) for number in range(limits.METRIC_SERIES_MAX + 5)}, readers={"spark": 12}
    )
    assert sum(name == "tutti_topic_records_total" for name, _ in found) == limits.METRIC_SERIES_MAX
    assert found["tutti_reader_lag_records", (("reader", "spark"),)] == 12


def whole_status() -> dict[str, Any]:
    """A status that holds every figure."""
    status: dict[str, Any] = json.loads(json.dumps(STATUS))
    status["members"] = [{"name": "lga", "voter": True, "round_trip_us": 1500}]
    status["transport"]["peers"][0]["received_bytes"] = 1
    quotas = {"waiting_bytes": 1, "throttled_us": {"feed": 1}}
    status["security"] = {"tokens": 2, "trouble": "", "refused": {"who": 1}, "quotas": quotas}
    for figure in METRICS:
        place = status
        *keys, last = figure.path.split(".")
        if keys[:1] in (["reads"], ["made"], ["links"], ["topics_held"], ["query_lags"], ["tokens"]) or last == "reader_lags":
            continue
        for key in keys:
            place = place.setdefault(key, {})
        place.setdefault(last, {"bounds": [1], "counts": [1, 0], "sum": 1} if figure.kind == HISTOGRAM else 1)
    return status


def test_every_figure_is_in_a_scrape_with_its_type_and_labels() -> None:
    text = exposition(whole_status(), READS, LogFigures({"t": (1, 2)}, {"r": 1}, {"q": (3, 4000)})).decode()
    served = {family.name: family for family in text_string_to_metric_families(text)}
    assert set(served) == {figure.name for figure in METRICS}
    for figure in METRICS:
        family = served[figure.name]
        assert (family.type, family.documentation) == (figure.kind, figure.help)
        assert family.samples
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(figure.labels)


def test_names_that_were_released_are_there_and_new_ones_are_noted() -> None:
    """The file is a promise to operators with dashboards and alerts: lines are added, and none is removed."""
    promised = (Path(__file__).parent / "metrics.txt").read_text().splitlines()
    assert sorted(" ".join([figure.shown, figure.kind, *figure.labels]) for figure in METRICS) == promised


def test_queries_of_spark_have_their_lag() -> None:
    found = scrape(STATUS, queries={"delays": (12, 2500)})
    query = (("query", "delays"),)
    assert (found["tutti_query_lag_records", query], found["tutti_query_lag_seconds", query]) == (12, 2.5)


def test_refused_tokens_are_counted_at_both_doors() -> None:
    assert ("tutti_tokens_trouble", ()) not in scrape(STATUS)
    found = scrape({**STATUS, "security": {"tokens": 2, "problems": {"tokens": "it is gone"}, "refused": {"who": 2}}})
    assert (found["tutti_tokens_refused_total", (("code", "who"),)], found["tutti_tokens_trouble", ()]) == (2, 1)


def test_the_end_of_the_certificate_is_there_with_and_without_tokens() -> None:
    own = {"problems": {"certificate": "it expired"}, "certificate": {"expires_us": 1_800_000_000_000_000}}
    found = scrape({**STATUS, "security": own})
    assert found["tutti_certificate_expiry_timestamp_seconds", ()] == 1_800_000_000
    assert ("tutti_tokens_trouble", ()) not in found
    found = scrape({**STATUS, "security": {"tokens": 2, "refused": {}, **own}})
    assert (found["tutti_certificate_expiry_timestamp_seconds", ()], found["tutti_tokens_trouble", ()]) == (1_800_000_000, 0)


def test_the_throttled_time_of_tokens_is_in_seconds() -> None:
    quotas = {"waiting_bytes": 7, "throttled_us": {"feed": 1_500_000}}
    found = scrape({**STATUS, "security": {"tokens": 2, "trouble": "", "refused": {}, "quotas": quotas}})
    assert found["tutti_tokens_throttled_seconds_total", (("token", "feed"),)] == 1.5
    assert found["tutti_tokens_waiting_bytes", ()] == 7


def test_the_coordinator_and_the_gateways_that_accept_records() -> None:
    view = {"id": 5 << 16 | 2, "members": ["jfk", "lga"], "coordinator": "jfk"}
    found = scrape({**STATUS, "view": view})
    assert (found["tutti_view_number", ()], found["tutti_coordinator", ()], found["tutti_ready", ()]) == (5, 1, 1)
    found = scrape({**STATUS, "reason": "39 MiB are free", "view": {**view, "coordinator": "lga"}})
    assert (found["tutti_coordinator", ()], found["tutti_ready", ()]) == (0, 0)
    assert scrape({**STATUS, "view": {"id": 0, "members": [], "coordinator": ""}})["tutti_coordinator", ()] == 0


def test_names_are_distinct_and_have_their_units() -> None:
    assert len({figure.name for figure in METRICS}) == len(METRICS)
    for figure in METRICS:
        assert re.fullmatch(r"tutti_[a-z_]+", figure.name)
        assert not figure.name.endswith(("_total", "_count", "_sum", "_bucket"))
        if figure.path.endswith("_us"):
            assert figure.name.endswith("_seconds")
            assert figure.divisor == 1_000_000
        if figure.path.endswith("bytes"):
            assert figure.name.endswith("bytes")
