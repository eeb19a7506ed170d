"""Numbers in JSON schemas: llguidance keeps them as doubles, and would take some for others."""

import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, TypeGuard

from scheduler_svc.frontend.grammars.schema_parts import Schema, SchemaError

MAX_EXACT = 2**53  # doubles have every integer up to here
MAX_BOUND = 2**63 - 1024  # the greatest double that the library takes for a bound of integers
MAX_OPEN_BOUND = 10**18 - 128  # the greatest beyond which all numbers are allowed
BOUNDS = {"minimum": math.inf, "exclusiveMinimum": math.inf, "maximum": -math.inf, "exclusiveMaximum": -math.inf}
"""The keywords for bounds, each with the direction in which the numbers are that it allows."""


def with_exact_numbers(schema: Schema, place: str) -> Schema:
    """Return the schema with bounds that doubles have, and no wider than it says. Raise SchemaError for values that
    they do not have."""
    for key in ("const", "enum"):
        for number in _integers(schema.get(key)):
            if (written := _as_written(number)) != number:
                raise SchemaError(f"{place}/{key} is {number}, which a grammar would round to {written}: "
                                 "let it be a string")  # fmt: skip
    exact = dict(schema)
    for key, inward in BOUNDS.items():
        value = schema.get(key)
        if not is_number(value) or abs(value) <= MAX_EXACT:
            continue
        ends = any(is_number(schema.get(other)) for other, direction in BOUNDS.items() if direction != inward)
        limit = MAX_BOUND if ends or (value < 0) == (inward > 0) else MAX_OPEN_BOUND
        bound = _moved(value, inward, is_exclusive=key.startswith("exclusive"))
        if bound is None or abs(bound) > limit:
            raise SchemaError(f"{place}/{key} is {value}, and such bounds of a grammar's numbers go to {limit}")
        del exact[key]
        name = "minimum" if inward > 0 else "maximum"
        other = exact.get(name)
        if not is_number(other) or (bound > other) == (inward > 0):
            exact[name] = bound
    return exact


def _moved(value: float, inward: float, *, is_exclusive: bool) -> int | None:
    """Return a bound that is a double and includes itself, moved inward as far as it takes; None if no number is left.

    The library reads a bound of integers exactly, and one of other numbers as it would write it.
    """
    nearest = float(max(min(value, MAX_BOUND), -MAX_BOUND))
    while abs(nearest) <= MAX_BOUND:
        whole = int(nearest)
        read = (whole, _as_written(whole))
        if all(each > value if inward > 0 else each < value for each in read) or (
            set(read) == {value} and not is_exclusive
        ):
            return whole
        nearest = math.nextafter(nearest, inward)
    return None


def _integers(value: Any) -> Iterator[int]:
    if isinstance(value, int) and not isinstance(value, bool):
        yield value
    elif isinstance(value, float) and abs(value) > MAX_BOUND:
        yield int(value)
    elif isinstance(value, (list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _integers(part)


def _as_written(value: int) -> int:
    """Return what the library writes for an integer: the shortest digits of the same double, and zeros. Beyond
    `MAX_BOUND` it writes another where the type is an integer, or ends the process."""
    if abs(value) > MAX_BOUND:
        return MAX_BOUND if value > 0 else -MAX_BOUND
    return int(Decimal(repr(float(value))))


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether the value is a number of JSON."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
