"""Figures and other people's words as a terminal shows them. Pure."""

from __future__ import annotations

NONE = "-"


def plain(text: object) -> str:
    """Text that cannot speak to the terminal: control characters are spelled out."""
    words = str(text)
    return words if words.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in words)


def rate(value: float | None) -> str:
    """Something per second."""
    if value is None:
        return NONE
    return f"{value:.1f}" if 0 < value < 9.95 else f"{value:,.0f}"


def short(seconds: float | None) -> str:
    """A latency: three digits or so."""
    if seconds is None:
        return NONE
    if seconds < 0.00995:
        return f"{seconds * 1000:.2f} ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 9.95 else f"{seconds:.0f} s"


def long(seconds: float) -> str:
    """A time span in its two largest units."""
    whole = int(seconds)
    for size, unit, below, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // below} {smaller}"
    return f"{whole} s"


def share(value: float | None) -> str:
    """A share of one, in percent."""
    if value is None:
        return NONE
    return f"{value * 100:.1f}%" if value < 0.0995 else f"{value * 100:.0f}%"


def size(value: int) -> str:
    """Bytes."""
    if not value:
        return NONE
    return f"{value / 1e6:.0f} MB" if value < 1e9 else f"{value / 1e9:.2f} GB"
