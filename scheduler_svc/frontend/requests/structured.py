"""Which texts an answer may be: OpenAI's `response_format`, vLLM's `structured_outputs` and its older `guided_*`."""

import json
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.grammars.spec import GrammarKind, GrammarSpec
from scheduler_svc.frontend.requests.body import check_shape, count_values, loads
from scheduler_svc.frontend.requests.fields import Only
from scheduler_svc.frontend.requests.strict import Strict

MAX_SPEC_BYTES = 2**16
MAX_TAGS = 64
ANY_OBJECT: dict[str, Any] = {"type": "object"}

_TAG_FIELDS = {"structures", "triggers"}
_FIELDS_OF_TYPE: dict[str, set[str]] = {
    "text": set(),
    "json_object": set(),
    "json_schema": {"json_schema"},
    "structural_tag": _TAG_FIELDS,
}


def _parsed(value: Any) -> Any:
    """An object, or one as JSON -> the object."""
    if not isinstance(value, str):
        return value
    try:
        count_values(value.encode())  # in the body it was one string
        content = loads(value)
    except (ValueError, RecursionError):
        raise PydanticCustomError("json", "it is no valid JSON") from None
    if not isinstance(content, dict):
        raise PydanticCustomError("object_type", "it should be an object, or one as JSON")
    check_shape(content)
    return content


def _have_triggers(structures: list["Structure"], triggers: list[str]) -> None:
    for structure in structures:
        if not any(map(structure.begin.startswith, triggers)):
            begin = repr(structure.begin[:50])
            raise PydanticCustomError("trigger", "no trigger is the beginning of {begin}", {"begin": begin})


class JsonSchemaFormat(Strict):
    """A named schema. It binds the answer whether it is `strict` or not, and the model is not told of it. Without one,
    the answer is any object."""

    name: str
    json_schema: Annotated[dict[str, Any], Field(alias="schema")] = ANY_OBJECT
    description: str | None = None
    strict: bool | None = None


class Structure(Strict):
    """What has to follow in a text that has come to a trigger."""

    begin: Annotated[str, Field(min_length=1)]
    json_schema: Annotated[dict[str, Any], Field(alias="schema")]
    end: str


Structures = Annotated[list[Structure], Field(min_length=1, max_length=MAX_TAGS)]
Triggers = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=MAX_TAGS)]


class StructuralTag(Strict):
    """Free text with structures in it. A structure's trigger is the first one that it begins with."""

    type: Literal["structural_tag"] = "structural_tag"
    structures: Structures
    triggers: Triggers

    @model_validator(mode="after")
    def _has_triggers(self) -> "StructuralTag":
        _have_triggers(self.structures, self.triggers)
        return self


class ResponseFormat(Strict):
    """OpenAI's way to say it, with the structural tags that vLLM has there."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    structures: Structures | None = None
    triggers: Triggers | None = None

    @model_validator(mode="after")
    def _has_what_its_type_takes(self) -> "ResponseFormat":
        fields = _FIELDS_OF_TYPE[self.type]
        if self.model_fields_set - {"type"} != fields:
            takes = " and ".join(f"'{name}'" for name in sorted(fields)) or "nothing else"
            raise PydanticCustomError(
                "response_format", "'type': '{type}' takes {takes}", {"type": self.type, "takes": takes}
            )
        if self.structures is not None and self.triggers is not None:
            _have_triggers(self.structures, self.triggers)
        return self


class StructuredOutputs(Strict):
    """vLLM's way to say it."""

    json_schema: Annotated[dict[str, Any] | None, BeforeValidator(_parsed), Field(alias="json")] = None
    json_object: Literal[True] | None = None
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1, fail_fast=True)] | None = None
    grammar: str | None = None
    structural_tag: Annotated[StructuralTag, BeforeValidator(_parsed)] | None = None

    @model_validator(mode="after")
    def _is_one(self) -> "StructuredOutputs":
        if len(self.model_fields_set) != 1:
            names = ", ".join(field.alias or name for name, field in type(self).model_fields.items())
            raise PydanticCustomError("structured_outputs", "it should have exactly one of {names}", {"names": names})
        return self


