"""How many tasks a process has: what chaos and soak compare before and after."""

from __future__ import annotations

import trio


def count_tasks() -> int:
    """Tasks of this process's loop now, trio's own included."""
    root = trio.lowlevel.current_root_task()
    count, level = 0, [] if root is None else [root]
    while level:
        count += len(level)
        level = [task for parent in level for nursery in parent.child_nurseries for task in nursery.child_tasks]
    return count
