"""text_classification: text classification, 2 processes x 32 sequences.

In the background, as the notebook does it:

    nbtools launch scripts/text_classification.py

In the foreground:

    CUDA_VISIBLE_DEVICES= torchrun --standalone --nproc-per-node=2 scripts/text_classification.py

On one process; flags override the values below:

    CUDA_VISIBLE_DEVICES= python scripts/text_classification.py --batch-size 8
"""

from nbtools import Launch
from nbtools.recipes import TextClassificationConfig
from nbtools.training.text_classification import main

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

config = TextClassificationConfig(
    batch_size=32,  # sequences per process
    gradient_accumulation_steps=1,  # forward passes
    epochs=20,
    max_steps=400,
    learning_rate=0.002,
    lr_schedule="linear",
    decay_ratio=0.1,  # of all steps
    min_learning_rate=0.0,
    warmup_ratio=0.1,  # of all steps
    warmup_steps=None,
    ema_decay=0.0,
    weight_decay=0.01,
    adam_beta1=0.9,
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
    train_data=None,
    val_data=None,
    validation_share=0.1,  # of the texts
    text_col="occ1",
    lang_col=None,
    target_cols=None,
    label_separator=None,
    missing_labels=None,
    skip_unlabelled=False,
    clean="none",
    formatter=None,
    key=None,
    max_codes=2,
    model_name=None,
    adapter="none",
    lora_rank=16,  # dimensions
    lora_alpha=32,
    lora_targets=None,
    num_layers=2,
    num_heads=4,
    hidden_size=128,  # dimensions
    num_hash_buckets=1024,
    num_decoder_layers=2,
    num_decoder_heads=4,
    sequence_length=64,  # characters
    dropout=0.0,
    seq2seq_weight=0.5,
    flat_loss_scale=10.0,
    augmentation=0.3,  # of the texts
    unknown_lang=0.25,  # of the texts
    eval_samples=2000,  # texts
)

if __name__ == "__main__":
    main(config)

# Written by nbtools 0.1.0, checksum 2bd1c2d9f572
