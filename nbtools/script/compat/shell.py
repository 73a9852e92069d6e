"""`scripts/NAME.sh`: an executable shell script that runs a training with torchrun."""

import shlex
from collections.abc import Mapping
from pathlib import Path

from nbtools.config import Launch
from nbtools.errors import HandEditedError
from nbtools.project import check_name
from nbtools.script.torchrun import ADDRESS, NODE, by_hand, variables

_NPROC = "nproc-per-node"
WORDS: Mapping[str, tuple[str, ...]] = {
    "mlm_pretraining": ("dataset", "batch-size", "epochs", "learning-rate", "streaming"),
    "masked_diffusion": (_NPROC, "dataset"),
}
"""Recipe -> flags that the words at the start of an older launcher's command line stand for, in their order."""
SIZES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "llm_gan": {
        "test": ("2", "--epochs", "5"),
        "small": ("4", "--epochs", "20"),
        "full": ("gpu", "--epochs", "100", "--checkpoint-every", "20"),
    }
}
"""Recipe -> word -> processes and flags that this one word of an older launcher stands for."""


def shell_text(name: str, launch: Launch, recipe: str) -> str:
    """Return a shell script that runs `scripts/NAME.py` with torchrun from any working directory.

    Args:
        recipe: key of the recipe, whose older launcher may have taken words before the flags.

    Raises:
        InvalidNameError: `name` is not a plain identifier.
    """
    check_name(name)
    exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in variables(launch).items())
    command = shlex.join(by_hand(f"scripts/{name}.py", launch))
    command = command.replace(f"--node-rank={NODE}", '"--node-rank=${NODE_RANK:?set it to the number of this machine}"')
    command = command.replace(
        f"--master-addr={ADDRESS}", '"--master-addr=${MASTER_ADDR:?set it to the address of machine 0}"'
    )
    command = command.replace(f"--{_NPROC}={launch.nproc_per_node}", f'"--{_NPROC}=$processes"')
    command += ' ${flags[@]+"${flags[@]}"}'  # an empty array is unset for bash before 4.4
    words = f"processes={launch.nproc_per_node}\nflags=()\n{_reading(recipe)}"
    return f"""#!/usr/bin/env bash
# Trains scripts/{name}.py here and now. Arguments override its values; paths start from the project's folder.
set -eu
CDPATH='' cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")/.."
command -v torchrun >/dev/null || PATH="$PWD/.venv/bin:$PATH"
{exports}{words}exec {command} "$@"
"""


def _reading(recipe: str) -> str:
    """Return the lines that turn words before the first flag into `processes` and `flags`, and refuse others."""
    head = usage = ""
    if recipe in SIZES:
        cases = "".join(
            f"  {word}) processes={processes}; flags=({shlex.join(flags)}); shift ;;\n"
            for word, (processes, *flags) in SIZES[recipe].items()
        )
        usage = f"[{'|'.join(SIZES[recipe])}] "
        head = f'# The first word may be one of these sizes; flags follow it.\ncase "${{1:---}}" in\n{cases}esac\n'
    elif recipe in WORDS:
        usage = f"[{' '.join(name.upper().replace('-', '_') for name in WORDS[recipe])}] "
        head = f"""# Words before the first flag are {usage.strip()}.
for name in {" ".join(WORDS[recipe])}; do
  case "${{1:---}}" in -*) break ;; esac
  if [ "$name" = {_NPROC} ]; then
    case "$1" in gpu | [1-9] | [1-9][0-9]) processes=$1 ;; *) break ;; esac
  else
    flags+=("--$name=$1")
  fi
  shift
done
"""
    check = f'echo "$0: $1: is not expected; usage: $0 {usage}[--FLAG VALUE]" >&2; exit 2'
    return f'{head}case "${{1:---}}" in -*) ;; *) {check} ;; esac\n'


def check_shell_script(path: Path, text: str) -> None:
    """Refuse to replace a shell script with other content; HandEditedError if the file has other content, or is a link
    or not a file."""
    if path.is_symlink() or (path.exists() and (not path.is_file() or path.read_bytes() != text.encode())):
        raise HandEditedError(f"{path}: exists with other content; overwrite=True (--force) replaces it")
