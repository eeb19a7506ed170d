"""Say in one sentence what pydantic found wrong with a body, and which parameter was probably meant."""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from scheduler_svc.frontend.errors import MAX_PARAM_CHARACTERS, ApiError
from scheduler_svc.frontend.requests.fields import Instead, Only
from scheduler_svc.frontend.requests.strict import Allowing

Place = tuple[str | int, ...]

_MAX_OTHERS = 3  # parameters that are named beside the first one
_MAX_NAME_CHARACTERS = 64  # of a name that is looked for among the known ones, which takes the square of them
_LIKENESS = 0.7  # 0 to 1, of `difflib`: below it, the nearest name means something else
_IGNORING = " A service that runs with --allow-unknown ignores unknown parameters."
_MISSING, _UNKNOWN = "missing", "extra_forbidden"  # pydantic's names
_CODE_OF_PYDANTIC_TYPE = {
    _MISSING: "missing_required_parameter",
    _UNKNOWN: "unknown_parameter",
    "unsupported_parameter": "unsupported_parameter",
    "thread_unsupported_request": "thread_unsupported_request",
}


def describe_validation(error: ValidationError, schema: type[BaseModel], content: dict[str, Any]) -> ApiError:
    """Return the answer to a body that is not as its schema has it.

    Args:
        content: the body.
    """
    errors = error.errors(include_url=False)
    # A value that fits none of several types has an error for each of them.
    places = tuple(dict.fromkeys(_place(each, content) for each in errors))
    first, place = errors[0], places[0]
    match kind := first["type"]:
        case "missing":
            message = f"Missing required parameter: {_quoted(place)}."
        case "extra_forbidden":
            message = f"Unknown parameter: {_quoted(place)}.{_advice(schema, place, content)}"
        case _:
            message = f"Invalid value for {_quoted(place)}: {first['msg']}."
    code = _CODE_OF_PYDANTIC_TYPE.get(kind, "invalid_type" if kind.endswith("_type") else "invalid_value")
    others = places[1:]
    if place[-1:] == ("type",):  # of an object whose type is not known, nothing else can be wrong
        others = tuple(each for each in others if each[: len(place) - 1] != place[:-1])
    return ApiError(400, message + _others(others), code=code, param=_path(place))


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is meant by a misspelled one; None if none is like it."""
    if len(name) > _MAX_NAME_CHARACTERS:
        return None
    by_lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name.lower(), by_lower, 1, _LIKENESS)
    return by_lower[found[0]] if found else None


def _others(places: Sequence[Place]) -> str:
    if not places:
        return ""
    named = [_quoted(place) for place in places[:_MAX_OTHERS]]
    if len(places) > _MAX_OTHERS:
        named.append(f"{len(places) - _MAX_OTHERS} more")
    *before, last = named
    return f" Also wrong: {', '.join(before)}{' and ' if before else ''}{last}."


def _advice(schema: type[BaseModel], place: Place, content: dict[str, Any]) -> str:
    """Name the parameter that was probably meant, and the option to ignore unknown ones."""
    *parents, name = place
    said = () if parents else content  # a parameter that is there already is not meant
    meant = nearest(str(name), (each for each in _parameters(schema, parents) if each not in said))
    is_ignorable = not parents and issubclass(schema, Allowing)
    return (f" Did you mean '{meant}'?" if meant else "") + (_IGNORING if is_ignorable else "")


def _parameters(schema: type[BaseModel], parents: Sequence[str | int]) -> Iterator[str]:
    """Yield the names that an object of a body may have, without those that can only be turned off."""
    models = [schema]
    for part in parents:
        fields = [field for model in models for name, field in _fields(model) if name == part]
        models = [model for field in fields for model in _models_in(field.annotation)] if fields else models
    for model in models:
        yield from (name for name, field in _fields(model) if not _is_off(field))


def _fields(model: type[BaseModel]) -> list[tuple[str, FieldInfo]]:
    return [(field.alias or name, field) for name, field in model.model_fields.items()]


def _is_off(field: FieldInfo) -> bool:
    return any(isinstance(getattr(each, "func", None), Only | Instead) for each in field.metadata)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in a type such as `list[A | B]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def _place(error: ErrorDetails, content: dict[str, Any]) -> Place:
    """Return where a value stands in the body. Pydantic's place also names which of several types was tried."""
    *parents, last = error["loc"] or ("",)
    place: list[str | int] = []
    value: Any = content
    for part in parents:
        if isinstance(part, int):
            place.append(part)
            value = value[part] if isinstance(value, list) and part < len(value) else None
        elif isinstance(value, dict) and part in value:
            place.append(part)
            value = value[part]
    is_name = error["type"] in (_MISSING, _UNKNOWN) or isinstance(last, int)
    if is_name or (isinstance(value, dict) and last in value):
        place.append(last)
    return tuple(place)


def _quoted(place: Place) -> str:
    path = _path(place)[:MAX_PARAM_CHARACTERS]
    return f"'{path if path.isprintable() else ascii(path)[1:-1]}'"


def _path(place: Place) -> str:
    """`messages[0].content`"""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.removeprefix(".")
