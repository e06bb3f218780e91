"""A front: ``python -m smg_trio.processes DESCRIPTOR``, which only a keeper starts."""

from __future__ import annotations

import sys

from smg_trio.processes.front import main

if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
