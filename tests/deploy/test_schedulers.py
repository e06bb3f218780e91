"""The manifests for distributed schedulers: what Kustomize makes of them is a model server that each can use."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from smg_trio.gateway.routes import ROUTES
from smg_trio.settings.settings import Settings

from .reading import DEPLOY, documents, gateway_settings

SCHEDULERS = DEPLOY / "schedulers"
KUSTOMIZED = sorted(path.parent.name for path in SCHEDULERS.glob("*/kustomization.yaml"))
RECORDED = DEPLOY.parent / "tests" / "gateway" / "observability" / "metrics-vllm-0.32.0.json"


def built(directory: Path) -> list[dict[str, Any]]:
    """What ``kubectl kustomize`` makes of a directory, as far as ours go: resources and JSON patches."""
    file = yaml.safe_load((directory / "kustomization.yaml").read_text())
    assert file.keys() <= {"apiVersion", "kind", "resources", "patches"}
    assert (file["apiVersion"], file["kind"]) == ("kustomize.config.k8s.io/v1beta1", "Kustomization")
    found: list[dict[str, Any]] = []
    for name in file["resources"]:
        path = directory / name
        found += built(path) if path.is_dir() else documents(path)
    for patch in file.get("patches", ()):
        (target,) = (one for one in found if is_target(one, patch["target"]))
        for change in yaml.safe_load(patch["patch"]):
            apply(target, change["op"], change["path"], change["value"])
    return found


def is_target(document: dict[str, Any], target: dict[str, str]) -> bool:
    return document["kind"] == target["kind"] and document["metadata"]["name"] == target["name"]


def apply(document: Any, operation: str, path: str, value: Any) -> None:
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]
    for part in parents:
        document = document[int(part)] if isinstance(document, list) else document[part]
    if isinstance(document, list):
        assert (operation, last) == ("add", "-")
        document.append(deepcopy(value))
    else:
        assert (last in document) is (operation == "replace"), path
        document[last] = deepcopy(value)


def one(found: list[dict[str, Any]], kind: str, name: str = "smg-trio") -> dict[str, Any]:
    (document,) = (document for document in found if is_target(document, {"kind": kind, "name": name}))
    return document


def settings_in(found: list[dict[str, Any]], container: dict[str, Any]) -> Settings:
    files = {f"/etc/smg-trio/{name}": text for name, text in one(found, "ConfigMap")["data"].items()}
    return gateway_settings(container["args"], files=files)


@pytest.mark.parametrize("name", KUSTOMIZED)
def test_the_pod_is_a_model_server_without_keys_that_its_scheduler_may_scrape(name: str) -> None:
    found = built(SCHEDULERS / name)
    (gateway,) = one(found, "Deployment")["spec"]["template"]["spec"]["containers"]
    settings = settings_in(found, gateway)
    assert settings.metrics_compat == "vllm"
    assert settings.metrics_on_port
    assert settings.api_key_file is None
    # Since there are no keys, only those who schedule come in.
    http, metrics = one(found, "NetworkPolicy")["spec"]["ingress"]
    assert (http["ports"], metrics["ports"]) == ([{"port": "http"}], [{"port": "metrics"}])
    assert all(rule["from"] for rule in (http, metrics))
    names = [(document["apiVersion"], document["kind"], document["metadata"]["name"]) for document in found]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["inference-extension", "llm-d"])
def test_the_pool_selects_the_pods_and_their_port_and_the_route_leads_to_it(name: str) -> None:
    found = built(SCHEDULERS / name)
    pool, deployment = one(found, "InferencePool")["spec"], one(found, "Deployment")["spec"]
    template = deployment["template"]
    assert pool["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (gateway,) = template["spec"]["containers"]
    settings = settings_in(found, gateway)
    assert pool["targetPorts"] == [{"number": settings.port}]
    (rule,) = one(found, "HTTPRoute")["spec"]["rules"]
    assert rule["backendRefs"][0]["name"] == "smg-trio"
    prefix = rule["matches"][0]["path"]["value"]
    assert {"/v1/chat/completions", "/v1/completions"} <= {r.path for r in ROUTES if r.path.startswith(prefix)}


def test_the_picker_s_profile_uses_the_plugins_that_it_lists() -> None:
    config = yaml.safe_load(one(built(SCHEDULERS / "llm-d"), "ConfigMap", "smg-trio-picker")["data"]["config.yaml"])
    listed = {plugin["type"] for plugin in config["plugins"]}
    (profile,) = config["schedulingProfiles"]
    assert {plugin["pluginRef"] for plugin in profile["plugins"]} == listed


def test_the_router_of_the_production_stack_finds_the_pods_and_may_reach_them() -> None:
    found = built(SCHEDULERS / "production-stack")
    template = one(found, "Deployment", "smg-trio-router")["spec"]["template"]
    (router,) = template["spec"]["containers"]
    given = dict(word.split("=", 1) for word in router["args"])
    (gateway,) = one(found, "Deployment")["spec"]["template"]["spec"]["containers"]
    label, _, value = given["--k8s-label-selector"].partition("=")
    assert one(found, "Deployment")["spec"]["template"]["metadata"]["labels"][label] == value
    assert given["--k8s-port"] == str(settings_in(found, gateway).port)
    allowed = [rule["podSelector"]["matchLabels"] for rule in one(found, "NetworkPolicy")["spec"]["ingress"][0]["from"]
               if "podSelector" in rule]  # fmt: skip
    assert allowed == [template["metadata"]["labels"]]
    (rule,) = one(found, "Role", "smg-trio-router")["rules"]
    assert {"list", "watch"} <= set(rule["verbs"])


def test_kserve_s_predictor_is_the_pod_of_the_manifest() -> None:
    found = documents(SCHEDULERS / "kserve" / "inference-service.yaml")
    predictor = one(found, "InferenceService")["spec"]["predictor"]
    base = one(documents(DEPLOY / "kubernetes" / "smg-trio.yaml"), "Deployment")["spec"]["template"]["spec"]
    base["containers"][0]["name"] = "kserve-container"
    for key, value in base.items():
        assert predictor[key] == value, key
    settings = settings_in(found, predictor["containers"][0])
    assert settings.metrics_compat == "vllm"
    assert settings.api_key_file == "/etc/smg-trio-keys/api-keys"
    assert predictor["annotations"]["prometheus.io/port"] == str(settings.prometheus_port)


def test_scaling_rules_ask_for_metrics_that_there_are() -> None:
    known = json.loads(RECORDED.read_text())["families"]
    (scaled,) = documents(SCHEDULERS / "keda.yaml")
    kserve = one(documents(SCHEDULERS / "kserve" / "inference-service.yaml"), "InferenceService")["spec"]["predictor"]
    queries = [trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]]
    queries += [metric["external"]["metric"]["query"] for metric in kserve["autoScaling"]["metrics"]]
    for query in queries:
        (metric,) = re.findall(r"vllm:\w+", query)
        assert metric in known
    assert scaled["spec"]["scaleTargetRef"]["kind"] == "Deployment"
