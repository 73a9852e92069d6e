"""Declared settings: frozen pydantic models whose fields have a help text, a unit and a place in the form.

One declaration feeds the form, the flags, the validation and the docs.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Self, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from nbtools.errors import ConfigError, did_you_mean, html_table, shown


def setting(
    default: Any,
    help: str,
    unit: str = "",
    *,
    basic: bool = False,
    shapes: bool = False,
    steerable: bool = False,
    before: Any = ...,
    **bounds: Any,
) -> Any:
    """Declare a config field.

    Args:
        default: default value; `...` for a required field.
        help: description in one sentence.
        unit: unit of a number.
        basic: whether the form shows it before "More settings".
        shapes: whether the value shapes the model, so that weights of another value do not fit.
        steerable: whether the value may be changed while a training runs.
        before: value that this field means in a config recorded before the field existed; the default if not given.
        bounds: pydantic's `gt`, `ge`, `lt`, `le`.
    """
    extra: dict[str, Any] = {"unit": unit, "basic": basic, "shapes": shapes, "steerable": steerable}
    if before is not ...:
        extra["before"] = before
    return Field(default, description=help, json_schema_extra=extra, **bounds)


def may_be_path(text: str) -> bool:
    """Whether a text is a possible path: not blank, without a null character, and not too long for a file system."""
    lengths = [len(part.encode("utf-8", "surrogatepass")) for part in text.split("/")]
    return bool(text.strip()) and "\0" not in text and max(lengths) <= 255 and sum(lengths) + len(lengths) <= 3072


class Settings(BaseModel):
    """A frozen pydantic model that rejects unknown names, wrong types, NaN and infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True, defer_build=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError("\n".join(_explained(item, type(self)) for item in error.errors())) from None

    @field_validator("*", mode="before")
    @classmethod
    def _strict_numbers(cls, value: object, info: Any) -> object:
        # pydantic would accept True for 1 and "32" for 32, and does not say how to divide a text
        annotation = cls.model_fields[info.field_name].annotation
        if isinstance(value, bool) and annotation not in (bool, bool | None):
            raise ValueError(f"{value} is a truth value, not a number or text")
        if isinstance(value, str) and annotation in (int, float, bool, int | None, float | None, bool | None):
            raise ValueError(f"is text; give {'true or false' if annotation in (bool, bool | None) else 'a number'}")
        if isinstance(value, str) and get_origin(annotation) is tuple:
            raise ValueError("is one text; give a list, for a command of words, as shlex.split(text) divides it")
        return value

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """Yield the values that differ from the defaults: those make the same config again."""
        for name, info in type(self).model_fields.items():
            if info.is_required() or getattr(self, name) != info.get_default(call_default_factory=True):
                yield name, getattr(self, name)

    def _repr_html_(self) -> str:
        fields = type(self).model_fields.items()
        rows = [(name, shown(getattr(self, name)), self.unit(name), info.description or "") for name, info in fields]
        return html_table([(type(self).__name__, "", "", ""), *rows])

    def replace(self, **changes: Any) -> Self:
        """Return a validated copy with some values changed."""
        return type(self)(**{**self.model_dump(), **changes})

    def steered(self, values: Mapping[str, Any]) -> Self:
        """Return a copy with values that are changed while the training runs.

        Raises:
            ConfigError: a field is unknown or cannot be changed then, or a value is not allowed.
        """
        if fixed := [name for name in values if name in type(self).model_fields and name not in self.steerable()]:
            raise ConfigError(
                f"{fixed[0]}={shown(values[fixed[0]])}: cannot change while the training runs; stop it, and resume it "
                f"with the change. These can: {', '.join(self.steerable())}"
            )
        return self.replace(**values)

    @classmethod
    def recorded(cls, values: Mapping[str, Any]) -> Self:
        """Build from recorded values; a field that did not exist yet keeps the meaning that it had then."""
        return cls(**{**cls.values_before(values), **values})

    @classmethod
    def values_before(cls, names: Collection[str]) -> dict[str, Any]:
        """Return the values of the fields that a record with these `names` lacks and whose default means another."""
        extras = {name: cls._declared(name) for name in cls.model_fields if name not in names}
        return {name: extra["before"] for name, extra in extras.items() if "before" in extra}

    @classmethod
    def _declared(cls, name: str) -> dict[str, Any]:
        """The arguments of `setting` that pydantic does not know; empty for a field that is declared without it."""
        extra = cls.model_fields[name].json_schema_extra
        return extra if isinstance(extra, dict) else {}

    @classmethod
    def unit(cls, name: str) -> str:
        """Unit of the field `name`, or an empty string."""
        return str(cls._declared(name).get("unit", ""))

    @classmethod
    def is_basic(cls, name: str) -> bool:
        """Whether the form shows the field `name` before "More settings"."""
        return bool(cls._declared(name).get("basic"))

    @classmethod
    def steerable(cls) -> list[str]:
        """Names of the fields that may be changed while a training runs."""
        return [name for name in cls.model_fields if cls._declared(name).get("steerable")]

    @classmethod
    def shapes_model(cls, name: str) -> bool:
        """Whether weights fit only a model with the same value of the field `name`."""
        return bool(cls._declared(name).get("shapes"))


def errors_by_field(cls: type[Settings], values: Mapping[str, Any]) -> dict[str, str]:
    """Validate `values` and return one message per wrong field; `""` holds a message on several fields."""
    return {name: _message(item, cls) for name, item in _problems(cls, values).items()}


def complaints(cls: type[Settings], values: Mapping[str, Any]) -> dict[str, str]:
    """Like `errors_by_field`, with messages that name the field, its value and the class."""
    return {name: _explained(item, cls) for name, item in _problems(cls, values).items()}


def _problems(cls: type[Settings], values: Mapping[str, Any]) -> dict[str, Any]:
    try:
        BaseModel.__init__(cls.__new__(cls), **values)
    except ValidationError as error:
        return {str(item["loc"][0]) if item["loc"] else "": item for item in reversed(error.errors())}
    return {}


def _explained(item: Any, cls: type[Settings]) -> str:
    name = ".".join(str(part) for part in item["loc"])
    message = _message(item, cls)
    if not name:
        return f"{message} ({cls.__name__})"
    if item["type"] == "extra_forbidden":
        return f"{shown(name)}: {message}"
    given = "" if item["type"] == "missing" else f"={shown(item['input'])}"
    return f"{name}{given}: {message} ({cls.__name__})"


_BOUNDS = {
    "greater_than": "> {gt}",
    "greater_than_equal": ">= {ge}",
    "less_than": "< {lt}",
    "less_than_equal": "<= {le}",
}


def _message(item: Any, cls: type[Settings]) -> str:
    """Return the allowed values of a field, by its declaration."""
    kind, context = item["type"], item.get("ctx", {})
    if kind == "extra_forbidden":
        hint = did_you_mean(str(item["loc"][0]), cls.model_fields) or f"it has {', '.join(cls.model_fields)}"
        return f"{cls.__name__} has no such field; {hint}"
    if kind in _BOUNDS:
        return "must be " + _BOUNDS[kind].format(**{key: _plain_number(value) for key, value in context.items()})
    if kind == "value_error":
        return str(context["error"])
    if kind == "missing":
        return "is required"
    text = str(item["msg"])
    return text[0].lower() + text[1:]


def _plain_number(value: object) -> object:
    """Return 0 for 0.0: pydantic turns the bounds of float fields into floats."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
