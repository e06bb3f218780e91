"""The compose file: settings, volumes and times fit each other and this version."""

from __future__ import annotations

from typing import Any

import pytest

from smg_trio.settings.settings import Settings

from .reading import CUTTING_S, DEPLOY, ROOT, check_engine, documents, flags_of_vllm, gateway_settings

FILE = DEPLOY / "compose.yaml"


@pytest.fixture
def services() -> dict[str, Any]:
    (document,) = documents(FILE)
    found = document["services"]
    assert isinstance(found, dict)
    return found


@pytest.fixture
def settings(services: dict[str, Any]) -> Settings:
    return gateway_settings(services["gateway"]["command"], environment=services["gateway"]["environment"])


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Where each source is mounted; variables of the sources are left as they are."""
    return dict(_mount(text) for text in service.get("volumes", ()))


def _mount(text: str) -> tuple[str, str]:
    source, target = text.removesuffix(":ro").rsplit(":", 1)
    return source, target


def test_the_engine_finds_the_gateway(services: dict[str, Any], settings: Settings) -> None:
    engine, gateway = services["engine"], services["gateway"]
    check_engine(engine["command"], settings.worker_urls[0], flags_of_vllm())
    assert engine["command"][0] == settings.model_path
    assert mounts(engine) == mounts(gateway)
    assert settings.worker_urls[0].startswith(f"ipc://{mounts(gateway)['sockets']}/")


def test_both_share_the_network_of_a_third_that_nothing_restarts(services: dict[str, Any]) -> None:
    assert services["engine"]["network_mode"] == services["gateway"]["network_mode"] == "service:pod"
    assert "sockets:/run/smg" in services["pod"]["volumes"], "the volume takes its owner from the gateway's image"
    assert services["pod"]["image"] == services["gateway"]["image"]


def test_the_engine_runs_as_the_image_s_user(services: dict[str, Any]) -> None:
    assert f"\nUSER {services['engine']['user'].partition(':')[0]}\n" in (ROOT / "Dockerfile").read_text()


def test_the_gateway_ends_before_the_engine_and_has_time_to_drain(services: dict[str, Any], settings: Settings) -> None:
    # Compose ends what depends on others first.
    assert set(services["gateway"]["depends_on"]) == {"pod", "engine"}
    grace_s = int(services["gateway"]["stop_grace_period"].removesuffix("s"))
    assert grace_s >= settings.shutdown_grace_period_secs + CUTTING_S


def test_published_ports_are_the_gateway_s_and_for_this_host_only(services: dict[str, Any], settings: Settings) -> None:
    published = [port.rsplit(":", 2) for port in services["pod"]["ports"]]
    assert {int(inside) for _, _, inside in published} == {settings.port, settings.prometheus_port}
    assert {host for host, _, _ in published} == {"127.0.0.1"}


def test_keys_come_as_a_secret(services: dict[str, Any], settings: Settings) -> None:
    (secret,) = services["gateway"]["secrets"]
    assert settings.api_key_file == f"/run/secrets/{secret}"
    (document,) = documents(FILE)
    assert set(document["secrets"]) == {secret}
