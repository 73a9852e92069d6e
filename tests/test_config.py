"""Configs: what is allowed, and what an error says."""

import math
from typing import Any

import pytest
from pydantic import BaseModel

from nbtools.config import Launch, TrainConfig
from nbtools.errors import ConfigError, NbtoolsError
from nbtools.recipes import RECIPES, MLMPretrainingConfig
from nbtools.settings import Settings, complaints, errors_by_field, setting

EVERY_SETTINGS_CLASS = [Launch, *(recipe.config_class for recipe in RECIPES.values())]


MLM = MLMPretrainingConfig


@pytest.mark.parametrize(
    ("cls", "values", "said"),
    [
        (MLM, {"learning_rate": -0.1}, r"learning_rate=-0\.1: must be > 0 \(MLMPretrainingConfig\)$"),
        (MLM, {"precision": "fp64"}, "precision='fp64': .*'auto', 'bf16', 'fp16', 'tf32' or 'fp32'"),
        (MLM, {"lerning_rate": 0.1}, "'lerning_rate': MLMPretrainingConfig has no such field; did you mean lea"),
        (Launch, {"zzz": 1}, "'zzz': Launch has no such field; it has nproc_per_node, gpus, "),
        *((MLM, {"weight_decay": value}, "weight_decay=") for value in (math.nan, math.inf, -math.inf)),
        *((MLM, {"batch_size": value}, "batch_size=") for value in (True, "32", 32.5, "x" * 10_000)),
        *((MLM, {name: value}, f"{name}=") for name, value in (("learning_rate", "1e-3"), ("max_steps", "5"))),
        (Launch, {"x" * 10_000: 1}, "'x+…'|'xxx"),
        (Launch, {"nproc_per_node": 3, "gpus": (0, 1)}, ".*at most one process per GPU"),
        (Launch, {"gpus": (1, 1)}, ".*each index may appear once"),
        (Launch, {"gpus": (-1,)}, ".*must be >= 0"),
        (Launch, {"nproc_per_node": 1025}, "nproc_per_node=1025: must be <= 1024"),
        *(
            (Launch, {"nproc_per_node": value}, "nproc_per_node=.*: must be a number of processes, or gpu for one per")
            for value in ("cpu", "4", True, 1.5, None)
        ),
        (MLM, {"hidden_size": 12, "num_heads": 4}, ".*multiple of 2 x num_heads = 8"),
    ],
)
def test_a_wrong_value_says_what_is_allowed(cls: type[Settings], values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^(?:{said})") as caught:
        cls(**values)
    assert len(str(caught.value)) < 400
    assert isinstance(caught.value, NbtoolsError) and isinstance(caught.value, ValueError)


def test_several_wrong_values_are_all_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        MLMPretrainingConfig(batch_size=0, epochs=0)
    assert [line.split("=")[0] for line in str(caught.value).splitlines()] == ["batch_size", "epochs"]


@pytest.mark.parametrize("field", ["batch_size", "epochs", "max_steps", "gradient_accumulation_steps", "log_every"])
def test_a_number_that_no_machine_could_count_to_is_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}=1000000000.*must be <= "):
        MLMPretrainingConfig(**{field: 10**4000})
    with pytest.raises(ConfigError, match=f"^{field}="):
        MLMPretrainingConfig(**{field: 10**5000})


def test_a_config_cannot_be_changed_only_replaced() -> None:
    config = MLMPretrainingConfig(batch_size=8)
    with pytest.raises(ValueError, match="frozen"):
        config.batch_size = 16
    assert config.replace(batch_size=16).batch_size == 16
    assert config.batch_size == 8
    with pytest.raises(ConfigError, match="batch_size=0: must be >= 1"):
        config.replace(batch_size=0)


@pytest.mark.parametrize(
    ("gpus", "num_gpus", "count"), [(None, 8, 8), (None, 0, 1), ((), 8, 1), ((2, 5), 8, 2), (None, 1, 1)]
)
def test_gpu_means_a_process_per_gpu_of_the_machine(gpus: tuple[int, ...] | None, num_gpus: int, count: int) -> None:
    launch = Launch(nproc_per_node="gpu", gpus=gpus)
    assert launch.resolved(num_gpus) == Launch(nproc_per_node=count, gpus=gpus)
    assert launch.resolved(num_gpus).num_processes == count


def test_errors_by_field_gives_one_message_per_wrong_field() -> None:
    assert errors_by_field(MLMPretrainingConfig, {"batch_size": 0, "epochs": 2}) == {"batch_size": "must be >= 1"}
    assert errors_by_field(MLMPretrainingConfig, {}) == {}


def test_what_concerns_several_fields_has_no_field() -> None:
    message = errors_by_field(MLMPretrainingConfig, {"hidden_size": 66, "num_heads": 4})[""]
    assert message.startswith("hidden_size=66 with num_heads=4: ")
    assert complaints(MLMPretrainingConfig, {"hidden_size": 66})[""].endswith("(MLMPretrainingConfig)")


@pytest.mark.promise("guide-M15")
@pytest.mark.parametrize("cls", EVERY_SETTINGS_CLASS)
def test_every_field_has_help_that_ends_in_a_full_stop_and_a_valid_default(cls: type[BaseModel]) -> None:
    for name, field in cls.model_fields.items():
        assert str(field.description).endswith("."), name
    cls()


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.key)
def test_no_config_field_shares_a_name_with_a_launch_setting(recipe: object) -> None:
    """Scripts show both side by side, and flags and differences name fields alone."""
    assert not set(Launch.model_fields) & set(recipe.config_class.model_fields)  # type: ignore[attr-defined]


def test_recipes_inherit_from_train_config_exactly_once() -> None:
    assert all(recipe.config_class.__bases__ == (TrainConfig,) for recipe in RECIPES.values())


def test_a_recorded_config_keeps_the_meaning_of_fields_that_it_lacks() -> None:
    class Later(TrainConfig):
        cleaning: str = setting("none", "Cleaning of the text.", before="light")

    assert Later().cleaning == "none"
    assert Later.recorded({"batch_size": 4}).cleaning == "light"
    assert Later.recorded({"cleaning": "none"}).cleaning == "none"
    assert Later.recorded({}).replace(batch_size=4).cleaning == "light"
