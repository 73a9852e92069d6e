"""Fields of dataclasses in a script's source, and the flags that `HfArgumentParser` and tyro make of them."""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any

from nbtools.script.arguments.argparse_calls import Entry, literal_of, text_of
from nbtools.script.arguments.arguments import Argument, made_argument
from nbtools.script.follow.calls import NO_CALL, Call
from nbtools.script.follow.follower import Follower
from nbtools.script.follow.values import Class, EnumMember, External, Function, Scope, Unknown, is_literal
from nbtools.script.source import PARSING

_SIMPLE: dict[str, type] = {"int": int, "float": float, "str": str, "bool": bool}
_TEXTS = ("Path", "PathLike", "PosixPath")
_LISTS = ("list", "sequence", "tuple", "iterable", "set", "frozenset", "collection")
"""Names of lists of any kind, in lower case."""
MISSING = External("dataclasses.MISSING")
_MISSING = (MISSING, External("omegaconf.MISSING"))


@dataclass(frozen=True)
class FieldSpec:
    """A call of `dataclasses.field`."""

    keywords: dict[str, Any]


@dataclass
class Kind:
    """The values that an annotation allows."""

    members: list[Any] = field(default_factory=list)
    """Types in their order: one of int, float, str, bool, NoneType; `tuple` for a list; `dict` for all others."""
    choices: tuple[Any, ...] | None = None
    names: tuple[str, ...] = ()
    """Names of an enumeration's members, in the order of the choices."""
    element: "Kind | None" = None
    length: int | None = None
    nested: Class | None = None
    is_known: bool = True
    parts: "tuple[Kind, ...]" = ()
    """The parts of a union, in its order."""

    @property
    def is_optional(self) -> bool:
        """Whether None is allowed."""
        return NoneType in self.members


@dataclass
class DataField:
    """One field of a dataclass."""

    name: str
    kind: Kind
    default: Any
    """`MISSING` if there is none."""
    help: str
    metadata: dict[str, Any]
    where: str


def fields_of_class(cls: Class, follower: Follower) -> list[DataField]:
    """Return the fields of a dataclass, those of its bases first, as Python orders them."""
    follower.resolve_bases(cls)
    found: dict[str, DataField] = {}
    for owner in reversed(cls.ancestors):
        for number, node in enumerate(owner.node.body):
            match node:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                    if re.search("ClassVar|KW_ONLY", ast.unparse(annotation)):
                        continue
                    default = MISSING if value is None else follower.value(value, owner.body)
                    text = _docstring_after(owner.node.body, number) or owner.scope.module.comment(node)
                    made = _field(name, annotation, default, text, owner, follower)
                    if made is not None:
                        found[name] = made
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in found:
                    found[name].default = follower.value(value, owner.body)
    return list(found.values())


def parameters_of_function(function: Function, follower: Follower) -> list[DataField]:
    """Return the parameters of a function as fields."""
    parameters = function.node.args
    names = [*parameters.posonlyargs, *parameters.args]
    defaults: dict[ast.arg, ast.expr | None] = dict(zip(reversed(names), reversed(parameters.defaults), strict=False))
    defaults |= dict(zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True))
    found = []
    for parameter in (*names, *parameters.kwonlyargs):
        node = defaults.get(parameter)
        kind = Kind([dict], is_known=False)
        if parameter.annotation is not None:
            kind = annotated_kind(parameter.annotation, function.scope, follower)
        default = MISSING if node is None else follower.value(node, function.scope)
        found.append(DataField(parameter.arg, kind, default, "", {}, function.scope.module.where(parameter)))
    return found


def _docstring_after(body: Sequence[ast.stmt], number: int) -> str:
    match body[number + 1 : number + 2]:
        case [ast.Expr(value=ast.Constant(value=str(text)))]:
            return " ".join(text.split())
    return ""


def _field(
    name: str, annotation: ast.expr, default: Any, text: str, owner: Class, follower: Follower
) -> DataField | None:
    metadata: dict[str, Any] = {}
    kind = annotated_kind(annotation, owner.body, follower)
    if isinstance(default, FieldSpec):
        settings = default.keywords
        if settings.get("init") is False:
            return None
        given = settings.get("metadata")
        metadata = dict(given) if isinstance(given, dict) else {}
        text = str(settings.get("help") or metadata.get("help") or text)
        if isinstance(settings.get("aliases"), str | list):
            metadata["aliases"] = settings["aliases"]
        default = settings.get("default", MISSING)
        if "default_factory" in settings:
            default = _made(settings["default_factory"], follower)
    if isinstance(metadata.get("help"), Unknown):
        metadata["help"] = ""
    return DataField(name, kind, default, " ".join(text.split()), metadata, owner.scope.module.where(annotation))


