"""A snapshot as text: whatever names and messages are, they cannot speak to the terminal or break the table."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from smg_trio.terminal.figures import long, plain, rate, share, short, size
from smg_trio.terminal.overview import NARROWEST, Cell, Column, Snapshot, Table, fitted_widths, text


def snapshot(word: str = "w") -> Snapshot:
    rank: dict[str, Any] = {
        "rank": 0, "status": "ready", "in_flight": 1, "num_running_reqs": 1, "num_waiting_reqs": 2, "token_usage": 0.5,
    }  # fmt: skip
    worker: dict[str, Any] = {
        "url": word, "model_id": word, "status": "not_ready", "status_reason": word, "in_flight": 2,
        "ranks": [rank, rank | {"rank": 1, "status": "waiting", "reason": word, "tokens_per_s": {"output": 77.0}}],
        "tokens_per_s": None, "circuit_breaker": "half_open", "overloaded": True,
    }  # fmt: skip
    request: dict[str, Any] = {
        "id": word, "model": word, "endpoint": "chat", "phase": "queued", "age_s": 61.0, "workers": [word],
        "prompt_tokens": 1234, "completion_tokens": 0,
    }  # fmt: skip
    error = {
        "time": 0.0, "status": 503, "code": "c", "message": word, "endpoint": word, "model": word, "workers": [word],
        "request_id": word,
    }  # fmt: skip
    quantiles = {"p50": 0.001, "p90": 0.5, "p99": 20.0}
    return {
        "gateway": {
            "version": word, "uptime_s": 90061.0, "ready": False, "reason": word, "draining": False,
            "ready_workers": 0, "workers": 1, "policy": word, "models": [word], "memory_bytes": 2_500_000_000,
            "cpu_share": 0.5, "loop_lag_s": None,
        },
        "admission": {"in_flight": 0, "waiting": 0, "limit": None, "admitted": 0, "refused": 0},
        "rates": None,
        "latency": {
            "window_s": 60, "answers": 1, "failed": 0, "ttft_s": quantiles, "inter_token_s": None,
            "end_to_end_s": quantiles,
        },
        "workers": [worker],
        "requests": {"total": 5, "shown": [request]},
        "errors": [error],
    }  # fmt: skip


def test_everything_is_in_the_text() -> None:
    shown = text(snapshot(), "http://x")
    for part in ("not ready: w", "up 1 d 1 h", "2.50 GB", "no limit", "the oldest 1 of 5", "circuit breaker half open",
                 "overloaded", "rank 1", "77", "1,234", "1.00 ms", "503"):  # fmt: skip
        assert part in shown, part


@given(st.text())
def test_other_peoples_words_cannot_speak_to_the_terminal(word: str) -> None:
    shown = text(snapshot(word), word)
    assert all(line.isprintable() for line in shown.split("\n"))
    assert shown.count("\n") == text(snapshot(), "x").count("\n")


def test_an_escape_is_spelled_out() -> None:
    assert plain("a\x1b[2Jb\n") == "a\\x1b[2Jb\\n"


def test_figures_have_about_three_digits() -> None:
    assert [short(one) for one in (None, 0.00012, 0.25, 3.14159, 99.6)] == ["-", "0.12 ms", "250 ms", "3.14 s", "100 s"]
    assert [rate(one) for one in (None, 0.0, 0.04, 9.94, 1234.5)] == ["-", "0", "0.0", "9.9", "1,234"]
    assert [long(one) for one in (59.9, 61, 3600, 90061)] == ["59 s", "1 min 1 s", "1 h 0 min", "1 d 1 h"]
    assert [share(one) for one in (None, 0.0, 0.099, 0.5)] == ["-", "0.0%", "9.9%", "50%"]
    assert [size(one) for one in (0, 71_000_000, 2_500_000_000)] == ["-", "71 MB", "2.50 GB"]


@given(st.integers(0, 200), st.lists(st.integers(0, 60), min_size=3, max_size=3))
def test_wide_columns_give_way_until_the_table_fits_or_they_cannot(room: int, lengths: list[int]) -> None:
    table = Table(
        "t", [Column("a"), Column("b", wide=True), Column("c", wide=True)], [[Cell("x" * n) for n in lengths]]
    )
    natural = [max(n, 1) for n in lengths]
    widths = fitted_widths(table, room, 2)
    assert widths[0] == natural[0]
    assert all(width <= whole for width, whole in zip(widths, natural, strict=True))
    assert sum(widths) + 6 <= room or max(widths[1:]) <= NARROWEST
    if sum(natural) + 6 <= room:
        assert widths == natural
