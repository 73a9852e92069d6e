"""Recipes: presets, sizes and schedules that agree with the real model and the real text."""

import contextlib
import os
from inspect import signature
from operator import attrgetter
from pathlib import Path
from typing import Any, get_args

import pytest
from split_corpus import read_documents, split_documents

from nbtools import recipes
from nbtools.config import TrainConfig
from nbtools.data import corpus
from nbtools.errors import ConfigError, DataError
from nbtools.launcher.checks.sizes import checkpoint_bytes, num_checkpoints_kept, num_trainable_parameters
from nbtools.launcher.checks.step_count import LARGEST_COUNTED_BYTES, Schedule, evaluation_in_words, schedule
from nbtools.notebook.form.form import ConfigForm
from nbtools.project import Project
from nbtools.recipes.built_models import SPECIAL_TOKENS, modernbert_settings
from nbtools.script.compat import aliases

MLM = recipes.RECIPES["mlm_pretraining"]
GPU_PRESETS = {  # processes, total batch, layers, heads, width, epochs, learning rate, documents
    "h200_8gpu_fast": (8, 512, 4, 4, 8, 3, 5e-5, 500_000),
    "h200_8gpu_standard": (8, 256, 6, 8, 16, 5, 3e-5, 1_000_000),
    "h200_8gpu_quality": (8, 128, 8, 12, 24, 10, 2e-5, 2_000_000),
    "4gpu_standard": (4, 128, 4, 4, 8, 5, 3e-5, 500_000),
    "2gpu_standard": (2, 64, 4, 4, 8, 5, 3e-5, 500_000),
    "1gpu_standard": (1, 16, 4, 4, 8, 5, 3e-5, 250_000),
}


def test_the_names_that_an_editor_completes_are_those_of_the_registry() -> None:
    assert get_args(recipes.RecipeKey) == tuple(recipes.RECIPES)
    assert get_args(recipes.PresetName) == tuple(
        dict.fromkeys(name for recipe in recipes.RECIPES.values() for name in recipe.presets)
    )
    shown = str(signature(ConfigForm))
    assert all(f"'{name}'" in shown for name in (*recipes.RECIPES, "cpu_demo")), "Shift-Tab in a notebook"


def test_one_key_names_recipe_and_module() -> None:
    for key, recipe in recipes.RECIPES.items():
        assert recipe.key == key
        assert recipe.module == f"nbtools.training.{key}"
        assert recipes.recipe_named(key) is recipe
        assert recipes.recipe_of(recipe.config_class()) is recipe


def test_an_unknown_recipe_or_preset_lists_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"recipe='mlm': .*mlm_pretraining"):
        recipes.recipe_named("mlm")
    with pytest.raises(ConfigError, match=r"preset='fast': mlm_pretraining has cpu_demo, h200_8gpu_fast, "):
        MLM.preset("fast")


def test_a_config_of_no_recipe_is_refused() -> None:
    with pytest.raises(ConfigError, match="TrainConfig: no recipe has this config class; use one of MLMPretraining"):
        recipes.recipe_of(TrainConfig())


def test_the_first_preset_runs_on_two_cpu_processes_and_takes_no_gpu() -> None:
    config, launch = MLM.preset(next(iter(MLM.presets)))
    assert (launch.nproc_per_node, launch.gpus, config.batch_size, config.precision) == (2, (), 16, "auto")


@pytest.mark.promise("guide-M4")
@pytest.mark.parametrize("name", GPU_PRESETS)
def test_a_gpu_preset_divides_its_total_batch_by_its_processes(name: str) -> None:
    config, launch = MLM.preset(name)
    assert isinstance(config, recipes.MLMPretrainingConfig)
    names = ("num_layers", "num_heads", "hidden_size", "epochs", "learning_rate", "max_samples")
    num_gpus = launch.num_processes
    assert GPU_PRESETS[name] == (num_gpus, config.batch_size * num_gpus, *attrgetter(*names)(config))
    assert (config.precision, config.warmup_ratio, config.sequence_length) == ("bf16", 0.1, 128)
    assert (config.weight_decay, config.gradient_clip) == (0.01, 1.0)
    assert (config.dataset, config.streaming, config.min_words) == ("hf", True, 5)


def test_every_preset_is_listed_here_and_can_be_built() -> None:
    assert set(MLM.presets) == {"cpu_demo", *GPU_PRESETS, "base_8gpu", "base_1gpu"}
    kinds = {name: getattr(MLM.preset(name)[0], "tokenizer") for name in MLM.presets}  # noqa: B009
    assert kinds == {name: "byte_bpe" if name.startswith("base") else "words" for name in MLM.presets}


