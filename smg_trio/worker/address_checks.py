"""Whether the workers a gateway is started with can have their addresses: found out before anything is bound. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smg_trio.core.errors import ConfigError, InvalidRequest
from smg_trio.core.http_addresses import is_http_url, parse_http_url
from smg_trio.wire.addresses import TCP_SCHEME, WorkerAddresses, parse_worker_url

if TYPE_CHECKING:
    from smg_trio.settings.settings import Settings


def check_worker_addresses(settings: Settings) -> None:
    """Refuse worker URLs too long for sockets, named twice, with the same handshake port, or the gateway's own.

    Raises ConfigError.
    """
    taken: dict[str, str] = {}
    seen: set[str] = set()
    for url in settings.worker_urls:
        if is_http_url(url):
            _check_http(url, seen, settings)
            continue
        addresses = addresses_of(url, settings)
        if addresses.path in seen:
            raise ConfigError("--worker-urls", f"{url} is named twice.", "Each worker needs a path of its own.")
        seen.add(addresses.path)
        if addresses.remote:
            _claim_ports(url, addresses, taken)
            continue
        other = taken.setdefault(addresses.handshake, url)
        if other != url:
            raise ConfigError(
                "--worker-urls",
                f"{url} would bind handshake address {addresses.handshake}, already claimed by worker {other}: the "
                "derived port is a hash of the ipc path.",
                "Rename this worker's ipc path.",
            )


def _claim_ports(url: str, addresses: WorkerAddresses, taken: dict[str, str]) -> None:
    for endpoint in (addresses.handshake, addresses.input, addresses.output):
        other = taken.setdefault(endpoint, url)
        if other != url:
            raise ConfigError(
                "--worker-urls",
                f"{url} would bind {endpoint}, which is worker {other}'s: a tcp:// worker takes the port of its URL "
                "and the two after it.",
                "Leave three ports between workers.",
            )


def _check_http(url: str, seen: set[str], settings: Settings) -> None:
    address = parse_http_url(url)
    name = f"{address.scheme}://{address.authority}{address.base_path}"
    if name in seen:
        raise ConfigError("--worker-urls", f"{url} is named twice.", "Name each worker once.")
    seen.add(name)
    try:
        check_not_self(url, settings)
    except InvalidRequest as error:
        raise ConfigError("--worker-urls", error.message) from None


def check_not_self(url: str, settings: Settings) -> None:
    """Refuse the gateway's own address as a worker behind HTTP, as far as that can be seen. Raises InvalidRequest."""
    address = parse_http_url(url)
    everywhere = settings.host in ("0.0.0.0", "::", "")  # noqa: S104 - compared, not bound
    local = address.host == settings.host or (everywhere and address.host in ("127.0.0.1", "::1", "localhost"))
    if local and settings.port and address.port == settings.port:
        raise InvalidRequest(f"{url} is this gateway's own address; name the server that is to be asked", param="url")


def addresses_of(url: str, settings: Settings) -> WorkerAddresses:
    """What a ZMQ worker of `--worker-urls` binds. Raises ConfigError."""
    remote = url.startswith(TCP_SCHEME)
    try:
        return parse_worker_url(
            url,
            settings.zmq_handshake_address,
            pairs=2 if remote and settings.processes != "1" else 1,
            advertise=settings.zmq_advertise_host if remote else None,
        )
    except InvalidRequest as error:
        raise ConfigError(_FLAGS.get(error.param or "", "--worker-urls"), error.message) from None


_FLAGS = {"zmq_handshake_address": "--zmq-handshake-address", "zmq_advertise_host": "--zmq-advertise-host"}
