"""mlm_pretraining: masked language modelling, 2 processes x 16 sequences.

In the background, as the notebook does it:

    nbtools launch scripts/mlm_pretraining.py

In the foreground:

    CUDA_VISIBLE_DEVICES= torchrun --standalone --nproc-per-node=2 scripts/mlm_pretraining.py

On one process; flags override the values below:

    CUDA_VISIBLE_DEVICES= python scripts/mlm_pretraining.py --batch-size 8
"""

from nbtools import Launch
from nbtools.recipes import MLMPretrainingConfig
from nbtools.training.mlm_pretraining import main

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

config = MLMPretrainingConfig(
    batch_size=16,  # sequences per process
    gradient_accumulation_steps=1,  # forward passes
    epochs=20,
    max_steps=600,
    learning_rate=0.003,
    lr_schedule="linear",
    decay_ratio=0.1,  # of all steps
    min_learning_rate=0.0,
    warmup_ratio=0.1,  # of all steps
    warmup_steps=None,
    ema_decay=0.0,
    weight_decay=0.01,
    adam_beta1=0.9,
    adam_beta2=0.98,
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
    eval_every=100,  # steps
    checkpoint_every=200,  # steps
    checkpoint_epochs=False,
    keep_last=3,  # checkpoints
    keep_best=1,  # checkpoints
    save_dir=None,
    report_to="none",
    profile_steps=0,
    collective_timeout_min=10,  # minutes
    dataset=None,
    max_samples=None,  # documents
    streaming=True,
    tokenizer="words",
    model_name=None,
    adapter="none",
    lora_rank=16,  # dimensions
    lora_alpha=32,
    lora_targets=None,
    num_layers=2,
    num_heads=4,
    hidden_size=128,  # dimensions
    dropout=0.0,
    keep_model_dropout=False,
    add_special_tokens=True,
    sequence_length=64,  # tokens
    vocab_size=2000,  # tokens
    min_words=5,
    clean="none",
    special_tokens="text",
    mask_probability=0.15,
    eval_samples=2000,  # sequences
)

if __name__ == "__main__":
    main(config)

# Written by nbtools 0.1.0, checksum a3842dc9c533