def test_samples_of_a_vocabulary_of_bytes_are_counted_by_the_training() -> None:
    assert schedule(recipes.MLMPretrainingConfig(tokenizer="byte_bpe", vocab_size=260), 1) is None


@pytest.mark.parametrize("name", ["cpu_demo", *GPU_PRESETS])
def test_every_preset_of_the_guide_can_train_on_the_built_in_text(name: str) -> None:
    config, launch = MLM.preset(name)
    found = schedule(config.replace(dataset=None), launch.nproc_per_node)
    assert found is not None
    assert found.total_steps >= 1
    assert (schedule(config, launch.nproc_per_node) is None) == (name != "cpu_demo"), "the others are downloaded"


@pytest.mark.parametrize(
    "config",
    [
        *(MLM.preset(name)[0] for name in GPU_PRESETS),
        MLM.preset("base_1gpu")[0].replace(num_layers=1),
        recipes.MLMPretrainingConfig(num_layers=1, num_heads=1, hidden_size=2, vocab_size=16),
        recipes.MLMPretrainingConfig(num_layers=3, num_heads=7, hidden_size=42, vocab_size=999, dropout=0.1),
    ],
    ids=lambda config: f"{config.num_layers}L{config.num_heads}H{config.hidden_size}D{config.vocab_size}",
)
@pytest.mark.parametrize("vocab_size", [None, 57])
def test_the_parameter_count_is_that_of_the_real_model(
    config: recipes.MLMPretrainingConfig, vocab_size: int | None
) -> None:
    import torch
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    settings = ModernBertConfig(**modernbert_settings(config, vocab_size or config.vocab_size))
    with torch.device("meta"):  # shapes without memory
        model = ModernBertForMaskedLM(settings)
    assert num_trainable_parameters(config, vocab_size) == sum(weights.numel() for weights in model.parameters())
    assert settings.layer_types == ["full_attention"] * config.num_layers
    assert {value["rope_theta"] for value in settings.rope_parameters.values()} == {10_000.0}
    assert model.decoder.weight is model.get_input_embeddings().weight


@pytest.mark.promise("guide-A10")
@pytest.mark.parametrize(
    ("name", "num_gpus", "batch_size", "accumulation", "precision"),
    [("2gpu", 2, 512, 1, "fp16"), ("4gpu", 4, 256, 1, "bf16"), ("8gpu", 8, 128, 2, "bf16")],
)
def test_the_presets_for_several_gpus_are_those_of_the_guide_for_algorithm_distillation(
    name: str, num_gpus: int, batch_size: int, accumulation: int, precision: str
) -> None:
    config, launch = recipes.RECIPES["algorithm_distillation"].preset(name)
    assert isinstance(config, recipes.AlgorithmDistillationConfig)
    assert (launch.nproc_per_node, config.precision, config.num_workers) == (num_gpus, precision, 4)
    assert (config.batch_size, config.gradient_accumulation_steps) == (batch_size, accumulation)
    assert (config.eval_batch_size, config.hidden_size, config.num_layers, config.sequence_length) == (2048, 64, 4, 240)
    assert (config.learning_rate, config.lr_schedule, config.eval_every) == (3e-4, "cosine", 1000)
    found = schedule(config, num_gpus)
    assert found is not None
    assert (found.total_steps, found.effective_batch) == (50_000, num_gpus * batch_size * accumulation)
    assert config.warmup_ratio * found.total_steps == 1000


def test_the_special_tokens_have_the_ids_that_the_model_is_told() -> None:
    settings = modernbert_settings(recipes.MLMPretrainingConfig(), 2000)
    assert SPECIAL_TOKENS == ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")
    assert [settings[f"{name}_token_id"] for name in ("pad", "cls", "sep")] == [0, 1, 2]


