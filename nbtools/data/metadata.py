"""The metadata.json of a folder of data: a JSON object that is checked against the fields of a dataclass."""

import json
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from nbtools.errors import DataError, shown
from nbtools.rundir.json_files import MAX_STEP, whole

FORMAT = 1
Count = Annotated[int, Field(strict=True, ge=1, le=MAX_STEP)]
T = TypeVar("T")


def read_object(path: Path, step: str) -> dict[str, Any]:
    """Read a JSON object of this version or an older one; DataError, with the next `step`, if it is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read ({str(error)[:80]}); {step}") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: is not a JSON object; {step}")
    if (whole(content.get("format")) or 0) > FORMAT:
        raise DataError(f"{path}: was written by a newer nbtools; update nbtools, or {step}")
    return content


def checked(cls: type[T], content: dict[str, Any], path: Path, step: str) -> T:
    """Build a dataclass from the content of a file; DataError, with the next `step`, if a value does not fit."""
    try:
        return TypeAdapter(cls).validate_python(content)
    except ValidationError as error:
        wrong = error.errors()[0]
        name, why = str(wrong["loc"][0]), str(wrong["msg"])
        why = why[:1].lower() + why[1:]
        raise DataError(f"{path}: {name} is {shown(content.get(name))}; {why}; {step}") from None
