"""Keeps secrets out of launch.json, which other users may read: `secrets.json` of the run holds them (mode 0600).

A value is secret if its name says so (`--hf-token VALUE`, `api_key=VALUE`, `WANDB_API_KEY`) or if it looks like a key
of a known service. A wrong guess only hides a value: the processes of the run get the real ones.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nbtools.errors import NbtoolsError, shown
from nbtools.rundir.atomic import write_file
from nbtools.rundir.json_files import FORMAT, kept, read_json
from nbtools.rundir.rundir import RunDir

MASK = "***"
"""Stands for a secret in launch.json."""
NOTE = "secrets"
"""Key of launch.json with a sentence about the mask; absent without secrets."""
_SHORTEST = 6
_WORDS = ("resume", "config_values")
"""Fields of a program that are words."""
_PARTS = ("args", "argv", "env", "program")
_SENTENCE = f"{MASK} stands for a value that looks secret; secrets.json, readable by the run's user alone, holds it"

_NAME = re.compile(
    r"""
      secret | password | passwd | passphrase | credential      # anywhere
    | (?:^|[^a-z]) (?:token|key|auth) (?:[^a-z]|$)              # a word of its own: not tokenizer, monkey, author
    | (?:api|access|auth|private|hf|hub|wandb) (?:token|key) s? $
    """,
    re.VERBOSE,
)
_VALUE = re.compile(
    r"""
      \b(?:hf|api_org)_[A-Za-z0-9]{16,}
    | \bsk-[A-Za-z0-9_-]{16,}
    | \b(?:AKIA|ASIA)[A-Z0-9]{12,}
    | \bgh[oprsu]_[A-Za-z0-9]{20,} | \bgithub_pat_\w{20,} | \bglpat-[\w-]{16,}
    | \bxox[abprs]-[\w-]{10,} | \bAIza[\w-]{30,} | \bpypi-[\w-]{16,} | \bnpm_[A-Za-z0-9]{30,}
    | \beyJ[\w-]{8,2000}\.[\w-]{8}                             # JSON Web Token
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY
    | \b(?:Bearer|Basic)\ +\S{8,}
    | [a-z0-9+.-]://[^/\s:@]*:[^/\s@]+@                         # a password in a URL
    | (?i:password|passwd|secret|token|api_?key|credential)["']?\s*[:=]\s*["']?\S
    """,
    re.VERBOSE,
)
_AWS_SECRET = re.compile(r"(?=.*[a-z])(?=.*[A-Z])(?=.*[0-9])(?!/)[A-Za-z0-9/+]{40}")
_ASSIGNED = re.compile(r"([-+~]*+(?:[^=]*\.(?:ya?ml|json|toml):)?[A-Za-z_][\w.\-]*)=(.+)", re.DOTALL)
_HARMLESS = re.compile(r"(?i)[-+]?[0-9]{1,7}(?:\.[0-9]*)?|true|false|none|null|yes|no|")
_FLAG = re.compile(r"--?[A-Za-z][\w.\-]*")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def is_secret(name: str, value: str) -> bool:
    """Whether a value is secret, by its name or by itself; a small number or a truth value is not."""
    if _VALUE.search(value) or _AWS_SECRET.fullmatch(value):
        return True
    found = _NAME.search(_CAMEL.sub("_", name).lower())
    return found is not None and (not _HARMLESS.fullmatch(value) or "pass" in found[0])


def masked(args: Sequence[str], known: Collection[str] = ()) -> list[str]:
    """Return arguments with secrets replaced by `MASK`: `--token X`, `--token=X`, `token=X`, and keys of services.

    Args:
        args: a program's arguments.
        known: names that are not secret, such as the fields of a recipe.
    """
    found: list[str] = []
    for name, _, arg in _named(args, args):
        assigned = _ASSIGNED.fullmatch(arg)
        told_by = "" if name.lstrip("-+~").replace("-", "_") in known else name.rpartition(":")[2]
        if assigned is None and _FLAG.fullmatch(arg) and not _VALUE.search(arg):
            found.append(arg)
        elif is_secret(told_by, assigned[2] if assigned else arg):
            found.append(f"{name}={MASK}" if assigned else MASK)
        else:
            found.append(arg)
    return found


def unmasked(args: Sequence[str], before: Sequence[str]) -> list[str]:
    """Return arguments in which each `MASK` stands again for the secret of the same name in `before`.

    Raises:
        ValueError: there is no such secret, or there are fewer masks than secrets of a name, so that it is not known
            which of them are left.
    """
    secrets: dict[str, list[str]] = {}
    for name, shown_as, word in _named(masked(before), before):
        if shown_as != word:
            secrets.setdefault(name, []).append(word)
    found, used = [], set[str]()
    for name, shown_as, word in _named(args, args):
        if shown_as == MASK or shown_as == f"{name}={MASK}":
            if not secrets.get(name):
                raise ValueError(f"{word}: stands for a secret value{name and f' of {name}'}; type the value itself")
            word = secrets[name].pop(0)
            used.add(name)
        found.append(word)
    if unclear := sorted(name for name in used if secrets[name]):
        whose = f" of {unclear[0]}" if unclear[0] else ""
        raise ValueError(f"{MASK}: stands for one of several secret values{whose}; type the value itself")
    return found


def _named(masks: Sequence[str], args: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield of each argument its name (that before `=`, else the flag before it), its mask or itself, and itself."""
    flag = ""
    for mask, arg in zip(masks, args, strict=True):
        assigned = _ASSIGNED.fullmatch(arg)
        yield assigned[1] if assigned else flag, mask, arg
        flag = arg if _FLAG.fullmatch(arg) else ""


def shown_masked(value: object, limit: int = 80) -> str:
    """Return `shown(value)`; if it is the words of a command, their secrets are masked."""
    is_command = isinstance(value, tuple) and all(isinstance(word, str) for word in value)
    return shown(tuple(masked(value)) if is_command else value, limit)  # type: ignore[arg-type]


def masked_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables with secrets replaced by `MASK`."""
    return {name: MASK if is_secret(name, value) else value for name, value in environment.items()}


def part(run: RunDir, content: Mapping[str, Any], known: Collection[str] = ()) -> dict[str, Any]:
    """Return the content of a launch.json without its secrets, which are first written to secrets.json.

    Args:
        run: the run directory.
        content: `args`, `argv`, which ends with them, `env`, and `program`, among other keys.
        known: names that are not secret, such as the fields of a recipe.

    Raises:
        OSError: secrets.json cannot be written.
        NbtoolsError: the file system has no permissions that would hide secrets.json from other users.
    """
    args, argv, env = content["args"], content["argv"], content["env"]
    first = len(argv) - len(args)
    open_: dict[str, Any] = {"args": masked(args, known), "env": masked_environment(env)}
    open_["argv"] = [*argv[:first], *open_["args"]]
    if program := content.get("program"):
        open_["program"] = {**program, **{name: masked(program.get(name) or ()) for name in _WORDS}}
    secret = {name: content[name] for name in open_ if open_[name] != content[name]}
    if not secret:
        return dict(content)
    text = json.dumps({"format": FORMAT, **secret}, ensure_ascii=True, indent=1)
    try:
        write_file(run.secrets, f"{text}\n".encode(), mode=0o600)
    except PermissionError:
        raise NbtoolsError(
            f"{run.secrets}: cannot be hidden from other users on this file system, so the secret arguments are not "
            "recorded; pass them in the environment of the launch, or put runs/ on another disk"
        ) from None
    return {**content, **open_, NOTE: _SENTENCE}


def restored(run: RunDir, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a launch.json with its secrets.

    Raises:
        NbtoolsError: it has secrets, and this user cannot read them.
    """
    if NOTE not in content:
        return dict(content)
    secret = read_json(run.secrets)
    if secret is None:
        raise NbtoolsError(
            f"{run.id}: its arguments contain secrets, and {run.secrets} cannot be read: only the user who launched "
            "the run can resume it; launch the script with your own arguments, and --resume-from CHECKPOINT"
        )
    return {**content, **{name: secret[name] for name in _PARTS if name in secret}}


def secrets_of(run: RunDir) -> list[str]:
    """Return the secret values in a run's arguments and environment, the longest first.

    There are none for a user who cannot read secrets.json. Values of less than six characters are left out: what they
    are would be part of other words.
    """
    return kept(_secrets_in, run.secrets) or []


def _secrets_in(path: Path) -> list[str]:
    content = read_json(path) or {}
    program, env = content.get("program"), content.get("env")
    words = [content.get("args"), content.get("argv")]
    words += [program.get(name) for name in _WORDS] if isinstance(program, dict) else []
    found = [pair for part in words if isinstance(part, list) for pair in zip(masked(part), part, strict=True)]
    values = [word.removeprefix(mask.removesuffix(MASK)) for mask, word in found if mask != word]
    if isinstance(env, dict):
        values += [value for name, value in env.items() if is_secret(name, value)]
    return sorted({value for value in values if len(value) >= _SHORTEST}, key=len, reverse=True)


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return a text, such as a line that a program has printed, with `MASK` in the place of each secret."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text
