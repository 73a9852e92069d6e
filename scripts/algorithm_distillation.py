"""algorithm_distillation: algorithm distillation, 2 processes x 16 sequences.

In the background, as the notebook does it:

    nbtools launch scripts/algorithm_distillation.py

In the foreground:

    CUDA_VISIBLE_DEVICES= torchrun --standalone --nproc-per-node=2 scripts/algorithm_distillation.py

On one process; flags override the values below:

    CUDA_VISIBLE_DEVICES= python scripts/algorithm_distillation.py --batch-size 8
"""

from nbtools import Launch
from nbtools.recipes import AlgorithmDistillationConfig
from nbtools.training.algorithm_distillation import main

launch = Launch(
    nproc_per_node=2,  # processes
    gpus=(),
    nnodes=1,  # machines
    cluster=None,
    torchrun=None,
    python=None,
    omp_num_threads=None,
    shutdown_timeout_s=60,
    max_restarts=0,
    stop_on=None,
    on_end=(),
    notify_on=None,
    notify_with=(),
)

config = AlgorithmDistillationConfig(
    batch_size=16,  # sequences per process
    gradient_accumulation_steps=1,  # forward passes
    epochs=20,
    max_steps=1000,
    learning_rate=0.002,
    lr_schedule="linear",
    decay_ratio=0.1,  # of all steps
    min_learning_rate=0.0,
    warmup_ratio=0.1,  # of all steps
    warmup_steps=None,
    ema_decay=0.0,
    weight_decay=0.01,
    adam_beta1=0.9,
    adam_beta2=0.99,
    gradient_clip=1.0,
    max_skipped_steps=20,
    test_fraction=0.5,  # of the held-out data
    precision="auto",
    strategy="ddp",
    gradient_checkpointing=False,
    compile=False,
    seed=0,
    deterministic=False,
    num_workers=0,  # processes per rank
    log_every=10,  # steps
    eval_every=250,  # steps
    checkpoint_every=250,  # steps
    checkpoint_epochs=False,
    keep_last=3,  # checkpoints
    keep_best=1,  # checkpoints
    save_dir=None,
    report_to="none",
    profile_steps=0,
    collective_timeout_min=10,  # minutes
    dataset=None,
    source_algorithm="annealed",
    num_histories=60,  # histories per goal
    num_episodes=20,
    source_episodes=None,
    grid_size=9,  # cells
    horizon=20,  # steps
    reward_once=False,
    test_share=0.1,  # of the cells
    test_goals=None,
    num_layers=2,
    num_heads=4,
    hidden_size=64,  # dimensions
    dropout=0.0,
    sequence_length=80,  # transitions
    compress_interval=None,  # transitions
    eval_batch_size=2048,  # sequences per process
    eval_rollouts=16,  # rollouts per goal
    eval_episodes=40,
    eval_samples=2000,  # windows
)

if __name__ == "__main__":
    main(config)

# Written by nbtools 0.1.0, checksum 60b9e8ca086d