def _made(factory: Any, follower: Follower) -> Any:
    match factory:
        case External("list" | "tuple" | "set"):
            return ()
        case External("dict"):
            return {}
        case Function() | Class():
            return follower.call(factory, Call(NO_CALL, factory.scope, [], {}, is_whole=True))
    return factory if isinstance(factory, Unknown) else Unknown(ast.Name(text_of(factory)))


def annotated_kind(node: ast.expr, scope: Scope, follower: Follower, depth: int = 0) -> Kind:
    """Return what an annotation allows."""
    if depth > 8:
        return Kind([dict], is_known=False)

    def inner(part: ast.expr) -> Kind:
        return annotated_kind(part, scope, follower, depth + 1)

    match node:
        case ast.Constant(value=None):
            return Kind([NoneType])
        case ast.Constant(value=str(text)):
            try:
                with PARSING:
                    named = ast.parse(text.strip(), mode="eval").body
                return inner(named)
            except SyntaxError:
                return Kind([dict], is_known=False)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _union([inner(left), inner(right)])
        case ast.Subscript(value=head, slice=index):
            return _subscripted(ast.unparse(head).rpartition(".")[2], index, inner, scope, follower)
    value = follower.value(node, scope)
    resolved = follower.resolve(value, scope.module)
    if isinstance(resolved, Class):
        if resolved.is_enum:
            members = follower.members(resolved)
            return Kind([str], tuple(map(literal_of, members)), tuple(member.name for member in members))
        return Kind([dict], nested=resolved)
    if isinstance(value, External):
        last = value.path.rpartition(".")[2]
        if last in _SIMPLE or last in _TEXTS:
            return Kind([_SIMPLE.get(last, str)])
        if last.lower() in _LISTS:
            return Kind([tuple], element=Kind([str]))
        return Kind([dict], is_known=last in ("dict", "Dict", "Any", "object"))
    if isinstance(value, Unknown) and isinstance(value.node, ast.expr) and value.node is not node and value.scope:
        return annotated_kind(value.node, value.scope, follower, depth + 1)
    return Kind([dict], is_known=False)


def _subscripted(head: str, index: ast.expr, inner: Any, scope: Scope, follower: Follower) -> Kind:
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    if head == "Optional":
        return _union([inner(index), Kind([NoneType])])
    if head == "Union":
        return _union([inner(part) for part in parts])
    if head == "Literal":
        values = [literal_of(follower.value(part, scope)) for part in parts]
        given = tuple(value for value in values if value is not None)
        return Kind([*dict.fromkeys(map(type, given)), *[NoneType] * (None in values)], given)
    if head in ("Annotated", "Final", "InitVar", "Required", "Suppress", "SuppressFixed", "FlagConversionOff"):
        found: Kind = inner(parts[0])
        if head == "Annotated" and any("conf" in ast.unparse(part) for part in parts[1:]):
            found.is_known = False
        return found
    if head.lower() in _LISTS:
        fixed = head in ("Tuple", "tuple") and not (len(parts) == 2 and ast.unparse(parts[1]) == "...")
        element = inner(parts[0])
        same = all(inner(part).members == element.members for part in parts) if fixed else True
        return Kind([tuple], element=element, length=len(parts) if fixed else None, is_known=same and element.is_known)
    return Kind([dict], is_known=head in ("Dict", "dict", "Mapping"))


def _union(kinds: Sequence[Kind]) -> Kind:
    members = [member for kind in kinds for member in kind.members]
    choices = [kind for kind in kinds if kind.choices is not None]
    lists = [kind for kind in kinds if kind.element is not None]
    nested = [kind.nested for kind in kinds if kind.nested is not None]
    found = Kind(list(dict.fromkeys(members)))
    if choices:
        found.choices, found.names = choices[0].choices, choices[0].names
    if lists:
        found.element, found.length = lists[0].element, lists[0].length
    found.nested = nested[0] if nested else None
    found.parts = tuple(part for kind in kinds for part in (kind.parts or (kind,)))
    found.is_known = all(kind.is_known for kind in kinds) and not nested
    return found


# --- HfArgumentParser -----------------------------------------------------------------------------


