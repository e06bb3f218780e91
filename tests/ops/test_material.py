"""The dashboard and the alerts name what the gateway shows, and are what their readers expect."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml

from smg_trio.core.errors import EngineDead
from smg_trio.gateway.security.certificates import Certificate, CertificateFiles
from smg_trio.processes.metrics import process_metrics
from smg_trio.testing.notation import parse_script
from tests.certificates import Authority
from tests.e2e.harness import HELLO, MODEL
from tests.e2e.media.vision import RED, image, open_vision_gateway, user
from tests.e2e.scrape import Scrape, scrape

from .material import ALERTS, DASHBOARD, OPS, ROOT, SCRAPED_LABELS, panel_queries, panels, selectors

QUERIES = [*panel_queries(), *((rule["alert"], rule["expr"]) for rule in ALERTS)]


async def test_every_metric_and_label_that_is_asked_for_is_shown(tmp_path: Path) -> None:
    async with open_vision_gateway(tmp_path, HELLO) as bench:
        await bench.chat(messages=user(image(RED), image(RED)))
        await bench.chat(messages=user(image(b"none")))
        # What only trouble makes: a failure that is tried again, and is one again.
        failing = parse_script("E[] fin=error", bench.model.id_of)
        bench.engine.choose_script = lambda request: failing
        await bench.chat()
        generation = bench.gateway.metrics.generation_begins(MODEL, "chat", streaming=False, started=0.0)
        generation.retried(1, EngineDead("gone"), 0.1)
        generation.retries_exhausted()
        authority = Authority(tmp_path / "tls")
        certificate = Certificate(CertificateFiles(authority.cert, authority.key))
        await certificate.read()
        bench.gateway.metrics.follow_certificates({"http": certificate})
        found = await scrape(bench)
    labels: dict[str, set[str]] = {}
    several = Scrape(process_metrics(restarts=0, connections={"1": 0}, answers={"1": 0}))  # with --processes
    for sample in [*found.samples(), *several.samples()]:
        labels.setdefault(sample.name, set()).update(sample.labels)
    asked = [(where, *selector) for where, query in QUERIES for selector in selectors(query)]
    assert len({metric for _, metric, _ in asked}) > 30
    for where, metric, matched in asked:
        assert metric in labels, f"{where}: {metric} is not shown"
        assert matched <= labels[metric] | SCRAPED_LABELS, f"{where}: {metric} has no {matched - labels[metric]}"


def test_grouped_labels_belong_to_the_metrics_that_are_grouped() -> None:
    for where, query in QUERIES:
        for names in re.findall(r"\bby \(([^)]*)\)", query):
            for name in names.split(","):
                assert re.fullmatch(r"\w+", name.strip()), (where, names)


def test_the_dashboard_is_the_one_its_script_makes(tmp_path: Path) -> None:
    code = "import make_dashboard, json; print(json.dumps(make_dashboard.dashboard()))"
    command = [sys.executable, "-c", code]
    made = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True, cwd=ROOT / "scripts")
    assert json.loads(made.stdout) == DASHBOARD, "run scripts/make_dashboard.py"


def test_panels_have_places_of_their_own_and_queries_of_the_chosen_source() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in panels():
        assert panel["title"]
        assert panel["targets"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
    for one, other in combinations(DASHBOARD["panels"], 2):
        assert not _overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    for where, query in panel_queries():
        used = set(re.findall(r"\$\{?(\w+)", query))
        assert used <= variables | {"__rate_interval"}, where


def _overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return all(one[at] < other[at] + other[size] and other[at] < one[at] + one[size] for at, size in ("xw", "yh"))


def test_every_alert_says_what_it_means_what_to_do_and_is_tested() -> None:
    page = (OPS / "README.md").read_text()
    tests: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "alerts_test.yml").read_text())
    cases = [case for test in tests["tests"] for case in test["alert_rule_test"]]
    fired = {case["alertname"] for case in cases if case["exp_alerts"]}
    names = [rule["alert"] for rule in ALERTS]
    assert len(set(names)) == len(names)
    assert fired == set(names)
    assert re.findall(r"^### (\w+)$", page, re.MULTILINE) == names
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert 'job="smg-trio"' in rule["expr"]


def test_the_scrape_configuration_has_the_rules_the_job_and_the_default_port() -> None:
    found = yaml.safe_load((OPS / "prometheus.yml").read_text())
    assert found["rule_files"] == ["alerts.yml"]
    (job,) = found["scrape_configs"]
    assert job["job_name"] == "smg-trio"
    assert job["static_configs"][0]["targets"] == ["127.0.0.1:29000"]
