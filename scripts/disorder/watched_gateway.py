"""The command line, in a process that writes into the file named first how many tasks it has, at each SIGUSR1."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import trio

from smg_trio.cli import main


def count_tasks() -> int:
    """Tasks of this process now."""
    root = trio.lowlevel.current_root_task()
    count, level = 0, [] if root is None else [root]
    while level:
        count += len(level)
        level = [task for parent in level for nursery in parent.child_nurseries for task in nursery.child_tasks]
    return count


if __name__ == "__main__":
    path = Path(sys.argv.pop(1))
    signal.signal(signal.SIGUSR1, lambda number, frame: path.write_text(str(count_tasks())) and None)
    sys.exit(main())
