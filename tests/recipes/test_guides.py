"""The promises of five older guides, row by row: the test that shows each, or why it is done better or refused.

L is LLaDA fine-tuning, A Algorithm Distillation, O OccCANINE, M masked language model pretraining, G the LLM GAN.
Whoever used one of those programs finds here where its part has gone.
"""

import ast
import socket
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from nbtools.config import Launch
from nbtools.project import Project
from nbtools.recipes import RECIPES
from nbtools.rundir.json_files import read_json
from nbtools.rundir.rundir import RunDir, run_folders
from nbtools.script.script import write_script

TESTS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Row:
    """One promise: the tests that show it, and a word on what is different here."""

    promise: str
    tests: tuple[str, ...] = ()
    """As `folder/file.py::test`; without a file it is in this one."""
    better: str = ""
    """What nbtools does instead, or why it does not."""


def row(promise: str, *tests: str, better: str = "") -> Row:
    return Row(promise, tests, better)


GUIDES: dict[str, Row] = {
    # --- L: LLaDA fine-tuning ---------------------------------------------------------------------
    "L1": row(
        "DDP, distributed sampler, mixed precision with a loss scale, one or several processes found by themselves",
        "training/test_contract.py::test_ranks_and_accumulated_passes_do_the_step_of_the_joined_batch",
        "training/engine/test_worker.py::test_fp16_scales_the_loss_and_leaves_out_a_step_that_overflowed",
        "training/engine/test_sampler.py::test_a_step_has_the_same_samples_however_they_are_divided",
    ),
    "L2": row(
        "PyTorch with CUDA, NCCL chosen by itself",
        "launcher/test_launch.py::test_by_default_the_first_gpus_are_taken_one_per_process",
        "cli/test_doctor.py::test_nccl_is_told_with_its_version_and_a_build_without_it_is_no_error",
        better="torch 2.4 is the floor; without a GPU the same code runs on gloo",
    ),
    "L3": row(
        "a shell script that launches: number of GPUs, data set",
        "script/compat/test_aliases.py::test_sh_writes_an_executable_script_that_passes_its_arguments_on",
        "training/process/test_launchers.py::test_the_written_shell_script_trains_from_any_folder",
        better="nbtools new … --sh writes one; its arguments go on to the training",
    ),
    "L4": row("torchrun with addresses, ports and the old flags", "test_the_old_command_lines_train"),
    "L5": row("the same script and flags under plain python", "test_the_old_command_lines_train"),
    "L6": row(
        "reads WORLD_SIZE and RANK",
        "training/engine/test_worker.py::test_ranks_share_values_errors_and_the_decision_to_stop",
    ),
    "L7": row(
        "--data_dir --model_name --batch_size --epochs --learning_rate --save_dir --fp16 --no_fp16",
        "test_the_old_command_lines_train",
        "training/engine/test_flags.py::test_older_words_for_a_precision",
        better="fp32 is the default here: 16 bits are asked for, and a machine that is slower with them says so",
    ),
    "L8": row(
        "gradients are averaged, shards do not overlap, 16 bits are smaller and faster",
        "training/engine/test_sampler.py::test_an_epoch_shows_every_sample_at_most_once_and_the_next_one_shuffles_anew",
        "training/engine/test_precision_check.py::test_a_slower_precision_is_told_with_its_figure_and_the_alternative",
        better="faster is measured at the start of every run, never promised",
    ),
    "L9": row(
        "memory is batch x GPUs x model size; accumulate for large models",
        "training/masked_diffusion/test_train.py::test_preflight_says_what_llada_takes_and_who_has_to_allow_its_code",
        "training/test_contract.py::test_ranks_and_accumulated_passes_do_the_step_of_the_joined_batch",
        better="the guide forgets gradients and optimizer: preflight says 16 bytes per weight and process",
    ),
    "L10": row(
        "trouble: NCCL, a taken port, memory",
        "failures/test_known_errors.py::test_a_known_error_is_told_apart_in_words_with_what_to_do",
        "launcher/test_launch.py::test_torchrun_starts_although_its_usual_port_and_others_are_taken",
        "cli/test_doctor.py::test_a_taken_port_is_told_and_harms_nobody",
        better="turning --fp16 off against lack of memory, as the guide says, takes more of it: never told here",
    ),
    "L11": row("NCCL_DEBUG=INFO reaches the ranks", "test_the_callers_environment_reaches_every_rank"),
    "L12": row("several nodes by --nnodes, --node_rank, --master_addr", "test_two_nodes_started_by_hand_train_as_one"),
    "L13": row(
        "a banner: devices, model, batch per GPU and in all, epochs, rate, save directory, vocabulary, parameters",
        "test_the_banner_says_what_was_found",
    ),
    "L14": row(
        "resume from checkpoint_epoch_5.pt, with or without module.",
        "training/engine/test_initial_state.py::test_weights_of_an_old_checkpoint_are_loaded_and_everything_else_starts_anew",
        "training/engine/test_initial_state.py::test_weights_are_found_with_and_without_a_key_and_a_prefix",
    ),
    # --- A: Algorithm Distillation ----------------------------------------------------------------
    "A1": row(
        "accelerate config once, answers kept in a file of the user's home",
        "launcher/test_launch.py::test_by_default_the_first_gpus_are_taken_one_per_process",
        better="nothing to configure and no file in the home: processes and GPUs stand in the script's launch",
    ),
    "A2": row(
        "accelerate launch: --num_processes, --gpu_ids, --mixed_precision fp16",
        "training/engine/test_flags.py::test_a_flag_counts_more_than_accelerate_and_accelerate_more_than_the_script",
        "training/process/test_launchers.py::test_each_launcher_starts_the_shipped_script",
        better="its processes and devices arrive by torchrun's variables, its precision by a variable of its own; both "
        "hold, and so do --nproc-per-node and --gpus of nbtools launch",
    ),
    "A3": row(
        "torchrun; CUDA_VISIBLE_DEVICES=0,1 torchrun",
        "test_the_old_command_lines_train",
        "machine/test_devices.py::test_cuda_visible_devices_filters_and_orders_as_it_does_for_cuda",
    ),
    "A4": row("plain python is one process on the first GPU", "test_the_old_command_lines_train"),
    "A5": row(
        "a flat YAML: mixed_precision, gradient_accumulation_steps, train_batch_size, test_batch_size, num_workers, "
        "tf_n_embd, tf_n_layer, n_transit",
        "script/compat/test_aliases.py::test_the_old_config_of_algorithm_distillation_becomes_a_script_that_trains_as_long",
        "script/compat/test_aliases.py::test_an_old_flat_yaml_becomes_values_and_what_means_nothing_is_named_and_kept",
        better="nbtools new algorithm_distillation NAME --from-yaml FILE: what means something becomes a value of the "
        "script, what does not is named and kept as a comment; a flag of the same name works, too",
    ),
    "A6": row(
        "models, data and gradients are placed and shared out by themselves; bf16 needs Ampere",
        "training/test_contract.py::test_ranks_and_accumulated_passes_do_the_step_of_the_joined_batch",
        "training/engine/test_precision_check.py::test_a_slower_precision_is_told_with_its_figure_and_the_alternative",
        better="parameters are replicated, not distributed as the guide says; preflight counts them per process",
    ),
    "A7": row(
        "mixed precision is about twice as fast with half the memory",
        "training/engine/test_precision_check.py::test_the_slowdown_is_a_measured_ratio",
        better="measured where it runs: on a CPU without such instructions it is many times slower, and that is said",
    ),
    "A8": row(
        "accumulation of 4 x 512 is an effective 2048 per GPU",
        "training/test_contract.py::test_ranks_and_accumulated_passes_do_the_step_of_the_joined_batch",
        "launcher/test_findings.py::test_accumulation_is_part_of_the_batch",
    ),
    "A9": row(
        "checkpoints, logs, evaluation and progress from the main process; all ranks meet before a save",
        "launcher/test_launch.py::test_a_run_under_torchrun_is_recorded_whole",
        "training/engine/test_worker.py::test_ranks_wait_for_a_slow_save_and_listen_where_only_this_machine_reaches_them",
        better="evaluation is shared among the ranks and summed: none of them idles",
    ),
    "A10": row(
        "presets for 2, 4 and 8 GPUs",
        "recipes/test_recipes.py::test_the_presets_for_several_gpus_are_those_of_the_guide_for_algorithm_distillation",
        better="--preset 2gpu, 4gpu, 8gpu; the speed-ups that the guide promises for them are not",
    ),
    "A11": row(
        "against lack of memory: smaller batch, accumulation, smaller model, shorter context",
        "failures/test_known_errors.py::test_a_known_error_is_told_apart_in_words_with_what_to_do",
        better="the failure card names the settings, in an order that trains the same first",
    ),
    "A12": row(
        "a banner of 60 signs: processes, kind of distribution, precision, accumulation, device",
        "test_the_banner_says_what_was_found",
    ),
    "A13": row(
        "tensorboard --logdir runs, each row once",
        "training/outputs/test_tensorboard.py::test_every_metric_row_is_an_event",
    ),
    "A14": row(
        "trouble: memory, more GPUs that are slower, runs that differ, hangs, a checkpoint with module.",
        "failures/test_failure.py::test_a_timeout_names_the_rank_that_was_waited_for",
        "training/mlm_pretraining/test_train.py::test_a_resumed_run_ends_with_the_same_bits",
        "cli/test_doctor.py::test_nccl_is_told_with_its_version_and_a_build_without_it_is_no_error",
        "training/engine/test_initial_state.py::test_weights_are_found_with_and_without_a_key_and_a_prefix",
        better="deterministic=True is one field; checkpoints never have the prefix, old ones may",
    ),
    "A15": row(
        "several nodes by accelerate config, or sbatch",
        "test_two_nodes_started_by_hand_train_as_one",
        better="by torchrun's own options on each node; writing and submitting sbatch files is not done yet",
    ),
    "A16": row(
        "a table of hours by number and kind of GPUs",
        better="refused: it contradicts the guide's own figures and mixes kinds of GPUs; tests/benchmarks measures "
        "what runs here against a peer in the same process, and prints the ratio",
    ),
    "A17": row(
        "practices: mixed precision, nvidia-smi, begin with 2 GPUs, checkpoints, torch.profiler by time",
        "training/outputs/test_profiler.py::test_the_steps_after_the_fifth_are_profiled",
        "machine/test_devices.py::test_use_has_what_the_device_tells_and_no_more",
        better="GPU use is recorded beside the curves, profile_steps writes the trace and the table",
    ),
    "A18": row(
        "shell and Slurm scripts; a config changed in train.py and by launch flags",
        "training/process/test_launchers.py::test_the_written_shell_script_trains_from_any_folder",
        "training/engine/test_flags.py::test_every_field_of_the_config_is_a_flag",
        better="the script is the config: every value is a line in it, every flag overrides one; no sbatch file yet",
    ),
    "A19": row(
        "verify: all GPUs busy, the number of processes, replicas",
        "test_the_banner_says_what_was_found",
        better="the panel shows every rank's heartbeat and every GPU's use; doctor --all-reduce tries a collective",
    ),
    "A20": row(
        "easy, automatic, near-linear, existing code runs unchanged",
        "launcher/test_launch.py::test_a_foreign_script_outside_any_project_runs_in_its_own_folder",
        "data/test_corpus.py::test_bad_utf8_names_the_file_and_the_byte",
        better="speed-up is not promised but seen as tokens per second on the curve; files are UTF-8 throughout",
    ),
    # --- O: OccCANINE -----------------------------------------------------------------------------
    "O1": row(
        "CUDA, several GPUs, NCCL", "launcher/test_launch.py::test_by_default_the_first_gpus_are_taken_one_per_process"
    ),
    "O2": row(
        "finetune.py --dataset CSV --target-cols a b --save-path ./output --batch-size 128",
        "test_the_old_command_lines_train",
    ),
    "O3": row(
        "train_mixer.py --train-data a.csv b.csv --val-data v.csv --save-dir ./output --formatter hisco",
        "test_the_old_command_lines_train",
    ),
    "O4": row(
        "--distributed switches DDP on",
        "training/engine/test_flags.py::test_what_old_launchers_pass_is_ignored_with_a_note",
        better="accepted and needless: several processes are found by themselves",
    ),
    "O5": row(
        "python -m torch.distributed.launch for old torch, torchrun for new",
        "test_the_old_command_lines_train",
        better="both start the same script; --local-rank and --local_rank are accepted",
    ),
    "O6": row(
        "effective batch = batch x GPUs", "launcher/test_findings.py::test_it_says_everything_that_a_launch_means"
    ),
    "O7": row(
        "rank 0 saves the unwrapped model",
        "training/mlm_pretraining/test_train.py::test_the_checkpoint_is_a_model_that_anybody_can_load_and_measure",
    ),
    "O8": row(
        "logs and Weights & Biases from rank 0",
        "training/outputs/test_tensorboard.py::test_every_metric_row_is_an_event",
        better="rank0.log and metrics.jsonl; TensorBoard by report_to. No Weights & Biases: its variables pass through "
        "to scripts of your own, and metrics.jsonl is one line of code away from any service",
    ),
    "O9": row(
        "a distributed sampler",
        "training/engine/test_sampler.py::test_a_step_has_the_same_samples_however_they_are_divided",
    ),
    "O10": row("two nodes with addresses and port 29500", "test_two_nodes_started_by_hand_train_as_one"),
    "O11": row(
        "trouble: NCCL, single against several GPUs, memory",
        "training/test_contract.py::test_ranks_and_accumulated_passes_do_the_step_of_the_joined_batch",
        "failures/test_known_errors.py::test_a_known_error_is_told_apart_in_words_with_what_to_do",
        better="one process with the joined batch and two with half of it take the same steps",
    ),
    # --- M: masked language model pretraining -----------------------------------------------------
    "M1": row(
        "multi_gpu_configs.py list, and generate NAME, which writes an executable script",
        "cli/test_commands.py::test_recipes_and_presets_are_listed",
        "training/process/test_launchers.py::test_the_written_shell_script_trains_from_any_folder",
        better="nbtools presets, and nbtools new … --preset NAME --sh; every value of the preset reaches the training",
    ),
    "M2": row(
        "torchrun … --dataset hf --batch-size 32 --epochs 5 --lr 3e-5 --streaming true --max-samples 500k",
        "test_the_old_command_lines_train",
        "training/text/test_hub.py::test_the_library_is_asked_for_name_config_and_streaming",
    ),
    "M3": row(
        "run_multi_gpu_training.sh hf 32 5 3e-5 true",
        "training/process/test_launchers.py::test_the_written_shell_script_trains_from_any_folder",
        better="the shell script passes its flags on",
    ),
    "M4": row(
        "six presets by number and kind of GPUs",
        "recipes/test_recipes.py::test_a_gpu_preset_divides_its_total_batch_by_its_processes",
        "training/mlm_pretraining/test_train.py::test_every_value_of_a_preset_reaches_the_training",
    ),
    "M5": row("the options and their defaults; --local_rank is automatic", "test_the_old_command_lines_train"),
    "M6": row(
        "dependencies by hand: torch cu118, transformers, datasets, tqdm, matplotlib",
        "system/test_setup.py::test_a_fresh_clone_is_set_up_from_a_wheelhouse_alone",
        better="one command sets everything up, with versions that were tested together",
    ),
    "M7": row(
        "8 GB per GPU, 32 GB of memory, 50 GB of disk",
        "launcher/test_findings.py::test_the_disk_is_compared_with_what_the_run_will_keep",
        "cli/test_commands.py::test_doctor_reports_this_machine",
        better="preflight says what this very training takes (the guide's H200 has 141 GB, not 80)",
    ),
    "M8": row(
        "logs/CONFIG_training_DATE.log",
        "launcher/test_launch.py::test_a_run_under_torchrun_is_recorded_whole",
        better="runs/DATE_NAME/rank0.log, with everything else of the run beside it",
    ),
    "M9": row(
        "nvidia-smi, and a summary of the GPUs at the end",
        "machine/test_devices.py::test_use_has_what_the_device_tells_and_no_more",
        better="system.jsonl has use, memory and power of every GPU all along, and the panel shows them",
    ),
    "M10": row(
        "bars, losses of training and validation, time left, GPU use",
        "notebook/panel/test_panel.py::test_the_remaining_time_follows_the_recent_rate",
        better="curves instead of bars, in the notebook and in nbtools watch",
    ),
    "M11": row(
        "trouble: memory, NCCL, the port, permission to execute",
        "failures/test_known_errors.py::test_a_known_error_is_told_apart_in_words_with_what_to_do",
        "training/process/test_launchers.py::test_the_written_shell_script_trains_from_any_folder",
        better="--sh writes it executable; the port is always a free one",
    ),
    "M12": row(
        "tuning: 32-64 per GPU, mixed precision, streaming, shorter sequences, accumulation",
        "training/mlm_pretraining/test_train.py::test_bf16_learns_like_fp32",
        "training/text/test_disk_buffer.py::test_a_text_many_times_larger_is_tokenized_in_little_more_memory_than_importing_takes",
    ),
    "M13": row(
        "mlm_model.pth, tokenizer.json, mlm_training_history.json, training_history.png",
        "training/outputs/test_outputs.py::test_a_completed_training_leaves_its_model_its_history_and_its_picture",
    ),
    "M14": row(
        "6-8 times faster, linear scaling",
        better="refused as a promise: no figure without its benchmark (tests/benchmarks/bench_hf_trainer.py compares "
        "with transformers' Trainer in one process)",
    ),
    "M15": row(
        "a custom TrainingConfig(name, description, num_gpus, batch_size_per_gpu, …)",
        "test_config.py::test_every_field_has_help_that_ends_in_a_full_stop_and_a_valid_default",
        "script/test_script.py::test_config_to_script_to_config_is_the_identity",
        better="the form, --set, or a line in the script: all of its fields are there, validated",
    ),
    "M16": row("two nodes of 8 GPUs", "test_two_nodes_started_by_hand_train_as_one"),
    "M17": row(
        "support: look into logs, nvidia-smi, one GPU with --dataset imdb, device_count()",
        "cli/test_commands.py::test_doctor_reports_this_machine",
        "training/text/test_hub.py::test_the_library_is_asked_for_name_config_and_streaming",
        better="nbtools doctor prints what an issue report needs",
    ),
    # --- G: LLM GAN -------------------------------------------------------------------------------
    "G1": row(
        "a test of process group, all-reduce and DDP on two processes",
        "cli/test_commands.py::test_doctor_runs_a_collective_on_two_processes",
        better="nbtools doctor --all-reduce",
    ),
    "G2": row(
        "run_ddp_training.sh test, small, full",
        "test_the_presets_of_the_shell_script_of_the_gan",
        better="nbtools new llm_gan NAME --preset test, small or full; test needs no download and no GPU",
    ),
    "G3": row(
        "--batch_size 16 --epochs 5; --save_checkpoints --checkpoint_freq 10",
        "test_the_old_command_lines_train",
        "training/llm_gan/test_dataset.py::test_generator_and_judge_are_saved_every_so_many_steps_and_at_each_epoch_s_end",
        better="its data flags, too: --data_path, --min_story_length, --max_story_length",
    ),
    "G4": row(
        "no device_map: each process has its GPU, each model its DDP",
        "launcher/test_launch.py::test_by_default_the_first_gpus_are_taken_one_per_process",
        "training/test_contract.py::test_ranks_and_accumulated_passes_do_the_step_of_the_joined_batch",
        "training/llm_gan/test_dataset.py::test_two_ranks_with_a_judge_that_writes_take_the_step_of_one",
    ),
    "G5": row(
        "a distributed sampler that is told the epoch",
        "training/engine/test_sampler.py::test_an_epoch_shows_every_sample_at_most_once_and_the_next_one_shuffles_anew",
    ),
    "G6": row(
        "generation from a wrapped model",
        "training/text/test_sampling.py::test_texts_are_those_of_a_loop_that_keeps_nothing",
        "training/llm_gan/test_dataset.py::test_two_ranks_with_a_judge_that_writes_take_the_step_of_one",
        "training/llm_gan/test_llm_judge.py::test_what_it_writes_depends_on_the_pair_and_its_numbers_not_on_the_batch",
        better="the model inside writes, keeping keys and values: no forward pass that other ranks would wait for",
    ),
    "G7": row(
        "rank 0 logs, writes and evaluates; the underlying weights are saved",
        "training/mlm_pretraining/test_train.py::test_the_checkpoint_is_a_model_that_anybody_can_load_and_measure",
    ),
    "G8": row(
        "checkpoints every so many steps and every epoch, both models",
        "training/llm_gan/test_dataset.py::test_generator_and_judge_are_saved_every_so_many_steps_and_at_each_epoch_s_end",
        "training/llm_gan/test_train.py::test_a_resumed_run_ends_with_the_same_bits_in_every_stage",
        better="with both optimizers, so that the training goes on from there; each model is a folder of its own",
    ),
    "G9": row(
        "8 GPUs are 8 times faster", better="refused as a promise: measure it, the curve shows tokens per second"
    ),
    "G10": row(
        "nvidia-smi shows all GPUs busy",
        "machine/test_devices.py::test_use_has_what_the_device_tells_and_no_more",
        better="the panel shows it beside the curves",
    ),
    "G11": row(
        "trouble: NCCL, memory, a hang",
        "failures/test_known_errors.py::test_a_known_error_is_told_apart_in_words_with_what_to_do",
        "failures/test_failure.py::test_a_timeout_names_the_rank_that_was_waited_for",
    ),
    "G12": row(
        "debugging: one process; torchrun --log_level=INFO",
        "test_the_callers_environment_reaches_every_rank",
        "training/mlm_pretraining/test_train.py::test_plain_python_writes_the_whole_run_directory",
        better="torchrun has no --log_level; LOGLEVEL=INFO works and reaches it",
    ),
    "G13": row(
        "train_ddp.py, run_ddp_training.sh, clean_train.py, inference.py",
        "test_the_old_command_lines_train",
        "training/process/test_launchers.py::test_the_written_shell_script_trains_from_any_folder",
        "training/llm_gan/test_dataset.py::test_every_kind_of_texts_and_judges_trains_from_warm_up_into_the_game",
        better="one script for any number of processes, and --sh for a shell script; whoever wants to write with the "
        "generator loads checkpoints/STEP/model/generator as any model of transformers",
    ),
}


