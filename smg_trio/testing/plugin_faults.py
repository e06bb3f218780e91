"""What a check of a plug-in ends with where it does not pass."""

from __future__ import annotations


class CheckFailed(Exception):
    """A plug-in does not keep its contract; the message says what was seen."""
