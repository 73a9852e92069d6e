"""llm_gan: generator against judge, 2 processes x 128 sequences.

In the background, as the notebook does it:

    nbtools launch scripts/llm_gan.py

In the foreground:

    CUDA_VISIBLE_DEVICES= torchrun --standalone --nproc-per-node=2 scripts/llm_gan.py

On one process; flags override the values below:

    CUDA_VISIBLE_DEVICES= python scripts/llm_gan.py --batch-size 8
"""

from nbtools import Launch
from nbtools.recipes import LLMGANConfig
from nbtools.training.llm_gan import main

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

config = LLMGANConfig(
    batch_size=128,  # sequences per process
    gradient_accumulation_steps=1,  # forward passes
    epochs=10,
    max_steps=270,
    learning_rate=0.0003,
    lr_schedule="constant",
    decay_ratio=0.1,  # of all steps
    min_learning_rate=0.0,
    warmup_ratio=0.1,  # of all steps
    warmup_steps=None,
    ema_decay=0.0,
    weight_decay=0.01,
    adam_beta1=0.5,
    adam_beta2=0.999,
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
    eval_every=20,  # steps
    checkpoint_every=100,  # steps
    checkpoint_epochs=False,
    keep_last=3,  # checkpoints
    keep_best=1,  # checkpoints
    save_dir=None,
    report_to="none",
    profile_steps=0,
    collective_timeout_min=10,  # minutes
    dataset=None,
    text_col=None,
    prompt_cols=None,
    min_chars=100,  # characters
    max_chars=500,  # characters
    short_texts="refuse",
    clean="none",
    num_sequences=10000,
    num_symbols=30,
    tokenizer="words",
    vocab_size=2000,  # words
    model_name=None,
    judge_name=None,
    adapter="none",
    lora_rank=16,  # dimensions
    lora_alpha=32,
    lora_targets=None,
    num_layers=2,
    num_heads=4,
    hidden_size=64,  # dimensions
    dropout=0.0,
    keep_model_dropout=False,
    sequence_length=12,  # tokens
    prompt_length=32,  # tokens
    temperature=1.0,
    judging="scores",
    objective="adversarial",
    max_judge_tokens=16,
    generator_warmup_steps=10,
    judge_warmup_steps=100,
    judge_accuracy=0.8,  # of the pairs
    judge_steps=3,  # judge steps
    warmup_learning_rate=0.001,
    judge_learning_rate=0.001,
    discount=None,
    entropy_weight=0.005,
    freeze_generator=False,
    kl_to_start=True,
    texts_at_once=None,
    eval_samples=512,  # texts
)

if __name__ == "__main__":
    main(config)

# Written by nbtools 0.1.0, checksum 1dc5b834542c
