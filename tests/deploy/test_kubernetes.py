"""The Kubernetes manifest: settings, probes, ports and times fit each other and this version."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from smg_trio.settings.settings import Settings

from .conftest import program
from .reading import CUTTING_S, DEPLOY, OPEN_PATHS, check_engine, documents, flags_of_vllm, gateway_settings

MANIFEST = DEPLOY / "kubernetes" / "smg-trio.yaml"
FRONT = DEPLOY / "kubernetes" / "front" / "front.yaml"
ENGINE_END_S = 30
"""What an engine gets to end in after the gateway has."""


def by_kind(kind: str) -> dict[str, Any]:
    (found,) = (document for document in documents(MANIFEST) if document["kind"] == kind)
    return found


@pytest.fixture
def pod() -> dict[str, Any]:
    spec = by_kind("Deployment")["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


@pytest.fixture
def gateway(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["containers"]
    assert isinstance(container, dict)
    return container


@pytest.fixture
def engine(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["initContainers"]
    assert isinstance(container, dict)
    return container


@pytest.fixture
def settings(gateway: dict[str, Any]) -> Settings:
    files = {f"/etc/smg-trio/{name}": text for name, text in by_kind("ConfigMap")["data"].items()}
    return gateway_settings(gateway["args"], files=files)


def mounts(container: dict[str, Any]) -> dict[str, str]:
    return {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}


def test_every_mount_has_its_volume_and_sockets_and_model_are_shared(
    pod: dict[str, Any], gateway: dict[str, Any], engine: dict[str, Any]
) -> None:
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert mounts(gateway).keys() | mounts(engine).keys() == volumes
    for shared in ("sockets", "models"):
        assert mounts(gateway)[shared] == mounts(engine)[shared]


def test_files_the_settings_name_are_mounted(gateway: dict[str, Any], settings: Settings) -> None:
    where = mounts(gateway)
    assert settings.api_key_file == f"{where['keys']}/{next(iter(by_kind('Secret')['stringData']))}"
    assert str(settings.model_path).startswith(where["models"] + "/")


def test_sockets_lie_in_a_directory_the_gateway_makes_itself(gateway: dict[str, Any], settings: Settings) -> None:
    # The volume's own directory belongs to root; the gateway refuses sockets in directories of others.
    (url,) = settings.worker_urls
    directory = url.removeprefix("ipc://").rpartition("/")[0]
    assert directory.startswith(mounts(gateway)["sockets"] + "/")


def test_the_engine_finds_the_gateway(engine: dict[str, Any], settings: Settings) -> None:
    check_engine(engine["args"], settings.worker_urls[0], flags_of_vllm())
    assert engine["args"][0] == settings.model_path
    assert engine["restartPolicy"] == "Always", "a sidecar: it outlives the gateway and restarts by itself"


def test_both_run_as_one_user_who_is_not_root(pod: dict[str, Any], gateway: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsUser"] > 0
    assert "runAsUser" not in gateway["securityContext"]
    assert gateway["securityContext"]["readOnlyRootFilesystem"] is True


def test_probes_ask_what_everybody_may_ask(gateway: dict[str, Any], settings: Settings) -> None:
    ports = {port["name"]: port["containerPort"] for port in gateway["ports"]}
    assert ports == {"http": settings.port, "metrics": settings.prometheus_port}
    paths = {name: gateway[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert set(paths.values()) <= OPEN_PATHS
    assert paths["readinessProbe"] == "/readiness"
    # A gateway that waits for its engine or drains must not be restarted.
    assert paths["livenessProbe"] == paths["startupProbe"] == "/liveness"
    assert by_kind("Service")["spec"]["ports"][0]["targetPort"] in ports


def test_the_grace_periods_add_up(pod: dict[str, Any], gateway: dict[str, Any], settings: Settings) -> None:
    command, seconds = gateway["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    readiness = gateway["readinessProbe"]
    assert int(seconds) >= readiness["periodSeconds"] * readiness["failureThreshold"]
    needed = int(seconds) + settings.shutdown_grace_period_secs + CUTTING_S + ENGINE_END_S
    assert pod["terminationGracePeriodSeconds"] >= needed


def test_no_variables_of_services_reach_the_gateway(pod: dict[str, Any]) -> None:
    assert pod["enableServiceLinks"] is False


def test_the_secret_of_the_example_starts_nothing() -> None:
    for text in by_kind("Secret")["stringData"].values():
        assert all(not line or line.startswith("#") for line in text.splitlines())


def test_selectors_meet_labels() -> None:
    template = by_kind("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert by_kind("Deployment")["spec"]["selector"]["matchLabels"].items() <= template.items()
    assert by_kind("Service")["spec"]["selector"].items() <= template.items()


def test_the_front_finds_the_hosts_and_may_read_pods_only() -> None:
    front = {document["kind"]: document for document in documents(FRONT)}
    spec = front["Deployment"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    files = {f"/etc/smg-trio/{name}": text for name, text in front["ConfigMap"]["data"].items()}
    found = gateway_settings(container["args"], files=files)
    assert found.service_discovery
    labels = by_kind("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert dict(label.split("=") for label in found.selector).items() <= labels.items()
    host_ports = by_kind("Deployment")["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert found.service_discovery_port in {port["containerPort"] for port in host_ports}
    assert front["Role"]["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    assert front["RoleBinding"]["roleRef"]["name"] == front["Role"]["metadata"]["name"]
    assert front["RoleBinding"]["subjects"] == [{"kind": "ServiceAccount", "name": spec["serviceAccountName"]}]
    assert spec["automountServiceAccountToken"] is True
    assert {volume["name"] for volume in spec["volumes"]} == mounts(container).keys()


@pytest.mark.parametrize("manifest", [MANIFEST, FRONT], ids=["host", "front"])
def test_the_manifest_fits_kubernetes_own_schemas(manifest: Path) -> None:
    command = [program("kubernetes-validate"), "--strict", "-k", "1.33", manifest]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
