"""Codes that WebSockets are closed with, and how long closing may take."""

from __future__ import annotations

from typing import Final

GOING_AWAY: Final = 1001
"""The gateway shuts down."""
UNAUTHORIZED: Final = 4401
"""The key is missing, wrong, not for this, or no longer in force; an ``error`` message before it says which."""
CLOSE_LIMIT_S: Final = 1.0
"""For handing the last message and the close frame to a client that may not read."""
