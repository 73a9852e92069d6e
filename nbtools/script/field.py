"""`Field`: one setting that a form edits, of a recipe or of a program.

Fields of recipes, of `Launch` and of Slurm, arguments of a script and columns of a table all become such records,
which are the form's only input.
"""

from dataclasses import dataclass, replace
from types import NoneType, UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin

from nbtools.settings import Settings


@dataclass(frozen=True)
class Field:
    """A setting: its name, its allowed values, and the place of its declaration."""

    name: str
    """Name, unique in its form."""
    types: tuple[Any, ...] = (str,)
    """Types that a value may have: `int`, `float`, `bool`, `str`, `NoneType`, or a tuple of one of them such as
    `tuple[int, ...]`."""
    default: Any = None
    """Default as a literal; None also if it is unknown."""
    choices: tuple[Any, ...] | None = None
    """All allowed values, or those that are offered besides a value of `types`; None if there is no list."""
    help: str = ""
    unit: str = ""
    group: str = ""
    """Heading under which the form shows it."""
    source: str = ""
    """Place of the declaration, such as `train.py:41` or `MLMPretrainingConfig`."""
    is_required: bool = False
    """Whether a value must be given, since there is no default."""
    default_text: str = ""
    """Source text of a default that is no literal, such as `os.environ["USER"]`; its value is known only to the
    program."""
    is_basic: bool = False
    """Whether the form shows the field before "More settings"."""
    is_secret: bool = False
    """Whether the form shows the value as dots: a token or a password."""

    @property
    def is_closed(self) -> bool:
        """Whether only the choices are allowed."""
        return self.choices is not None and not any(kind is not NoneType for kind in self.types)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some of the values changed."""
        return replace(self, **changes)


def fields_of(cls: type[Settings]) -> dict[str, Field]:
    """Return the fields of a class of settings by name."""
    found = {}
    for name, info in cls.model_fields.items():
        choices, types = _allowed(info.annotation)
        required = info.is_required()
        found[name] = Field(
            name,
            types=types,
            default=None if required else info.get_default(call_default_factory=True),
            choices=choices,
            help=info.description or "",
            unit=cls.unit(name),
            source=cls.__name__,
            is_required=required,
            is_basic=cls.is_basic(name),
        )
    return found


def _allowed(annotation: Any) -> tuple[tuple[Any, ...] | None, tuple[Any, ...]]:
    """Return the choices of an annotation (None if it lists none), and the types that a value may have."""
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    types = tuple(member for member in members if get_origin(member) is not Literal)
    choices = [choice for member in members if member not in types for choice in get_args(member)]
    if choices and NoneType in types:
        choices.append(None)
    return tuple(choices) or None, types
