"""Whether the workers a gateway is started with can have their addresses: found out before anything is bound. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smg_trio.core.errors import ConfigError, InvalidRequest
from smg_trio.wire.addresses import WorkerAddresses, parse_worker_url

if TYPE_CHECKING:
    from smg_trio.settings.settings import Settings


def check_worker_addresses(settings: Settings) -> None:
    """Refuse worker URLs too long for sockets, named twice, or with the same handshake port. Raises ConfigError."""
    taken: dict[str, str] = {}
    seen: set[str] = set()
    for url in settings.worker_urls:
        addresses = _addresses(url, settings.zmq_handshake_address)
        if addresses.path in seen:
            raise ConfigError("--worker-urls", f"{url} is named twice.", "Each worker needs a path of its own.")
        seen.add(addresses.path)
        other = taken.setdefault(addresses.handshake, url)
        if other != url:
            raise ConfigError(
                "--worker-urls",
                f"{url} would bind handshake address {addresses.handshake}, already claimed by worker {other}: the "
                "derived port is a hash of the ipc path.",
                "Rename this worker's ipc path.",
            )


def _addresses(url: str, handshake: str | None) -> WorkerAddresses:
    try:
        return parse_worker_url(url, handshake)
    except InvalidRequest as error:
        flag = "--zmq-handshake-address" if error.param == "zmq_handshake_address" else "--worker-urls"
        raise ConfigError(flag, error.message) from None
