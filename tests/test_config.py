"""Configs: what is allowed, and what an error says."""

import math

import pytest
from pydantic import BaseModel

from nbtools.config import Launch, TrainConfig
from nbtools.errors import ConfigError, NbtoolsError
from nbtools.recipes import RECIPES, MLMPretrainingConfig
from nbtools.settings import complaints, errors_by_field, setting

EVERY_SETTINGS_CLASS = [Launch, *(recipe.config_class for recipe in RECIPES.values())]


def test_a_wrong_value_says_what_was_given_and_what_is_allowed() -> None:
    with pytest.raises(ConfigError, match=r"^learning_rate=-0\.1: must be > 0 \(MLMPretrainingConfig\)$"):
        MLMPretrainingConfig(learning_rate=-0.1)


def test_a_wrong_choice_lists_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"^precision='fp64': .*'auto', 'bf16', 'fp16', 'tf32' or 'fp32'"):
        MLMPretrainingConfig(precision="fp64")


def test_an_unknown_field_suggests_the_closest_one() -> None:
    with pytest.raises(ConfigError, match=r"'lerning_rate': MLMPretrainingConfig has no such field; did you mean lea"):
        MLMPretrainingConfig(lerning_rate=0.1)


def test_an_unknown_field_without_a_close_one_lists_the_fields() -> None:
    with pytest.raises(ConfigError, match=r"'zzz': Launch has no such field; it has nproc_per_node, gpus, "):
        Launch(zzz=1)


def test_several_wrong_values_are_all_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        MLMPretrainingConfig(batch_size=0, epochs=0)
    assert [line.split("=")[0] for line in str(caught.value).splitlines()] == ["batch_size", "epochs"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_has_to_be_finite(value: float) -> None:
    with pytest.raises(ConfigError, match="weight_decay="):
        MLMPretrainingConfig(weight_decay=value)


@pytest.mark.parametrize(
    ("field", "value"),
    [("batch_size", True), ("batch_size", "32"), ("batch_size", 32.5), ("learning_rate", "1e-3"), ("max_steps", "5")],
)
def test_a_value_of_another_type_is_refused_and_not_converted(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{field}="):
        MLMPretrainingConfig(**{field: value})


@pytest.mark.parametrize("field", ["batch_size", "epochs", "max_steps", "gradient_accumulation_steps", "log_every"])
def test_a_number_that_no_machine_could_count_to_is_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}=1000000000.*must be <= "):
        MLMPretrainingConfig(**{field: 10**4000})
    with pytest.raises(ConfigError, match=f"^{field}="):
        MLMPretrainingConfig(**{field: 10**5000})


@pytest.mark.parametrize(
    ("cls", "values"), [(MLMPretrainingConfig, {"batch_size": "x" * 10_000}), (Launch, {"x" * 10_000: 1})]
)
def test_a_long_value_or_field_is_shortened_in_the_message(cls: type, values: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        cls(**values)
    assert len(str(caught.value)) < 300


def test_a_config_cannot_be_changed_only_replaced() -> None:
    config = MLMPretrainingConfig(batch_size=8)
    with pytest.raises(ValueError, match="frozen"):
        config.batch_size = 16
    assert config.replace(batch_size=16).batch_size == 16
    assert config.batch_size == 8


def test_replace_validates_again() -> None:
    with pytest.raises(ConfigError, match="batch_size=0: must be >= 1"):
        MLMPretrainingConfig().replace(batch_size=0)


def test_every_error_is_an_nbtools_error_and_a_value_error() -> None:
    with pytest.raises(NbtoolsError):
        Launch(nproc_per_node=0)
    with pytest.raises(ValueError):
        Launch(nproc_per_node=0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"nproc_per_node": 3, "gpus": (0, 1)}, "at most one process per GPU"),
        ({"gpus": (1, 1)}, "each index may appear once"),
        ({"gpus": (-1,)}, "must be >= 0"),
    ],
)
def test_launch_refuses_gpus_that_cannot_work(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Launch(**values)


@pytest.mark.parametrize(
    ("gpus", "num_gpus", "count"), [(None, 8, 8), (None, 0, 1), ((), 8, 1), ((2, 5), 8, 2), (None, 1, 1)]
)
def test_gpu_means_a_process_per_gpu_of_the_machine(gpus: tuple[int, ...] | None, num_gpus: int, count: int) -> None:
    launch = Launch(nproc_per_node="gpu", gpus=gpus)
    assert launch.resolved(num_gpus) == Launch(nproc_per_node=count, gpus=gpus)
    assert launch.resolved(num_gpus).num_processes == count


@pytest.mark.parametrize("value", ["cpu", "4", True, 1.5, None])
def test_processes_are_a_number_or_gpu(value: object) -> None:
    with pytest.raises(ConfigError, match=r"nproc_per_node=.*: must be a number of processes, or gpu for one per GPU"):
        Launch(nproc_per_node=value)
    with pytest.raises(ConfigError, match="nproc_per_node=1025: must be <= 1024"):
        Launch(nproc_per_node=1025)


def test_cpu_only_allows_any_number_of_processes() -> None:
    assert Launch(nproc_per_node=4, gpus=()).gpus == ()


def test_gpus_may_be_a_list_and_become_a_tuple() -> None:
    assert Launch(gpus=[0, 1]).gpus == (0, 1)


def test_errors_by_field_gives_one_message_per_field_and_none_for_right_values() -> None:
    assert errors_by_field(MLMPretrainingConfig, {"batch_size": 0, "epochs": 2}) == {"batch_size": "must be >= 1"}
    assert errors_by_field(MLMPretrainingConfig, {}) == {}


def test_what_concerns_several_fields_has_no_field() -> None:
    message = errors_by_field(MLMPretrainingConfig, {"hidden_size": 66, "num_heads": 4})[""]
    assert message.startswith("hidden_size=66 with num_heads=4: ")
    assert complaints(MLMPretrainingConfig, {"hidden_size": 66})[""].endswith("(MLMPretrainingConfig)")


def test_head_dimension_two_is_allowed_and_an_odd_one_is_not() -> None:
    assert MLMPretrainingConfig(hidden_size=8, num_heads=4).hidden_size == 8
    with pytest.raises(ConfigError, match="multiple of 2 x num_heads = 8"):
        MLMPretrainingConfig(hidden_size=12, num_heads=4)


def test_a_pretrained_model_brings_its_own_shape() -> None:
    assert MLMPretrainingConfig(model_name="somewhere/model", hidden_size=12, num_heads=4).model_name


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
