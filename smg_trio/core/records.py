"""Frozen records that cost little to make.

A request passes through half a dozen records of ten to thirty fields each. What `dataclass(frozen=True)` adds at
run time, a call per field instead of a store, made them a noticeable part of a short request's cost. A `record` is
frozen for the type checker, which is where a change would be seen, and an ordinary slots dataclass at run time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

Class = TypeVar("Class")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def record(cls: type[Class]) -> type[Class]:
    """Class decorator: ``dataclass(slots=True, kw_only=True)`` whose instances type checkers treat as read-only.

    Instances compare by their fields and have no hash.
    """
    return dataclass(slots=True, kw_only=True)(cls)
