"""What pods of Kubernetes mean for workers. Pure.

Rules, annotation and labels are those of the Rust gateway's service discovery: a pod that runs and is ready becomes a
worker per port, one that is not ready any more keeps its workers (their health decides), and one that is being ended
loses them at the beginning of its grace time, so that they drain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

PORTS_ANNOTATION = "smg.ai/worker-ports"
NAME_LABEL, UID_LABEL = "smg.ai/pod-name", "smg.ai/pod-uid"
_LAST_PORT = 65535
_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod that may serve.

    Attributes:
        ready: it runs, and its readiness probe succeeds.
        ports: of its workers; empty: the one that the settings name.
        created: when, as the API writes it; later ones are greater.
        complaint: what is wrong with its annotation; empty if nothing is.
    """

    uid: str
    name: str
    address: str
    ready: bool
    ports: tuple[int, ...] = ()
    created: str = ""
    complaint: str = ""

    def urls(self, default_port: int) -> tuple[str, ...]:
        """Of its workers."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return tuple(f"http://{host}:{port}" for port in self.ports or (default_port,))


def read_pod(value: Any) -> Pod | None:
    """The pod that an object of the API describes; None for one that serves nothing.

    That is one that ends, has ended (an evicted pod stays listed, while another may have got its address), or has no
    address yet. Raises ValueError for what is not a pod.
    """
    metadata, status = _part(value, "metadata"), _part(value, "status")
    uid, name = metadata.get("uid"), metadata.get("name")
    if not isinstance(uid, str) or not isinstance(name, str):
        raise ValueError("an object without uid and name")  # noqa: TRY004 - what was read is wrong
    address, phase = status.get("podIP"), status.get("phase")
    if metadata.get("deletionTimestamp") is not None or phase in _ENDED or not isinstance(address, str) or not address:
        return None
    conditions = status.get("conditions")
    ready = phase == "Running" and any(
        isinstance(one, Mapping) and one.get("type") == "Ready" and one.get("status") == "True"
        for one in (conditions if isinstance(conditions, list) else ())
    )
    annotation = _part(metadata, "annotations").get(PORTS_ANNOTATION)
    ports, complaint = _ports(annotation)
    return Pod(uid, name, address, ready, ports, str(metadata.get("creationTimestamp", "")), complaint)


def wanted_workers(pods: Iterable[Pod], default_port: int) -> dict[str, dict[str, str]]:
    """The labels of the workers of these pods, by URL. Of two pods with one address the later one has it."""
    return {
        url: {NAME_LABEL: pod.name, UID_LABEL: pod.uid}
        for pod in sorted(pods, key=lambda pod: (pod.created, pod.uid))
        for url in pod.urls(default_port)
    }


def uid_of(value: Any) -> str:
    """Of the pod that an object of the API describes. Raises ValueError."""
    uid = _part(value, "metadata").get("uid")
    if not isinstance(uid, str):
        raise ValueError("an object without uid")  # noqa: TRY004 - as above
    return uid


def _part(value: Any, name: str) -> Mapping[str, Any]:
    part = value.get(name) if isinstance(value, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def _ports(annotation: Any) -> tuple[tuple[int, ...], str]:
    if annotation is None:
        return (), ""
    texts = [text.strip() for text in str(annotation).split(",")]
    if all(text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) <= _LAST_PORT for text in texts):
        return tuple(dict.fromkeys(map(int, texts))), ""
    return (), f"annotation {PORTS_ANNOTATION} is {str(annotation)[:80]!r} and not a list of ports"
