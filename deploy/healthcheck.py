"""Whether the gateway of this container lives: exit code 0 or 1. Used by the image's HEALTHCHECK.

It asks /liveness, not /readiness: a gateway that waits for its engine, or drains, is in order and must not be replaced.
"""

from __future__ import annotations

import http.client
import os
import sys

PORT = int(os.environ.get("SMG_TRIO_PORT") or 30000)


def main() -> int:
    """Ask once."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=2)
    try:
        connection.request("GET", "/liveness")
        return 0 if connection.getresponse().status == 200 else 1
    except (OSError, http.client.HTTPException):
        return 1
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main())
