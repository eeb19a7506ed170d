"""The bases of everything that clients may send."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationInfo, model_validator

from scheduler_svc.frontend.requests.ignored import IgnoredNames


class Strict(BaseModel):
    """No value is converted, no unknown field is accepted, and `null` means absent."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value is not None}


class Allowing(Strict):
    """A body whose unknown fields are left out where the service allows that, instead of refused."""

    @model_validator(mode="before")
    @classmethod
    def _without_unknown(cls, data: Any, info: ValidationInfo) -> Any:
        ignored = info.context
        if isinstance(data, dict) and isinstance(ignored, IgnoredNames) and ignored.options.allow_unknown:
            return known_fields(cls, "", data, ignored)
        return data


class Lenient(BaseModel):
    """The same, but unknown fields are left out: what is inside of messages was written by many hands."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)
    place: ClassVar[str]  # in a body

    @model_validator(mode="before")
    @classmethod
    def _without_unknown(cls, data: Any, info: ValidationInfo) -> Any:
        return known_fields(cls, cls.place, data, info.context) if isinstance(data, dict) else data


def known_fields(model: type[BaseModel], place: str, data: dict[str, Any], ignored: Any) -> dict[str, Any]:
    """The fields of `data` that the model has. `ignored`, if it is an `IgnoredNames`, gets to know the others."""
    said = {name: value for name, value in data.items() if value is not None}
    fields = model.model_fields
    if fields.keys() >= said.keys():
        return said
    if isinstance(ignored, IgnoredNames):
        ignored.add(place, (name for name in said if name not in fields))
    return {name: value for name, value in said.items() if name in fields}
