"""The marker scanner: earliest marker, longest at one place, nothing held that cannot become one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from smg_trio.parsers.scanner import MarkerScanner

ALPHABET = st.sampled_from("ab<>")


def test_only_a_true_prefix_of_a_marker_is_held() -> None:
    scanner = MarkerScanner(["<tool_call>"])
    assert scanner.scan("a <tool", 0, False) == (2, None)
    assert scanner.scan("a <toolbox", 0, False) == (10, None)
    assert scanner.scan("a <<", 0, False) == (3, None)
    assert scanner.scan("a <tool", 0, True) == (7, None)


def test_the_longer_of_two_markers_at_one_place_wins_once_it_is_certain() -> None:
    scanner = MarkerScanner(["</a>", "</a>\n"])
    assert scanner.scan("x</a>", 0, False) == (1, None)
    assert scanner.scan("x</a>", 0, True) == (1, "</a>")
    assert scanner.scan("x</a>\n", 0, False) == (1, "</a>\n")
    assert scanner.scan("x</a>y", 0, False) == (1, "</a>")


def test_a_scanner_without_markers_passes_everything() -> None:
    assert MarkerScanner([]).scan("<a>", 0, False) == (3, None)


@given(
    st.lists(st.text(ALPHABET, min_size=1, max_size=4), min_size=1, max_size=4),
    st.text(ALPHABET, max_size=20),
    st.integers(0, 20),
)
def test_what_is_said_of_a_prefix_stays_true_of_the_whole(markers: list[str], text: str, size: int) -> None:
    scanner = MarkerScanner(markers)
    end, marker = scanner.scan(text[:size], 0, False)
    whole_end, whole_marker = scanner.scan(text, 0, True)
    if marker is not None:
        assert (end, marker) == (whole_end, whole_marker)
    else:
        assert end <= whole_end or whole_marker is None
        assert whole_end >= end
