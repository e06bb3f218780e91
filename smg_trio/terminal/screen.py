"""What `top` draws: the tables of `overview` in colours, cut to the terminal's size. Needs rich."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from smg_trio.terminal.figures import plain
from smg_trio.terminal.overview import Snapshot, Table, Tone, fitted_widths, headlines, status, tables

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

_GAP = 2
_STYLES: dict[Tone, str] = {"ok": "green", "warn": "yellow", "bad": "bold red", "muted": "dim", "": ""}


class Screen:
    """The newest snapshot; a rich renderable as high as the terminal at most."""

    def __init__(self, url: str) -> None:
        self._url = plain(url)
        self._snapshot: Snapshot | None = None
        self._problem = "not connected yet"

    def show(self, snapshot: Snapshot | None, problem: str) -> None:
        """Take a snapshot; None and why there is none leave the last one to be seen."""
        self._snapshot = snapshot or self._snapshot
        self._problem = problem

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines: list[list[Segment]] = []
        room = max(options.size.height - 1, 1)
        inner = options.update(height=None)
        for part in self._parts(options.size.width):
            lines += console.render_lines(part, inner, pad=False)
            if len(lines) >= room:
                break
        for line in lines[: room - 1]:
            yield from line
            yield Segment.line()
        yield Text("q ends", style="dim")

    def _parts(self, width: int) -> Iterator[RenderableType]:
        title = Text("smg-trio ", style="bold", no_wrap=True, overflow="ellipsis")
        title.append(self._url, "dim")
        if self._snapshot is not None and not self._problem:
            word = status(self._snapshot)
            title.append(f"  {word.text}", _STYLES[word.tone])
        yield title
        if self._problem:
            yield Text(f"{plain(self._problem)}; trying again", style="bold red")
        if self._snapshot is None:
            return
        for line in headlines(self._snapshot):
            yield Text(line)
        for table in tables(self._snapshot):
            yield Text()
            yield Text(table.title, style="bold")
            yield _drawn(table, width)


def _drawn(table: Table, width: int) -> RichTable:
    drawn = RichTable(box=None, padding=(0, _GAP, 0, 0), header_style="dim")
    for column, fitted in zip(table.columns, fitted_widths(table, width, _GAP), strict=True):
        drawn.add_column(
            Text(column.title),
            justify="right" if column.right else "left",
            no_wrap=True,
            overflow="ellipsis",
            width=fitted,
        )
    for row in table.rows:
        drawn.add_row(*(Text(cell.text, style=_STYLES[cell.tone]) for cell in row))
    return drawn
