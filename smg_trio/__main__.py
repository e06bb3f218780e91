"""``python -m smg_trio``."""

from __future__ import annotations

import sys

from smg_trio.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

__all__ = ["main"]