@pytest.mark.parametrize("hidden_size", [64, 256])
def test_a_checkpoint_is_as_large_as_was_said(tmp_path: Path, hidden_size: int) -> None:
    import torch
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    from nbtools.run.checkpoints import Progress
    from nbtools.training.engine import checkpoint
    from nbtools.training.process import random_state

    config = recipes.MLMPretrainingConfig(num_layers=3, num_heads=4, hidden_size=hidden_size, vocab_size=2000)
    model = ModernBertForMaskedLM(ModernBertConfig(**modernbert_settings(config, config.vocab_size)))
    optimizer = torch.optim.AdamW(model.parameters())
    tokens_BT = torch.zeros(1, 8, dtype=torch.long)
    model(input_ids=tokens_BT, labels=tokens_BT).loss.backward()
    optimizer.step()
    path = checkpoint.save(
        tmp_path / "run" / "checkpoints",
        Progress(step=1),
        write_model=model.save_pretrained,
        state={"optimizer": optimizer.state_dict()["state"]},
        rank_states=[{"random": random_state.random_state()}] * 2,
        metrics={},
        attempt=1,
        keep_last=1,
    )
    real_bytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    said_bytes = checkpoint_bytes(config)
    assert said_bytes is not None
    assert said_bytes <= real_bytes <= 1.01 * said_bytes + 100_000  # random states and the names of the weights


@pytest.mark.parametrize(
    ("values", "most"),
    [
        ({"keep_last": 3, "keep_best": 1}, 5),
        ({"keep_last": 3, "keep_best": 0}, 4),
        ({"keep_last": 1_000_000, "max_steps": 600, "checkpoint_every": 200, "checkpoint_epochs": False}, 3),
        ({"keep_last": 1_000_000, "max_steps": 601, "checkpoint_every": 200, "epochs": 20}, 24),
        ({"keep_last": 3, "max_steps": 7}, 2),
    ],
)
def test_no_more_checkpoints_are_kept_than_are_saved(values: dict[str, Any], most: int) -> None:
    config = recipes.MLMPretrainingConfig(**values)
    assert num_checkpoints_kept(config) == most


def test_a_pretrained_model_has_a_size_and_a_schedule_that_only_the_training_knows() -> None:
    config = recipes.MLMPretrainingConfig(model_name="somewhere/model")
    assert num_trainable_parameters(config) is None
    assert checkpoint_bytes(config) is None
    assert schedule(config, 2) is None


# --- schedule ---


@pytest.mark.parametrize("key", recipes.RECIPES)
def test_every_value_that_changes_the_size_of_the_model_is_said_to_shape_it(key: str) -> None:
    cls = recipes.RECIPES[key].config_class
    config, _ = recipes.RECIPES[key].preset(next(iter(recipes.RECIPES[key].presets)))
    shaping = {name for name in cls.model_fields if cls.shapes_model(name)}
    assert shaping, "a checkpoint of this recipe goes with any config"
    for name, value in config:
        if type(value) is int:
            with contextlib.suppress(ConfigError):
                changed = config.replace(**{name: 2 * value})
                assert num_trainable_parameters(changed) == num_trainable_parameters(config) or name in shaping, name


def test_another_number_of_heads_makes_another_model_of_the_same_size() -> None:
    config = recipes.MLMPretrainingConfig(num_heads=2)
    assert num_trainable_parameters(config) == num_trainable_parameters(config.replace(num_heads=4))
    assert recipes.MLMPretrainingConfig.shapes_model("num_heads")
    assert not recipes.MLMPretrainingConfig.shapes_model("sequence_length")


def test_an_epoch_counts_only_full_steps() -> None:
    config = recipes.MLMPretrainingConfig(batch_size=4, gradient_accumulation_steps=2, epochs=3)
    assert Schedule.of(config, 3, 100, 10) == Schedule(100, 10, 24, 4, 12, 10)


@pytest.mark.promise("safety-evaluation")
@pytest.mark.parametrize("key", ["mlm_pretraining", "text_classification", "algorithm_distillation"])
def test_an_evaluation_measures_2000_samples_and_in_older_configs_all(key: str) -> None:
    config = recipes.RECIPES[key].config_class()
    assert Schedule.of(config, 1, 100_000, 11_250).held_out.startswith("2,000 of 11,250 evaluation samples: ")
    assert Schedule.of(config, 1, 100_000, 400).held_out.startswith("400 evaluation samples: ")
    recorded = {name: value for name, value in config if name != "eval_samples"}
    assert Schedule.of(type(config).recorded(recorded), 1, 100_000, 11_250).num_evaluated == 11_250


def test_eval_samples_of_masked_diffusion_are_its_draws() -> None:
    assert aliases.assigned(recipes.MaskedDiffusionConfig, ["eval_samples=64"]) == {"eval_draws": 64}
    assert Schedule.of(recipes.MaskedDiffusionConfig(eval_draws=64), 1, 1000, 100).held_out.startswith(
        "64 of 100 evaluation"
    )