class GuidedDecoding(Strict):
    """vLLM's older way to say it: parameters of a request, which other parameters follow."""

    guided_json: Annotated[dict[str, Any] | None, BeforeValidator(_parsed)] = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], Field(min_length=1, fail_fast=True)] | None = None
    guided_grammar: str | None = None
    guided_decoding_backend: str | None = None  # which library masks tokens says nothing of the text
    guided_whitespace_pattern: Annotated[Any, AfterValidator(Only())] = None


class AskedGrammar(NamedTuple):
    """What a request says of its answer's text, and the parameter that says it; errors name that."""

    spec: GrammarSpec
    param: str


def asked_grammar(
    form: ResponseFormat | None, outputs: StructuredOutputs | None, guided: GuidedDecoding
) -> AskedGrammar | None:
    """What a request says of its answer's text; None if it says nothing. Raises ApiError (400) if it says too much."""
    said = [way for way in (_of_format(form), _of_outputs(outputs), *_of_guided(guided)) if way is not None]
    if len(said) > 1:
        first, second = (way.param.partition(".")[0] for way in said[:2])
        message = f"'{first}' and '{second}' both say what the text has to be: send one of them."
        raise ApiError(400, message, code="invalid_value", param=second)
    return said[0] if said else None


def _of_format(form: ResponseFormat | None) -> AskedGrammar | None:
    param = "response_format"
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return asked("json", ANY_OBJECT, param)
    if form.json_schema is not None:
        return asked("json", form.json_schema.json_schema, f"{param}.json_schema.schema")
    return asked("structural_tag", form.model_dump(include=_TAG_FIELDS, by_alias=True), param)


def _of_outputs(outputs: StructuredOutputs | None) -> AskedGrammar | None:
    if outputs is None:
        return None
    tag = outputs.structural_tag
    ways: dict[str, tuple[GrammarKind, Any]] = {
        "json": ("json", outputs.json_schema),
        "json_object": ("json", outputs.json_object and ANY_OBJECT),
        "regex": ("regex", outputs.regex),
        "choice": ("choice", outputs.choice),
        "grammar": ("grammar", outputs.grammar),
        "structural_tag": ("structural_tag", tag and tag.model_dump(include=_TAG_FIELDS, by_alias=True)),
    }
    [(name, (kind, content))] = [(name, way) for name, way in ways.items() if way[1] is not None]
    return asked(kind, content, f"structured_outputs.{name}")


def _of_guided(guided: GuidedDecoding) -> list[AskedGrammar]:
    ways: dict[str, tuple[GrammarKind, Any]] = {
        "guided_json": ("json", guided.guided_json),
        "guided_regex": ("regex", guided.guided_regex),
        "guided_choice": ("choice", guided.guided_choice),
        "guided_grammar": ("grammar", guided.guided_grammar),
    }
    return [asked(kind, content, name) for name, (kind, content) in ways.items() if content is not None]


def asked(kind: GrammarKind, content: Any, param: str) -> AskedGrammar:
    """A grammar, written for who compiles it. Raises ApiError (400) if it is too long, or no JSON.

    Args:
        content: a text, or what becomes JSON.
        param: the parameter that says it.
    """
    try:
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, allow_nan=False)
        size = len(text.encode())
    except ValueError as error:  # a number that is none, or half a character
        message = f"Invalid value for '{param}': {error}."
        raise ApiError(400, message, code="invalid_value", param=param) from error
    if size > MAX_SPEC_BYTES:
        message = f"Invalid value for '{param}': it has {size} bytes, the limit is {MAX_SPEC_BYTES}."
        raise ApiError(400, message, code="invalid_value", param=param)
    return AskedGrammar(GrammarSpec(kind, text), param)
