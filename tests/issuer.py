"""An issuer of tokens over real HTTP: a discovery document, keys that can be replaced, tokens signed with them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

AUDIENCE = "smg"
_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
_OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)


class Issuer:
    """What the server says.

    Attributes:
        url: where it is, and what it calls itself.
        keys: private keys by id; what is published of them is `key_set`.
        asked: paths, in the order in which they were asked for.
        down: it answers 503.
    """

    def __init__(self) -> None:
        self.url = ""
        self.keys: dict[str, Any] = {"one": _RSA}
        self.asked: list[str] = []
        self.down = False

    def key_set(self) -> dict[str, Any]:
        """The public keys."""
        keys = []
        for key_id, key in self.keys.items():
            algorithm: Any = RSAAlgorithm
            if isinstance(key, ec.EllipticCurvePrivateKey):
                algorithm = ECAlgorithm
            elif isinstance(key, ed25519.Ed25519PrivateKey):
                algorithm = OKPAlgorithm
            keys.append(algorithm.to_jwk(key.public_key(), as_dict=True) | {"kid": key_id, "use": "sig"})
        return {"keys": keys}

    def replace_key(self) -> None:
        """Another key in the place of the first."""
        self.keys = {"two": _OTHER_RSA}

    def add_other_kinds(self) -> None:
        """Keys on curves, too."""
        self.keys |= {"p256": ec.generate_private_key(ec.SECP256R1()), "ed": ed25519.Ed25519PrivateKey.generate()}

    def token(self, key_id: str | None = None, *, algorithm: str = "RS256", key: Any = None, **claims: Any) -> str:
        """A token that is valid for a minute, unless `claims` say otherwise; those that are None are left out."""
        key_id = key_id or next(iter(self.keys))
        now = time.time()
        told = {"iss": self.url, "aud": AUDIENCE, "sub": "alice", "iat": now, "exp": now + 60} | claims
        return jwt.encode(
            {name: value for name, value in told.items() if value is not None},
            self.keys.get(key_id) if key is None else key,
            algorithm=algorithm,
            headers={"kid": key_id},
        )

    def answer(self, path: str) -> dict[str, Any] | None:
        """What is at a path."""
        self.asked.append(path)
        if self.down:
            return None
        if path == "/.well-known/openid-configuration":
            return {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        return self.key_set() if path == "/keys" else None


@contextmanager
def running_issuer() -> Iterator[Issuer]:
    """An issuer on the loopback, in a thread."""
    issuer = Issuer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = issuer.answer(self.path)
            body = json.dumps(answer).encode()
            self.send_response(200 if answer is not None else 503)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        issuer.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield issuer
        finally:
            server.shutdown()
            thread.join()