@pytest.mark.promise("safety-test")
@pytest.mark.parametrize("key", recipes.RECIPES)
def test_older_configs_have_no_test_and_what_chooses_the_checkpoint_is_said(key: str) -> None:
    config = recipes.RECIPES[key].config_class()
    assert type(config).recorded(config.model_dump(exclude={"test_fraction"})).test_fraction == 0
    assert config.test_fraction == 0.5
    small = Schedule.of(config, 1, 100_000, 300, 200)
    metric = "highest eval/return_last" if key == "algorithm_distillation" else "lowest eval/loss"
    assert (
        small.held_out
        == f"300 evaluation samples: the {metric} chooses the best checkpoint, and 200 test samples measure it"
    )
    assert (small.num_test_samples, small.num_tested) == (200, 200)
    assert small.checkpoint_chosen_by == f"evaluation: {metric}"
    without = Schedule.of(config, 1, 100_000, 300).held_out
    assert without == (
        f"300 evaluation samples: the {metric} chooses the best checkpoint, which they also measure; no test samples"
    )
    counted_later = evaluation_in_words(config)
    assert counted_later.startswith(f"evaluations measure at most {config.num_evaluated(10**9):,} held-out samples; ")
    assert counted_later.endswith(f"the {metric} chooses the best checkpoint")


@pytest.mark.promise("safety-test")
@pytest.mark.parametrize("key", recipes.RECIPES)
def test_the_test_takes_nothing_of_the_training(key: str, project: Project) -> None:
    config = recipes.RECIPES[key].config_class(**({"dataset": "topics"} if key == "llm_gan" else {}))
    with_test, without = (
        schedule(config.replace(test_fraction=fraction), 1, root=project.root) for fraction in (0.5, 0.0)
    )
    assert with_test is not None and without is not None
    assert with_test.num_train_samples == without.num_train_samples
    held_out = with_test.num_eval_samples + with_test.num_test_samples
    assert without.num_eval_samples - 1 <= held_out <= without.num_eval_samples
    assert 0.3 * held_out < with_test.num_test_samples < 0.7 * held_out


def test_the_base_presets_are_a_modernbert_base() -> None:
    for name, num_gpus in (("base_8gpu", 8), ("base_1gpu", 1)):
        config, launch = MLM.preset(name)
        assert (config.effective_batch(launch.nproc_per_node), launch.nproc_per_node) == (512, num_gpus)
        assert num_trainable_parameters(config) == 149_372_240
    assert all("as in the older program" in MLM.presets[name].description for name in GPU_PRESETS)


def test_max_steps_ends_earlier_and_never_later() -> None:
    config = recipes.MLMPretrainingConfig(batch_size=10, epochs=2)
    assert Schedule.of(config.replace(max_steps=5), 1, 100, 10).total_steps == 5
    assert Schedule.of(config.replace(max_steps=50), 1, 100, 10).total_steps == 20


def test_too_few_samples_are_an_error_that_says_what_to_do() -> None:
    config, said = recipes.MLMPretrainingConfig(batch_size=4), "4 per process x 1 accumulated x 2 processes = 8; lower"
    with pytest.raises(DataError, match=f"^7 training samples .* {said}"):
        Schedule.of(config, 2, 7, 10)
    with pytest.raises(DataError, match="no full sample is left to evaluate on"):
        Schedule.of(config, 1, 7, 0)


def test_the_schedule_counts_what_the_corpus_holds() -> None:
    config = recipes.MLMPretrainingConfig(sequence_length=32, min_words=7)
    train, evaluation = split_documents(read_documents(None, 7))
    found = schedule(config, 2)
    assert found is not None
    assert found.num_train_samples == sum(len(corpus.words(text)) + 1 for text in train) // 32
    held_out = sum(len(corpus.words(text)) + 1 for text in evaluation) // 32
    assert held_out - 1 <= found.num_eval_samples + found.num_test_samples <= held_out


def test_the_schedule_notices_that_a_file_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    config = recipes.MLMPretrainingConfig(dataset="text.txt", batch_size=1, sequence_length=8)
    counts = []
    for num_lines in (200, 400):
        file.write_text("one two three four five six seven\n\n" * num_lines)
        found = schedule(config, 1, root=tmp_path)
        assert found is not None
        counts.append(found.num_train_samples)
    assert counts[1] > 1.8 * counts[0]


def test_a_dataset_too_large_to_count_at_once_is_left_to_the_training(tmp_path: Path) -> None:
    file = tmp_path / "large.txt"
    file.touch()
    os.truncate(file, LARGEST_COUNTED_BYTES + 1)
    assert schedule(recipes.MLMPretrainingConfig(dataset=str(file)), 1) is None
