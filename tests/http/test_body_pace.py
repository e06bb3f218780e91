"""How long a body may take."""

from __future__ import annotations

import pytest

from smg_trio.http.body_pace import BodyPace
from smg_trio.http.settings import ServerLimits


def test_a_client_may_be_late_by_the_timeout_and_no_more_however_fast_it_was_before() -> None:
    pace = BodyPace(ServerLimits(body_timeout_s=60, min_body_rate=100), 1000.0)
    assert pace.due == 1060
    pace.came(1, 1030.0)
    assert pace.due == pytest.approx(1060.01)
    pace.came(1000, 1040.0)
    assert pace.due == pytest.approx(1070.01)
    pace.came(10_000_000, 1050.0)
    assert pace.due == 1110
    pace.came(1, 1100.0)
    assert pace.due == pytest.approx(1110.01)


def test_without_a_least_rate_only_silence_ends_a_body() -> None:
    pace = BodyPace(ServerLimits(body_timeout_s=60, min_body_rate=0), 0.0)
    for now in range(0, 10_000, 50):
        assert pace.due > now
        pace.came(1, now)
    assert pace.due == 9950 + 60
