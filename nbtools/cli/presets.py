"""The presets of a recipe as a table on the terminal."""

from nbtools.cli.output import print_table
from nbtools.launcher.checks.sizes import num_trainable_parameters
from nbtools.machine.devices import devices
from nbtools.recipes import Recipe

_SHAPE = ("num_layers", "num_heads", "hidden_size")
"""Config fields shown in the column MODEL."""


def print_presets(recipe: Recipe) -> None:
    """Print one line per preset of a recipe: model, batch size, epochs and use."""
    print(f"{recipe.key}: {recipe.title}")
    rows = [("", "PRESET", "MODEL", "PARAMETERS", "BATCH", "EPOCHS", "USE")]
    for name, preset in recipe.presets.items():
        config, launch = recipe.preset(name)
        shape = [str(getattr(config, field)) for field in _SHAPE if hasattr(config, field)]
        parameters, model_name = num_trainable_parameters(config), getattr(config, "model_name", None)
        batch, processes = config.effective_batch(1), launch.resolved(len(devices())).world_size
        model = "/".join(shape) if model_name is None else str(model_name)
        size = "-" if parameters is None else f"{parameters:,}"
        total = f"{batch} x {processes} = {batch * processes}"
        epochs = str(config.epochs) + (f", {config.max_steps:,} steps" if config.max_steps else "")
        rows.append(("", name, model, size, total, epochs, preset.description))
    print_table(rows, has_header=True)
    print("  MODEL is layers/heads/width, BATCH per process x processes = total")