def hf_entry(data: DataField) -> Entry:
    """Return what `HfArgumentParser` passes to `add_argument` for a field."""
    dashed = f"--{data.name.replace('_', '-')}"
    aliases = data.metadata.get("aliases", ())
    flags = dict.fromkeys((f"--{data.name}", dashed, *([aliases] if isinstance(aliases, str) else aliases)))
    keywords: dict[str, Any] = {key: value for key, value in data.metadata.items() if key != "aliases"}
    keywords["help"] = data.help
    kind = _chosen(data.kind)
    member = kind.members[0]
    has_default = data.default != MISSING
    if has_default:
        keywords["default"] = data.default
    if kind.choices is not None:
        keywords |= {"choices": list(kind.choices), "type": External(type(kind.choices[0]).__name__)}
    elif member is bool:
        keywords["type"] = External("string_to_bool")
        if not data.kind.is_optional or data.default is not None:
            keywords |= {"nargs": "?", "const": True, "default": data.default if has_default else False}
            has_default = True
    elif member is tuple:
        element = kind.element or Kind([str])
        keywords |= {"nargs": "+", "type": External(element.members[0].__name__)}
        if element.choices:
            keywords["choices"] = list(element.choices)
        if has_default and isinstance(data.default, str):  # only a default_factory is passed on
            del keywords["default"]
    else:
        keywords["type"] = External(member.__name__ if member in (int, float, str) else "str")
    if not has_default:
        keywords["required"] = True
    return Entry(tuple(flags), keywords, data.where)


def _chosen(kind: Kind) -> Kind:
    """Return the part of a union for which `HfArgumentParser` converts a value."""
    parts = [part for part in kind.parts or (kind,) if part.members != [NoneType]]
    if len(parts) < 2:
        return parts[0] if parts else Kind([str])
    if kind.is_optional:
        return parts[0] if kind.parts[1].members == [NoneType] else kind.parts[1]
    return next((part for part in parts if part.members != [str] or part.choices), parts[0])


def hf_negative(data: DataField) -> Entry | None:
    """Return the flag that `HfArgumentParser` adds for a truth value that is True by default."""
    if bool not in data.kind.members or data.default is not True:
        return None
    flags = dict.fromkeys((f"--no_{data.name}", f"--no-{data.name.replace('_', '-')}"))
    return Entry(tuple(flags), {"action": "store_false", "dest": data.name, "help": data.help}, data.where)


# --- tyro -----------------------------------------------------------------------------------------


def tyro_arguments(
    fields: Sequence[DataField], follower: Follower, prefix: str = "", outer: Any = None, *, takes_all: bool = False
) -> tuple[list[Argument], list[str]]:
    """Return the arguments that tyro makes of fields, those of nested dataclasses among them, and what is unsure.

    `takes_all` is for parsers that read a value of any type, as OmegaConf does.
    """
    found: list[Argument] = []
    unsure: list[str] = []
    for data in fields:
        default = data.default
        if outer is not None and data.name in outer:
            default = outer[data.name]
        name = f"{prefix}{data.name}"
        kind = data.kind
        if kind.nested is not None and (takes_all or (kind.is_known and len(kind.members) == 1)):
            changed, nested = getattr(default, "attributes", None), fields_of_class(kind.nested, follower)
            inner, more = tyro_arguments(nested, follower, f"{name}.", changed, takes_all=takes_all)
            missing = (base.path for base in kind.nested.missing_bases)
            unsure += [
                f"{data.where}: the source of {base} is not found, so its fields are missing" for base in missing
            ]
            found += inner
            unsure += more
        elif not takes_all and (not kind.is_known or dict in kind.members):
            unsure.append(f"{data.where}: the type of {name} is not read from the source")
        else:
            found.append(_tyro_argument(data, name, default, prefix))
    return found, unsure


def _tyro_argument(data: DataField, name: str, default: Any, prefix: str) -> Argument:
    kind = data.kind
    is_required = default in _MISSING
    if isinstance(default, EnumMember):
        default = default.name
    default = None if is_required else literal_of(default)
    default_text = "" if is_literal(default) and not isinstance(default, dict) else text_of(default)
    default = None if default_text else default
    element = kind.element or kind
    choices = element.names or element.choices
    is_list = kind.element is not None
    scalars = [member for member in element.members if member in (int, float, str, bool)]
    flag = f"--{name.replace('_', '-')}"
    is_flag = kind.members == [bool] and not is_required
    head, dot, last = flag[2:].rpartition(".")
    nargs: Any = (kind.length if kind.length is not None else "*") if is_list else None
    return made_argument(
        name,
        scalars[:1] if is_list else scalars or [str],
        is_list=is_list,
        is_optional=kind.is_optional,
        default=default,
        default_text=default_text,
        choices=tuple(choices) if choices else None,
        help=data.help,
        group=prefix.rstrip("."),
        source=data.where,
        is_required=is_required,
        flags=(flag,),
        negative_flags=(f"--{head}{dot}no-{last}",) if is_flag else (),
        action="optional_bool" if is_flag else "store",
        nargs=nargs,
    )
