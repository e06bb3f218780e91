"""Records: cheap to make, compared by value, without a hash."""

from __future__ import annotations

from dataclasses import field, fields, replace

import pytest

from smg_trio.core.records import record


@record
class Point:
    """Two numbers and a list."""

    x: int
    y: int = 0
    marks: list[int] = field(default_factory=list)


def test_a_record_takes_its_fields_by_name_and_fills_in_defaults() -> None:
    point = Point(x=1)
    assert (point.x, point.y, point.marks) == (1, 0, [])
    assert point.marks is not Point(x=1).marks
    assert [one.name for one in fields(Point)] == ["x", "y", "marks"]


def test_a_record_compares_by_value_and_is_replaced_not_changed() -> None:
    point = Point(x=1, y=2)
    assert replace(point, y=3) == Point(x=1, y=3)
    assert point == Point(x=1, y=2)


def test_a_record_has_no_hash_and_no_room_for_other_attributes() -> None:
    with pytest.raises(TypeError):
        hash(Point(x=1))
    with pytest.raises(AttributeError):
        Point(x=1).z = 3  # type: ignore[attr-defined]
