"""The exceptions nbtools raises: each message says what was given, what is allowed, and the next step."""


def shown(value: object, limit: int = 80) -> str:
    """Render a value that somebody gave for a message: its `repr`, cut if it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError) as error:  # an integer of more than 4300 digits, say
        return f"({type(value).__name__}: {error})"
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


class NbtoolsError(Exception):
    """Root of every error that nbtools raises on purpose."""


class ConfigError(NbtoolsError, ValueError):
    """A field of a config or of `Launch` has a value that is not allowed."""


class InvalidNameError(ConfigError):
    """A name cannot be used for a script or a run."""


class ProjectError(NbtoolsError):
    """The project root cannot be found, or its folders cannot be written."""


class ScriptError(NbtoolsError, ValueError):
    """A script is missing, does not parse, or is not plain enough to be read back as a config."""


class NotPlainError(ScriptError):
    """A script does more than assign literal values: it can be launched, but not read back as a config."""


class HandEditedError(ScriptError):
    """Writing would overwrite changes that a person made to a script."""


class LaunchError(NbtoolsError, RuntimeError):
    """A run cannot be started as asked; nothing was started."""


class RunNotFoundError(NbtoolsError, LookupError):
    """No run has this id or prefix, or several have."""


class RunFailed(NbtoolsError, RuntimeError):
    """A run that was waited for ended as FAILED or LOST."""


class FormatError(NbtoolsError, ValueError):
    """A file of a run directory was written by a newer nbtools."""


class CheckpointError(NbtoolsError):
    """A checkpoint is missing, incomplete or damaged."""


class DataError(NbtoolsError, ValueError):
    """The training data is missing, empty or malformed."""
