"""How often a gateway process collects cycles."""

from __future__ import annotations

import gc


def calm_garbage_collector() -> None:
    """Collect cycles rarely.

    What requests leave behind is freed by reference counts; with the default thresholds the collector walks the whole
    heap (tens of thousands of objects of imported code) several times a second under load. A collection of the youngest
    holds every stream up, by about a millisecond per 5,000 objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 50, 200)
