"""Prints what this Python lacks to run the project at the first argument with the extras of the second, if anything."""

import sys
import tomllib
from importlib import metadata, util
from pathlib import Path

from packaging.requirements import Requirement

root, extras = Path(sys.argv[1]), sys.argv[2].split(",")
project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
requirements = [project["name"], *project["dependencies"]]
requirements += [text for extra in extras for text in project["optional-dependencies"][extra]]
lacking = []
for requirement in map(Requirement, requirements):
    try:
        satisfied = requirement.specifier.contains(metadata.version(requirement.name), prereleases=True)
    except metadata.PackageNotFoundError:
        satisfied = False
    if not satisfied and (requirement.marker is None or requirement.marker.evaluate()):
        lacking.append(str(requirement))
nbtools = util.find_spec("nbtools")
if nbtools is None or root not in Path(nbtools.origin or "/").resolve().parents:
    lacking.append("nbtools installed editable from this folder")
print(", ".join(lacking))
