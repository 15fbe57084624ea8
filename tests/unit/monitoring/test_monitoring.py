"""Tests of the dashboard and the alerts: they use metrics and labels that gateways serve, in expressions that parse. A healthy
group fires no alert, and each alert fires for its cause alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml

from tests.unit.monitoring.promql import Labels, evaluate, groupings, labels, selectors
from tutti.archive import metrics as archive
from tutti_connect.files import metrics as files
from tutti_connect.http import metrics as http
from tutti_connect.kafka.metrics import SinkMetrics, SourceMetrics
from tutti_connect.zeromq import metrics as zeromq
from tutti_gateway.reads.admin.metric_catalog import HISTOGRAM, METRICS

ROOT = Path(__file__).parents[3]
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "docker" / "prometheus" / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "docker" / "grafana" / "tutti.json").read_text())
ALERTS = [rule["alert"] for rule in RULES]
GATEWAYS = ("jfk:7403", "lga:7403", "ewr:7403")
CONNECTORS = ("kafka-in:9464", "kafka-out:9464", "files:9464", "zeromq-in:9464", "http:9464", "archive:9464")
COLLECTORS: list[Any] = [
    kind(MagicMock(next=0, frontier=0, offset=0))
    for kind in (SourceMetrics, SinkMetrics, files.Metrics, zeromq.InMetrics, http.Metrics, archive.Metrics)
]
HOUR_S = 3600.0
Of = Callable[[float], float]
Group = dict[tuple[str, Labels], Of]


def served() -> dict[str, frozenset[str]]:
    """Names as queries have them, each with its labels."""
    found = {"up": frozenset({"job", "instance"})}
    for figure in METRICS:
        parts = [f"{figure.name}{end}" for end in ("_bucket", "_sum", "_count")] if figure.kind == HISTOGRAM else [figure.shown]
        for name in parts:
            more = {"le"} if name.endswith("_bucket") else set()
            found[name] = frozenset({"job", "instance", *figure.labels, *more})
    for collector in COLLECTORS:
        for family in collector.collect():
            name = f"{family.name}_total" if family.type == "counter" else family.name
            found[name] = frozenset({"job", "instance", "connector"})
    return found


def _plain(expression: str) -> str:
    return expression.replace("$__rate_interval", "1m").replace("$job", "tutti").replace("$instance", ".+")


def expressions() -> list[tuple[str, str]]:
    """Where each stands, and what it says, with the dashboard's variables filled in."""
    found = [(rule["alert"], rule["expr"]) for rule in RULES]
    found += [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    found += [(note["name"], note["expr"]) for note in DASHBOARD["annotations"]["list"]]
    return [(where, _plain(text)) for where, text in found]


@pytest.mark.parametrize(("where", "expression"), expressions())
def test_expressions_parse_and_use_served_metrics(where: str, expression: str) -> None:
    names = served()
    asked = list(selectors(expression))
    assert asked
    for name, chosen in asked:
        assert name in names, f"{where}: no gateway serves {name}"
        assert chosen <= names[name], f"{where}: {name} has no label {set(chosen - names[name])}"
    assert groupings(expression) <= frozenset().union(*(names[name] for name, _ in asked))


def test_legends_and_summaries_name_labels_that_are_there() -> None:
    for rule in RULES:
        known = (
            groupings(rule["expr"])
            if re.match(r"(sum|min|max|histogram)", rule["expr"])
            else set().union(*(served()[name] for name, _ in selectors(rule["expr"])))
        )
        assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= known, rule["alert"]
        assert rule["labels"]["severity"] in ("page", "ticket")
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            known = set().union(*(served()[name] for name, _ in selectors(_plain(target["expr"]))))
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= known, panel["title"]


def test_the_page_for_operators_names_every_alert() -> None:
    page = (ROOT / "docs/how-to/operations.md").read_text()
    listed = re.findall(r"^\| `(Tutti\w+)` \|", page, re.MULTILINE)
    assert listed == ALERTS
    assert len(set(ALERTS)) == len(ALERTS)


def constant(value: float) -> Of:
    return lambda _now_s: value


def growing(per_s: float, start: float = 0.0) -> Of:
    return lambda now_s: start + per_s * now_s


def well() -> Group:
    """Three gateways that are well and at work, each with a reader and a query."""
    group: Group = {}
    for gateway in GATEWAYS:
        own = {"job": "tutti", "instance": gateway}

        def put(name: str, of: Of, own: dict[str, str] = own, **more: str) -> None:
            group[name, labels(**own, **more)] = of

        for name, value in {"up": 1, "tutti_up": 1, "tutti_ready": 1, "tutti_view_members": 3, "tutti_voters": 3}.items():
            put(name, constant(value))
        for state in ("primary", "minority", "halted"):
            put("tutti_state", constant(state == "primary"), state=state)
        for name in (
            "disk_failed",
            "disk_low",
            "disk_lost_positions",
            "lanes_damaged",
            "lanes_halted",
            "tokens_trouble",
            "retention_held_bytes",
        ):
            put(f"tutti_{name}", constant(0))
        put("tutti_certificate_expiry_timestamp_seconds", growing(1, 60 * 86_400))
        put("tutti_disk_free_bytes", growing(-1e5, 1e12))
        put("tutti_undecided_frames", constant(20))
        for name in ("disk_damage_found", "view_changes", "reads_starts"):
            put(f"tutti_{name}_total", constant(1))
        put("tutti_committed_frames_total", growing(1000))
        put("tutti_repaired_frames_total", growing(2))
        put("tutti_refused_total", growing(0.1), code="too_large")
        put("tutti_reads_busy_total", constant(5), kind="stream")
        put("tutti_member_lag_positions", constant(50), member="lga")
        put("tutti_query_lag_seconds", constant(3), query="delays")
        put("tutti_reader_lag_records", constant(2e6), reader="nightly")
        for bound, part in (("0.001", 0.5), ("0.01", 1.0), ("0.2", 1.0), ("2.0", 1.0), ("+Inf", 1.0)):
            put("tutti_disk_sync_duration_seconds_bucket", growing(100 * part), le=bound)
            put("tutti_commit_duration_seconds_bucket", growing(100 * part), le=bound)
    for connector in CONNECTORS:
        own, kind = {"job": "tutti-connectors", "instance": connector}, connector.partition(":")[0].replace("-", "_")
        group["up", labels(**own)] = constant(1)
        if kind in ("http", "archive"):
            group["tutti_http_ready" if kind == "http" else "tutti_archive_working", labels(**own)] = constant(1)
        else:
            group[f"tutti_{kind}_flowing", labels(**own)] = constant(1)
            group[f"tutti_{kind}_quarantined", labels(**own)] = constant(3)
    group["tutti_archive_lag_records", labels(**own)] = constant(50_000)
    group["tutti_archive_offset", labels(**own)] = growing(100)
    return group


def changed(name: str, of: Of, *gateways: str, **more: str) -> Group:
    """The group where one metric is otherwise, at some gateways or all."""
    group = well()
    for key in list(group):
        has = dict(key[1])
        if key[0] == name and has["instance"] in (gateways or (*GATEWAYS, *CONNECTORS)) and more.items() <= has.items():
            group[key] = of
    assert group != well()
    return group


def together(*groups: Group) -> Group:
    """What is otherwise in any of them."""
    plain = well()
    found = dict(plain)
    for group in groups:
        found |= {key: of for key, of in group.items() if of(HOUR_S) != plain[key](HOUR_S) or of(0) != plain[key](0)}
    return found


def slow(name: str) -> Group:
    return together(*(changed(f"{name}_bucket", growing(50), le=bound) for bound in ("0.001", "0.01", "0.2")))


def silent(*names: str) -> Group:
    """A gateway of which nothing but some metrics is there."""
    return {key: of for key, of in well().items() if dict(key[1])["instance"] != GATEWAYS[0] or key[0] in names}


def down() -> Group:
    return silent("up") | {("up", labels(job="tutti", instance=GATEWAYS[0])): constant(0)}


def hung() -> Group:
    return silent("up", "tutti_up") | {("tutti_up", labels(job="tutti", instance=GATEWAYS[0])): constant(0)}


ONE = GATEWAYS[0]
CASES: dict[str, tuple[Group, set[str]]] = {
    "TuttiHostDown": (down(), set()),
    "TuttiGatewayDown": (hung(), set()),
    "TuttiGroupTakesNothing": (changed("tutti_ready", constant(0)), {"TuttiTakesNothing"}),
    "TuttiNotPrimary": (
        together(changed("tutti_state", constant(0), ONE, state="primary"), changed("tutti_ready", constant(0), ONE)),
        set(),
    ),
    "TuttiTakesNothing": (changed("tutti_ready", constant(0), ONE), set()),
    "TuttiNothingDecided": (changed("tutti_committed_frames_total", constant(7), ONE), {"TuttiMuchRepair"}),
    "TuttiDiskFailed": (changed("tutti_disk_failed", constant(1), ONE), set()),
    "TuttiDiskLow": (changed("tutti_disk_low", constant(1), ONE), set()),
    "TuttiDiskFillsUp": (changed("tutti_disk_free_bytes", growing(-1e7, 1e12), ONE), set()),
    "TuttiRetentionHeld": (changed("tutti_retention_held_bytes", growing(1e5, 1e9), ONE), set()),
    "TuttiLogDamaged": (changed("tutti_disk_lost_positions", constant(3), ONE), set()),
    "TuttiLaneDamaged": (changed("tutti_lanes_damaged", constant(1), ONE), set()),
    "TuttiLaneHalted": (changed("tutti_lanes_halted", constant(1), ONE), set()),
    "TuttiDiskLosesThings": (changed("tutti_disk_damage_found_total", growing(10 / 86400), ONE), set()),
    "TuttiMemberMissing": (changed("tutti_view_members", constant(2)), set()),
    "TuttiMemberLags": (changed("tutti_member_lag_positions", constant(200_000)), set()),
    "TuttiViewsChange": (changed("tutti_view_changes_total", growing(1 / 60)), set()),
    "TuttiSlowSync": (slow("tutti_disk_sync_duration_seconds"), set()),
    "TuttiSlowCommit": (slow("tutti_commit_duration_seconds"), set()),
    "TuttiMuchRepair": (changed("tutti_repaired_frames_total", growing(100)), set()),
    "TuttiRefusals": (changed("tutti_refused_total", growing(5), ONE), set()),
    "TuttiTokensTrouble": (changed("tutti_tokens_trouble", constant(1), ONE), set()),
    "TuttiCertificateExpires": (changed("tutti_certificate_expiry_timestamp_seconds", growing(1, 86_400), ONE), set()),
    "TuttiReadsBusy": (changed("tutti_reads_busy_total", growing(1), ONE), set()),
    "TuttiReadsRestart": (changed("tutti_reads_starts_total", growing(1 / 200), ONE), set()),
    "TuttiQueryLags": (changed("tutti_query_lag_seconds", constant(900)), set()),
    "TuttiReaderLags": (changed("tutti_reader_lag_records", growing(100, 2e6)), set()),
    "TuttiConnectorDown": (changed("up", constant(0), "files:9464"), set()),
    "TuttiConnectorStands": (changed("tutti_zeromq_in_flowing", constant(0)), set()),
    "TuttiQuarantine": (changed("tutti_kafka_out_quarantined", growing(1 / 600)), set()),
    "TuttiArchiveStands": (changed("tutti_archive_offset", constant(7)), set()),
}


def firing(group: Group, now_s: float = 100_000.0) -> set[str]:
    """The alerts whose expression gives something all the time from so long before that each fires."""
    found = set()
    for rule in RULES:
        since_s = now_s - {"s": 1, "m": 60, "h": HOUR_S}[rule["for"][-1]] * int(rule["for"][:-1]) if "for" in rule else now_s
        if all(evaluate(rule["expr"], group, at_s) for at_s in (since_s, (since_s + now_s) / 2, now_s)):
            found.add(rule["alert"])
    return found


def test_a_healthy_group_fires_no_alert() -> None:
    assert firing(well()) == set()


def test_every_alert_has_its_case() -> None:
    assert list(CASES) == ALERTS


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_fires_for_its_cause(alert: str) -> None:
    group, with_it = CASES[alert]
    assert firing(group) == {alert, *with_it}