def test_all_seventy_five_rows_are_here() -> None:
    counts = {"L": 14, "A": 20, "O": 11, "M": 17, "G": 13}
    assert list(GUIDES) == [f"{guide}{number}" for guide, count in counts.items() for number in range(1, count + 1)]
    assert len(GUIDES) == 75


@lru_cache
def functions(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("key", GUIDES)
def test_a_row_names_tests_that_are_there_or_says_why_not(key: str) -> None:
    known = GUIDES[key]
    assert known.promise and (known.tests or known.better)
    for name in known.tests:
        file, _, test = name.rpartition("::")
        assert test in functions(file or "recipes/test_guides.py"), f"{key}: {name}"


# --- the old command lines, as their guides have them -----------------------------------------------


TINY: dict[str, dict[str, Any]] = {
    "mlm_pretraining": {"num_layers": 1, "num_heads": 2, "hidden_size": 16, "sequence_length": 16, "min_words": 1},
    "masked_diffusion": {
        "num_layers": 1,
        "num_heads": 2,
        "hidden_size": 16,
        "sequence_length": 16,
        "min_words": 1,
        "eval_draws": 8,
        "sample_texts": 1,
        "sample_length": 4,
    },
    "text_classification": {"num_layers": 1, "hidden_size": 16, "num_hash_buckets": 128, "num_decoder_layers": 1},
    "algorithm_distillation": {"num_heads": 2, "num_histories": 2, "eval_rollouts": 1, "eval_episodes": 8},
    "llm_gan": {
        "num_layers": 1,
        "num_heads": 2,
        "hidden_size": 16,
        "generator_warmup_steps": 0,
        "judge_warmup_steps": 1,
        "judge_accuracy": 0.0,
        "eval_samples": 8,
    },
}


@pytest.fixture
def old(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with a tiny script of each recipe, texts, and CSV files."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.chdir(project.root)
    (project.root / "texts").mkdir()
    for number in range(24):
        words = " ".join(f"w{(number + step * step) % 17}" for step in range(40))
        (project.root / "texts" / f"{number:02}.txt").write_text(words)
    for name, first in (("a", 0), ("b", 40), ("v", 80)):
        rows = [f"{title} {number},83110," for number, title in enumerate(["smith"] * 20, first)]
        rows += [f"{title} {number},61110,83110" for number, title in enumerate(["farmer"] * 20, first)]
        (project.root / f"{name}.csv").write_text("\n".join(["occ1,code1,code2", *rows]) + "\n")
    stories = [f"A tale,noir,Once upon a time there were {number} of them and they ran." for number in range(60)]
    (project.root / "stories.csv").write_text("\n".join(["title,genre,human_story", *stories]) + "\n")
    for key, values in TINY.items():
        config = RECIPES[key].config_class(**values, log_every=1, eval_every=2, checkpoint_every=2)
        write_script(config, f"tiny_{key}", Launch(nproc_per_node=2), project=project)
    return project


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


TORCHRUN = "-m torch.distributed.run"
OLD_LAUNCHER = "-m torch.distributed.launch"
ADDRESSES = "--nnodes=1 --node_rank=0 --master_addr=localhost --master_port={port}"
COMMANDS = {
    "L4": f"{TORCHRUN} --nproc_per_node=2 {ADDRESSES} {{masked_diffusion}} --data_dir texts "
    "--batch_size 1 --epochs 5 --fp16",
    "L5": "{masked_diffusion} --data_dir texts --batch_size 1 --epochs 5 --learning_rate 1e-5 --save_dir out --no_fp16",
    "M2": f"{TORCHRUN} --nproc_per_node=2 --master_port={{port}} {{mlm_pretraining}} --dataset texts --batch-size 4 "
    "--epochs 5 --lr 3e-5 --streaming true --max-samples 500k --local_rank 0",
    "O2": f"{OLD_LAUNCHER} --nproc_per_node=2 --master_port={{port}} {{text_classification}} --distributed "
    "--dataset a.csv --target-cols code1 code2 --save-path ./out --batch-size 8",
    "O3": f"{TORCHRUN} --nproc_per_node=2 --master_port={{port}} {{text_classification}} --train-data a.csv b.csv "
    "--val-data v.csv --save-dir ./out --batch-size 8 --formatter hisco",
    "A4": "{algorithm_distillation} --mixed_precision bf16 --train_batch_size 4 --test_batch_size 64 "
    "--gradient_accumulation_steps 2 --num_workers 1 --tf_n_embd 16 --tf_n_layer 1 --n_transit 40",
    "G3": f"{TORCHRUN} --nproc_per_node=2 --master_port={{port}} {{llm_gan}} --batch_size 16 --epochs 5 "
    "--save_checkpoints --checkpoint_freq 10 --data_path stories.csv --min_story_length 20 --max_story_length 40",
}
EXPECTED: dict[str, dict[str, Any]] = {
    "G3": {"batch_size": 16, "epochs": 5, "checkpoint_every": 10, "min_chars": 20, "max_chars": 40},
    "L4": {"dataset": "texts", "batch_size": 1, "epochs": 5, "precision": "fp16"},
    "L5": {"learning_rate": 1e-5, "save_dir": "out", "precision": "fp32"},
    "M2": {"dataset": "texts", "batch_size": 4, "learning_rate": 3e-5, "streaming": True, "max_samples": 500_000},
    "O2": {"dataset": "a.csv", "target_cols": ["code1", "code2"], "save_dir": "./out", "batch_size": 8},
    "O3": {"train_data": ["a.csv", "b.csv"], "val_data": "v.csv", "save_dir": "./out", "formatter": "hisco"},
    "A4": {"precision": "bf16", "batch_size": 4, "gradient_accumulation_steps": 2, "sequence_length": 40},
}


def command(key: str, *more: str) -> list[str]:
    scripts = {recipe: f"scripts/tiny_{recipe}.py" for recipe in TINY}
    return [sys.executable, *COMMANDS[key].format(port=free_port(), **scripts).split(), "--max_steps", "2", *more]


def run_of(project: Project) -> RunDir:
    (folder,) = run_folders(project.runs)
    return RunDir(folder)


@pytest.mark.slow
@pytest.mark.parametrize("key", COMMANDS)
def test_the_old_command_lines_train(old: Project, key: str) -> None:
    done = subprocess.run(command(key), capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    files = run_of(old)
    ended, resolved = read_json(files.finished) or {}, (read_json(files.config) or {})["config"]
    assert (ended["why"], ended["step"]) == ("completed", 2)
    assert {name: resolved[name] for name in EXPECTED[key]} == EXPECTED[key]
    if resolved["save_dir"] is not None:
        assert (old.root / "out" / "model" / "config.json").is_file()


def test_the_presets_of_the_shell_script_of_the_gan() -> None:
    recipe = RECIPES["llm_gan"]
    presets = {name: recipe.preset(name) for name in ("test", "small", "full")}
    assert [config.epochs for config, _ in presets.values()] == [5, 20, 100]
    assert [launch.nproc_per_node for _, launch in list(presets.values())[:2]] == [2, 4]
    assert recipe.presets["full"].nproc_per_node is None, "all GPUs that there are"
    assert presets["full"][0].checkpoint_every == 20
    assert presets["test"][0].model_dump()["model_name"] is None, "runs anywhere"
    for name in ("small", "full"):
        values = presets[name][0].model_dump()
        assert values["model_name"] == "meta-llama/Llama-3.2-1B-Instruct"
        assert (values["judging"], values["learning_rate"], values["precision"]) == ("verdicts", 1e-5, "bf16")
        assert values["batch_size"] * values["gradient_accumulation_steps"] == 32


@pytest.mark.slow
def test_the_banner_says_what_was_found(old: Project) -> None:
    done = subprocess.run(command("O3"), capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if len(line.split(maxsplit=1)) == 2)
    assert "=" * 60 in done.stdout
    assert lines["processes"].startswith("2, backend gloo") and lines["devices"].startswith("CPU")
    assert lines["batch"] == "8 per process x 1 accumulated x 2 processes = 16 samples per step"
    assert lines["precision"] == "fp32" and int(lines["parameters"].replace(",", "")) > 1000
    assert "a.csv, b.csv, v.csv" in lines["dataset"] and "vocabulary" in lines
    assert "save directory   ./out" in done.stdout


@pytest.mark.slow
def test_two_nodes_started_by_hand_train_as_one(old: Project) -> None:
    port, started = free_port(), []
    for node in range(2):
        words = f"{TORCHRUN} --nnodes=2 --node_rank={node} --nproc_per_node=1 --master_addr=localhost"
        words += f" --master_port={port} scripts/tiny_mlm_pretraining.py --dataset texts --batch_size 4 --max_steps 2"
        started.append(subprocess.Popen([sys.executable, *words.split()], stdout=subprocess.PIPE, text=True))
    try:
        said = [process.communicate(timeout=250)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0]
    files = run_of(old)
    assert (read_json(files.finished) or {})["step"] == 2
    assert (read_json(files.config) or {})["derived"]["world_size"] == 2
    assert "completed at step 2" in said[0] and "completed" not in said[1]


@pytest.mark.slow
def test_the_callers_environment_reaches_every_rank(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from nbtools.launcher.launch import launch

    script = project.scripts / "tells.py"
    script.write_text(
        "import os, pathlib\n"
        "text = os.environ['NCCL_DEBUG'] + ' ' + os.environ['LOGLEVEL']\n"
        "pathlib.Path(os.environ['NBTOOLS_RUN_DIR'], 'told-' + os.environ['RANK']).write_text(text)\n"
    )
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("LOGLEVEL", "INFO")
    run = launch(script, nproc_per_node=2, gpus=())
    run.wait(120)
    assert [(run.dir / f"told-{rank}").read_text() for rank in range(2)] == ["INFO INFO", "INFO INFO"]
    assert "Starting elastic_operator" in run.log(), "torchrun itself tells more"
