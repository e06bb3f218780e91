"""Real certificates for tests, made by an authority that only they trust."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme


class Authority:
    """A certificate authority and the files of a server whose certificates it signs."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._ca = trustme.CA()
        self.cert = directory / "cert.pem"
        self.key = directory / "key.pem"
        self.ca = directory / "ca.pem"
        self._ca.cert_pem.write_to_path(self.ca)
        self.issue()

    def issue(self, name: str = "localhost", *, days: tuple[float, float] | None = None) -> None:
        """Write a new certificate for 127.0.0.1 and `name`, and its key, in place of those there are.

        `days`: how long it has been valid, and will be; by default for ever.
        """
        now = datetime.now(UTC)
        dates = {} if days is None else {"not_before": now - timedelta(days[0]), "not_after": now + timedelta(days[1])}
        issued = self._ca.issue_cert("127.0.0.1", name, **dates)
        self.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        self.key.write_bytes(issued.private_key_pem.bytes())

    @property
    def metrics_settings(self) -> dict[str, str]:
        """What a gateway is told of the files for its metrics listener."""
        return {f"prometheus_{name}": path for name, path in self.settings.items()}

    @property
    def settings(self) -> dict[str, str]:
        """What a gateway is told of the files."""
        return {"tls_cert_path": str(self.cert), "tls_key_path": str(self.key)}

    def trusting(self, *, client: str | None = None) -> ssl.SSLContext:
        """The context of a client that trusts this authority alone; `client`: it has a certificate of that name."""
        context = ssl.create_default_context()
        self._ca.configure_trust(context)
        if client is not None:
            self._ca.issue_cert(client).configure_cert(context)
        return context
