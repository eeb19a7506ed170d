"""Random well-formed messages, made from the types alone, so that a new message or field is among them by itself."""

import random
import string
from typing import Any

import msgspec.inspect as mi

LIVE_SHARE = 0.5  # of fields for which a value was given that means something just now


class AnyMessage:
    """Makes members of a union.

    Args:
        union: one direction of `common.messages`.
        live: values that mean something to the receiver, by field; tried often, as are the limits of a type.
    """

    def __init__(self, union: Any, rng: random.Random, live: dict[str, list[Any]] | None = None) -> None:
        kind = mi.type_info(union)
        self._kinds = kind.types if isinstance(kind, mi.UnionType) else (kind,)
        self._rng = rng
        self._live = live if live is not None else {}

    def __call__(self) -> Any:
        """The next one."""
        return self._make(self._rng.choice(self._kinds))

    def _make(self, kind: mi.Type) -> Any:
        rng = self._rng
        match kind:
            case mi.StructType():
                return kind.cls(**{field.name: self._field(field) for field in kind.fields})
            case mi.IntType(ge=low, le=high):
                low, high = low if low is not None else -(2**63), high if high is not None else 2**63 - 1
                return min(high, max(low, rng.choice([low, high, 0, 1, rng.randrange(100), rng.randint(low, high)])))
            case mi.FloatType(ge=ge, gt=gt, le=high):
                low = ge if ge is not None else gt if gt is not None else 0.0
                top = high if high is not None else 1e9
                value = float(rng.choice([low, top, rng.uniform(low, min(top, low + 1.0))]))
                return max(value, low + 1e-9) if gt is not None else value
            case mi.StrType(min_length=low, max_length=high):
                length = rng.choice(
                    [low or 0, max(low or 0, min(high or 0, 10)), rng.randint(low or 0, min(high or 99, 99))]
                )
                return "".join(rng.choices(string.printable + "äß\u2028\0", k=length))
            case mi.BytesType(max_length=high):
                return rng.randbytes(min(high or 999, rng.choice([0, 1, 4, 8, 12, 400])))
            case mi.BoolType():
                return rng.random() < 0.5
            case mi.LiteralType(values=values):
                return rng.choice(values)
            case mi.NoneType():
                return None
            case mi.UnionType(types=kinds):
                return self._make(rng.choice(kinds))
            case mi.VarTupleType(item_type=item, min_length=low, max_length=high):
                length = max(low or 0, min(rng.choice([0, 1, 3]), high if high is not None else 3))
                return tuple(self._make(item) for _ in range(length))
            case mi.ListType(item_type=item):
                return [self._make(item) for _ in range(rng.choice([0, 1, 3]))]
            case mi.DictType(key_type=key, value_type=item):
                return {self._make(key): self._make(item) for _ in range(rng.choice([0, 1, 3]))}
        raise AssertionError(f"no way to make a {kind}")

    def _field(self, field: mi.Field) -> Any:
        values = self._live.get(field.name)
        if values and self._rng.random() < LIVE_SHARE:
            return self._rng.choice(values)
        return self._make(field.type)
