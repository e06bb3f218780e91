"""The command line, in a process that writes into the file named first how many tasks it has, at each SIGUSR1."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from scripts.disorder.tasks import count_tasks
from smg_trio.cli.main import main

if __name__ == "__main__":
    path = Path(sys.argv.pop(1))
    signal.signal(signal.SIGUSR1, lambda number, frame: path.write_text(str(count_tasks())) and None)
    sys.exit(main())
