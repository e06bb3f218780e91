"""The workers that the settings name."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from uuid import uuid4

from smg_trio.core.engines import EngineProtocol
from smg_trio.core.http_addresses import is_http_url
from smg_trio.core.workers import WorkerSpec
from smg_trio.routing.http_options import worker_api_key
from smg_trio.wire.addresses import TCP_SCHEME

if TYPE_CHECKING:
    from smg_trio.gateway.state import Gateway

logger = logging.getLogger("smg_trio.gateway")


async def add_own_workers(gateway: Gateway) -> None:
    """Start them. Raises ConfigError, Conflict."""
    settings = gateway.settings
    zmq_urls = [url for url in settings.worker_urls if not is_http_url(url)]
    if settings.disable_health_check:
        for url in zmq_urls:
            logger.warning(
                "Ignoring disabled health checks for ZMQ worker %s: the ZMQ probe is a local liveness check and the "
                "only path that reconnects a restarted engine, so it stays enabled",
                url,
            )
    if settings.policy == "cache_aware":
        logger.info("cache_aware: the ZMQ transport has no KV-event stream, so prefixes are counted as they are sent")
    await _add_http_workers(gateway)
    if not zmq_urls:
        return
    if settings.backend is None:
        logger.warning(
            "runtime_type unspecified for ZMQ worker; defaulting to vLLM EngineCore. A TokenSpeed engine must declare "
            "its runtime to speak the correct wire protocol: --backend tokenspeed"
        )
    own = gateway.own_model
    assert own is not None, "check_settings has seen that workers have a model"
    known = gateway.catalog.awaited(own) is None
    for url in zmq_urls:
        await gateway.registry.add(
            WorkerSpec(
                worker_id=str(uuid4()),
                url=url,
                model_id=own,
                protocol=EngineProtocol(settings.backend or "vllm"),
                engine_count=settings.zmq_engine_count,
                handshake_address=settings.zmq_handshake_address,
                advertise_host=settings.zmq_advertise_host if url.startswith(TCP_SCHEME) else None,
                vocab_size=gateway.catalog.find(own).text.vocab_size if known else None,
            )
        )


async def _add_http_workers(gateway: Gateway) -> None:
    """Those behind HTTP say themselves what they serve."""
    settings = gateway.settings
    key = worker_api_key(settings)
    for url in filter(is_http_url, settings.worker_urls):
        if settings.disable_health_check:
            logger.warning("Ignoring disabled health checks for HTTP worker %s: they find its models", url)
        await gateway.registry.add(WorkerSpec(worker_id=str(uuid4()), url=url, model_id="", api_key=key))
