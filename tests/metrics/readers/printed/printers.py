r"""What real programs print while they train, with the points that a reader must find in it.

The formats are those of the named programs' sources and documentation; numbers and order of events are ours. `\r`
stands where a progress bar rewrites its line.
"""

from dataclasses import dataclass, field

BAR = "█████     "


@dataclass(frozen=True)
class Printer:
    """The output of one program, and its points: metric -> [(step, value), ...]."""

    name: str
    text: str
    points: dict[str, list[tuple[int, float]]]
    counts: str = "step"
    """What the steps are: `step`, `epoch`, or `row` where the program prints no counter."""
    never: tuple[str, ...] = field(default=())
    """Words that no metric's name may contain."""


def bar(step: int, total: int, text: str = "", postfix: str = "") -> str:
    """A tqdm bar after a carriage return."""
    label = f"{text}: " if text else ""
    tail = f", {postfix}" if postfix else ""
    percent = 100 * step // total
    return f"\r{label}{percent:3d}%|{BAR}| {step}/{total} [00:{step % 60:02d}<00:30,  2.01it/s{tail}]"


def lines(*parts: str) -> str:
    return "".join(part + "\n" for part in parts)


def hf(step: int, total: int, row: str) -> str:
    """What transformers' `ProgressCallback` prints: the bar is erased, the row written, the bar drawn again."""
    return f"\r{' ' * 70}\r{row}\n\n{bar(step, total)}"


PRINTERS = [
    Printer(
        "nanoGPT",
        lines(
            "tokens per iteration will be: 491,520",
            "number of parameters: 29.94M",
            "num decayed parameter tensors: 50, with 124,354,560 parameters",
            "step 0: train loss 10.9915, val loss 10.9898",
            "iter 0: loss 10.9907, time 8141.32ms, mfu -100.00%",
            "iter 10: loss 9.1213, time 246.10ms, mfu 17.22%",
            "step 20: train loss 7.5002, val loss 7.6001",
            "saving checkpoint to out",
            "iter 20: loss 7.5100, time 244.02ms, mfu 17.30%",
        ),
        {
            "train/loss": [(0, 10.9915), (20, 7.5002)],
            "train/batch_loss": [(0, 10.9907), (10, 9.1213), (20, 7.51)],
            "eval/loss": [(0, 10.9898), (20, 7.6001)],
            "train/mfu": [(0, -100.0), (10, 17.22), (20, 17.3)],
        },
    ),
    Printer(
        "Megatron-LM",
        lines(
            " [2026-11-20 10:00:01] iteration       10/     500 | consumed samples:          160 | elapsed time per "
            "iteration (ms): 812.1 | learning rate: 1.500E-05 | global batch size:    16 | lm loss: 1.063021E+01 | "
            "loss scale: 1.0 | grad norm: 2.531 | number of skipped iterations:   0 | number of nan iterations:   0 |",
            " [2026-11-20 10:00:09] iteration       20/     500 | consumed samples:          320 | elapsed time per "
            "iteration (ms): 801.0 | learning rate: 3.000E-05 | global batch size:    16 | lm loss: 9.812345E+00 | "
            "loss scale: 1.0 | grad norm: 1.902 | number of skipped iterations:   0 | number of nan iterations:   0 |",
            "-" * 99,
            " validation loss at iteration 20 | lm loss value: 9.700000E+00 | lm loss PPL: 1.631760E+04 | ",
            "-" * 99,
        ),
        {
            "train/loss": [(10, 10.63021), (20, 9.812345)],
            "train/learning_rate": [(10, 1.5e-5), (20, 3e-5)],
            "train/grad_norm": [(10, 2.531), (20, 1.902)],
            "eval/loss": [(20, 9.7)],
            "eval/perplexity": [(20, 16317.6)],
        },
        never=("skipped", "nan", "of"),
    ),
    Printer(
        "GPT-NeoX",
        lines(
            "[2026-11-20 10:00:01,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[0.0001, 0.0001]"
            ", mom=[[0.9, 0.95], [0.9, 0.95]]",
            "steps: 10 loss: 9.8712 iter time (s): 0.512 samples/sec: 7.811",
            " samples/sec: 7.812 | iteration       10/     320 | elapsed time per iteration (ms): 512.0 | learning "
            "rate: 1.000E-04 | approx flops per GPU: 11.2TFLOPS | lm_loss: 9.871200E+00 | loss scale: 65536.0 | number "
            "of skipped iterations:   0 | number of nan iterations:   0 |",
            "[2026-11-20 10:00:07,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=20, skipped=0, lr=[0.0002, 0.0002]"
            ", mom=[[0.9, 0.95], [0.9, 0.95]]",
            "steps: 20 loss: 8.1000 iter time (s): 0.509 samples/sec: 7.850",
        ),
        {"train/loss": [(10, 9.8712), (20, 8.1)], "train/learning_rate": [(10, 1e-4), (20, 2e-4)]},
        never=("number",),
    ),
    Printer(
        "fairseq",
        lines(
            "2026-11-20 10:00:01 | INFO | train_inner | epoch 001:    100 / 250 loss=12.51, nll_loss=12.1, ppl=4392.1, "
            "wps=31012.5, ups=8.12, wpb=3818, bsz=128, num_updates=100, lr=1.25e-05, gnorm=2.9, clip=0, "
            "train_wall=12, gb_free=10.1, wall=14",
            "2026-11-20 10:00:13 | INFO | train_inner | epoch 001:    200 / 250 loss=10.22, nll_loss=9.9, ppl=955.4, "
            "wps=31000.1, ups=8.10, wpb=3820, bsz=128, num_updates=200, lr=2.5e-05, gnorm=1.8, clip=0, "
            "train_wall=12, gb_free=10.1, wall=26",
            "2026-11-20 10:00:20 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 9.8 | nll_loss 9.1 | "
            "ppl 548.7 | wps 80011 | wpb 3012 | bsz 96 | num_updates 250",
            "2026-11-20 10:00:33 | INFO | train_inner | epoch 002:     50 / 250 loss=9.15, nll_loss=8.5, ppl=362.0, "
            "wps=31000.1, ups=8.10, wpb=3820, bsz=128, num_updates=300, lr=3.75e-05, gnorm=1.5, clip=0, "
            "train_wall=12, gb_free=10.1, wall=39",
        ),
        {
            "train/loss": [(100, 12.51), (200, 10.22), (300, 9.15)],
            "train/learning_rate": [(100, 1.25e-5), (200, 2.5e-5), (300, 3.75e-5)],
            "eval/loss": [(250, 9.8)],
            "eval/perplexity": [(250, 548.7)],
        },
    ),
    Printer(
        "fairseq --log-format json",
        lines(
            '2026-11-20 10:00:01 | INFO | train_inner | {"epoch": 1, "update": 0.4, "loss": "12.51", "ppl": "4392.1", '
            '"num_updates": "100", "lr": "1.25e-05", "wall": "14"}',
            '2026-11-20 10:00:13 | INFO | train_inner | {"epoch": 1, "update": 0.8, "loss": "10.22", "ppl": "955.4", '
            '"num_updates": "200", "lr": "2.5e-05", "wall": "26"}',
        ),
        {"train/loss": [(100, 12.51), (200, 10.22)], "train/learning_rate": [(100, 1.25e-5), (200, 2.5e-5)]},
    ),
    Printer(
        "DeepSpeed-Chat",
        lines(
            "[2026-11-20 10:00:01,123] [INFO] [timer.py:199:stop] epoch=0/micro_step=10/global_step=10, "
            "RunningAvgSamplesPerSec=31.2, CurrSamplesPerSec=30.9, MemAllocated=4.1GB, MaxMemAllocated=9.2GB",
            "Epoch: 0, Step: 10, Rank: 0, loss = 2.4375",
            "Epoch: 0, Step: 20, Rank: 0, loss = 2.1875",
            "***** Evaluating perplexity, Epoch 1/2 *****",
            "ppl: 7.5, loss: 2.0149",
        ),
        {"train/loss": [(10, 2.4375), (20, 2.1875)], "eval/perplexity": [(20, 7.5)], "eval/loss": [(20, 2.0149)]},
        never=("rank",),
    ),
    Printer(
        "HF Trainer 4",
        lines("Map: 100%|██████████| 1000/1000 [00:01<00:00, 810.2 examples/s]")
        + "\r  0%|          | 0/60 [00:00<?, ?it/s]"
        + bar(4, 60)  # tqdm draws at most ten times a second
        + hf(10, 60, "{'loss': 2.3456, 'grad_norm': 1.25, 'learning_rate': 4.5e-05, 'epoch': 0.5}")
        + bar(19, 60)
        + hf(20, 60, "{'loss': 2.1, 'grad_norm': 1.5, 'learning_rate': 4e-05, 'epoch': 1.0}")
        + "\n\r  0%|          | 0/12 [00:00<?, ?it/s]\x1b[A"
        + "\n"
        + bar(12, 12)
        + "\x1b[A"
        + hf(20, 60, "{'eval_loss': 2.05, 'eval_runtime': 1.1, 'eval_samples_per_second': 90.0, 'epoch': 1.0}")
        + "\n\r                   \r\x1b[A"
        + hf(30, 60, "{'loss': 1.9, 'grad_norm': 1.1, 'learning_rate': 3.5e-05, 'epoch': 1.5}")
        + bar(60, 60)
        + hf(60, 60, "{'train_runtime': 30.1, 'train_samples_per_second': 33.2, 'train_loss': 2.01, 'epoch': 3.0}")
        + "\n"
        + lines("***** train metrics *****", "  epoch                    =        3.0")
        + lines("  train_loss               =       2.01", "  train_runtime            = 0:00:30.10", "")
        + lines("***** eval metrics *****", "  eval_loss                =       2.00", "  perplexity    =     7.3891"),
        {
            "train/loss": [(10, 2.3456), (20, 2.1), (30, 1.9)],
            "train/learning_rate": [(10, 4.5e-5), (20, 4e-5), (30, 3.5e-5)],
            "train/grad_norm": [(10, 1.25), (20, 1.5), (30, 1.1)],
            "eval/loss": [(20, 2.05), (60, 2.0)],
            "eval/perplexity": [(60, 7.3891)],
        },
    ),
    Printer(
        "HF Trainer 5, without a bar",
        lines(
            "***** Running training *****",
            "  Num examples = 1,000",
            "  Num Epochs = 3",
            "  Total optimization steps = 60",
            "{'loss': '2.3456', 'grad_norm': '1.25', 'learning_rate': '4.5e-05', 'epoch': '0.5'}",
            "{'loss': '2.1', 'grad_norm': '1.5', 'learning_rate': '4e-05', 'epoch': '1'}",
            "{'eval_loss': '2.05', 'eval_runtime': '1.1', 'epoch': '1'}",
            "{'loss': '1.9', 'grad_norm': '1.1', 'learning_rate': '3.5e-05', 'epoch': '1.5'}",
        ),
        {
            "train/loss": [(10, 2.3456), (20, 2.1), (30, 1.9)],
            "train/learning_rate": [(10, 4.5e-5), (20, 4e-5), (30, 3.5e-5)],
            "eval/loss": [(20, 2.05)],
        },
    ),
    Printer(
        "HF Trainer, neither a bar nor a total",
        lines(
            "{'loss': 2.3456, 'learning_rate': 4.5e-05, 'epoch': 0.5}",
            "{'loss': 2.1, 'learning_rate': 4e-05, 'epoch': 1.0}",
            "{'loss': 1.9, 'learning_rate': 3.5e-05, 'epoch': 1.5}",
        ),
        {"train/loss": [(1, 2.3456), (2, 2.1), (3, 1.9)], "train/epoch": [(1, 0.5), (2, 1.0), (3, 1.5)]},
        counts="row",
    ),
    Printer(
        "TRL",
        bar(5, 50)
        + hf(
            5,
            50,
            "{'loss': 0.6931, 'grad_norm': 3.5, 'learning_rate': 9e-07, 'rewards/chosen': 0.01, 'rewards/rejected': "
            "-0.02, 'rewards/accuracies': 0.5, 'rewards/margins': 0.03, 'logps/chosen': -210.5, 'epoch': 0.1}",
        )
        + hf(
            10,
            50,
            "{'loss': 0.65, 'grad_norm': 3.1, 'learning_rate': 8e-07, 'rewards/chosen': 0.05, 'rewards/rejected': "
            "-0.1, 'rewards/accuracies': 0.75, 'rewards/margins': 0.15, 'logps/chosen': -209.1, 'epoch': 0.2}",
        ),
        {
            "train/loss": [(5, 0.6931), (10, 0.65)],
            "train/rewards_margins": [(5, 0.03), (10, 0.15)],
            "train/rewards_chosen": [(5, 0.01), (10, 0.05)],
        },
    ),
    Printer(
        "LLaMA-Factory",
        lines(
            "[INFO|trainer.py:2414] 2026-11-20 10:00:01,123 >>   Total optimization steps = 300",
            "[INFO|trainer.py:2415] 2026-11-20 10:00:01,124 >>   Number of trainable parameters = 20,185,088",
        )
        + hf(10, 300, "{'loss': 1.1, 'grad_norm': 0.5, 'learning_rate': 4.8e-05, 'epoch': 0.1}"),
        {"train/learning_rate": [(10, 4.8e-5)], "train/loss": [(10, 1.1)]},
    ),
    Printer(
        "axolotl",
        lines("[2026-11-20 10:00:01,123] [INFO] [axolotl.train.train:118] [PID:4242] [RANK:0] Starting trainer...")
        + bar(1, 40)
        + hf(
            1,
            40,
            "{'loss': 1.7012, 'grad_norm': 0.9, 'learning_rate': 2e-05, 'memory/max_active (GiB)': 7.1, 'epoch': 0.03}",
        )
        + hf(
            2,
            40,
            "{'loss': 1.6001, 'grad_norm': 0.8, 'learning_rate': 4e-05, 'memory/max_active (GiB)': 7.1, 'epoch': 0.05}",
        ),
        {"train/loss": [(1, 1.7012), (2, 1.6001)], "train/learning_rate": [(1, 2e-5), (2, 4e-5)]},
    ),
    Printer(
        "Lightning's tqdm bar",
        lines("  | Name  | Type   | Params", "0 | model | Linear | 7.9 K ", "7.9 K     Trainable params")
        + bar(50, 100, "Epoch 0", "v_num=3, train_loss=0.812")
        + bar(100, 100, "Epoch 0", "v_num=3, train_loss=0.701")
        + "\n"
        + bar(5, 10, "Validation DataLoader 0")
        + bar(100, 100, "Epoch 0", "v_num=3, train_loss=0.701, val_loss=0.655")
        + bar(50, 100, "Epoch 1", "v_num=3, train_loss=0.602, val_loss=0.655")
        + bar(100, 100, "Epoch 1", "v_num=3, train_loss=0.511, val_loss=0.655")
        + "\n`Trainer.fit` stopped: `max_epochs=2` reached.\n",
        {"train/loss": [(50, 0.812), (100, 0.701), (150, 0.602), (200, 0.511)]},
        never=("v_num",),
    ),
    Printer(
        "Lightning's rich bar",
        lines(
            "Epoch 0/1 \x1b[38;2;98;6;224m━━━━━━\x1b[0m 50/100 \x1b[2m0:00:05 • 0:00:05\x1b[0m 9.81it/s v_num: 0.000 "
            "train_loss: 0.812",
            "Epoch 1/1 \x1b[38;2;98;6;224m━━━━━━\x1b[0m 50/100 \x1b[2m0:00:05 • 0:00:05\x1b[0m 9.81it/s v_num: 0.000 "
            "train_loss: 0.612",
        ),
        {"train/loss": [(50, 0.812), (150, 0.612)]},
    ),
    Printer(
        "Lightning's test table",
        lines("step 10 loss 0.5")
        + lines(
            "┏━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━┓",
            "┃   Test metric   ┃  DataLoader 0  ┃",
            "┡━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━┩",
            "│    test_acc     │ 0.912000000476 │",
            "│    test_loss    │ 0.291000008583 │",
            "└─────────────────┴────────────────┘",
        ),
        {"train/loss": [(10, 0.5)], "test/accuracy": [(10, 0.912000000476)], "test/loss": [(10, 0.291000008583)]},
    ),
    Printer(
        "Keras",
        lines("Epoch 1/2")
        + "\r\x1b[1m 469/938\x1b[0m \x1b[32m━━━━━━━━━━\x1b[0m\x1b[37m━━━━━━━━━━\x1b[0m \x1b[1m1s\x1b[0m 2ms/step - "
        "accuracy: 0.8012 - loss: 0.6712"
        + "\r\x1b[1m938/938\x1b[0m \x1b[32m━━━━━━━━━━━━━━━━━━━━\x1b[0m\x1b[37m\x1b[0m \x1b[1m2s\x1b[0m 2ms/step - "
        "accuracy: 0.8800 - loss: 0.4100 - val_accuracy: 0.9500 - val_loss: 0.1700\n"
        + lines("Epoch 2/2")
        + "\r\x1b[1m938/938\x1b[0m \x1b[32m━━━━━━━━━━━━━━━━━━━━\x1b[0m\x1b[37m\x1b[0m \x1b[1m2s\x1b[0m 2ms/step - "
        "accuracy: 0.9600 - loss: 0.1300 - val_accuracy: 0.9700 - val_loss: 0.1000\n",
        {
            "train/loss": [(469, 0.6712), (938, 0.41), (1876, 0.13)],
            "train/accuracy": [(469, 0.8012), (938, 0.88), (1876, 0.96)],
            "eval/loss": [(938, 0.17), (1876, 0.1)],
            "eval/accuracy": [(938, 0.95), (1876, 0.97)],
        },
    ),
    Printer(
        "Keras 2",
        lines(
            "Epoch 1/3",
            "60/60 - 3s - loss: 1.2034 - acc: 0.5612 - val_loss: 0.9011 - val_acc: 0.6801 - 3s/epoch - 52ms/step",
            "Epoch 2/3",
            "60/60 - 2s - loss: 0.8034 - acc: 0.7012 - val_loss: 0.7011 - val_acc: 0.7301 - 2s/epoch - 33ms/step",
        ),
        {
            "train/loss": [(60, 1.2034), (120, 0.8034)],
            "eval/loss": [(60, 0.9011), (120, 0.7011)],
            "eval/accuracy": [(60, 0.6801), (120, 0.7301)],
        },
    ),
    Printer(
        "fastai",
        lines(
            "epoch     train_loss  valid_loss  accuracy  time    ",
            "0         0.812345    0.612345    0.701     00:10     ",
            "1         0.512345    0.412345    0.851     00:09     ",
        ),
        {
            "train/loss": [(0, 0.812345), (1, 0.512345)],
            "eval/loss": [(0, 0.612345), (1, 0.412345)],
            "train/accuracy": [(0, 0.701), (1, 0.851)],
        },
        counts="epoch",
    ),
    Printer(
        "Ultralytics",
        lines(
            "Starting training for 2 epochs...",
            "",
            "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size",
        )
        + "\r        1/2      2.18G      1.212      2.881      1.241         74        640:  50%|█████     | 2/4 "
        "[00:01<00:01,  1.9it/s]"
        + "\r        1/2      2.18G      1.102      2.701      1.211         44        640: 100%|██████████| 4/4 "
        "[00:02<00:00,  1.9it/s]\n"
        + "\r                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100%|"
        "██████████| 2/2 [00:00<00:00,  3.1it/s]\n"
        + lines(
            "                   all        128        929      0.671      0.541      0.611      0.451",
            "",
            "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size",
        )
        + "\r        2/2      2.18G      1.002      2.501      1.201         61        640: 100%|██████████| 4/4 "
        "[00:02<00:00,  1.9it/s]\n"
        + lines(
            "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100%|██████████| "
            "2/2 [00:00<00:00,  3.1it/s]",
            "                   all        128        929      0.691      0.561      0.631      0.471",
        ),
        {
            "train/box_loss": [(1, 1.102), (2, 1.002)],
            "train/cls_loss": [(1, 2.701), (2, 2.501)],
            "eval/map50": [(1, 0.611), (2, 0.631)],
            "eval/map50_95": [(1, 0.451), (2, 0.471)],
        },
        counts="epoch",
    ),
    Printer(
        "stable-baselines3",
        lines(
            "Using cpu device",
            "---------------------------------",
            "| rollout/           |          |",
            "|    ep_len_mean     | 22.1     |",
            "|    ep_rew_mean     | 21.5     |",
            "| time/              |          |",
            "|    fps             | 1175     |",
            "|    iterations      | 1        |",
            "|    time_elapsed    | 1        |",
            "|    total_timesteps | 2048     |",
            "---------------------------------",
            "------------------------------------------",
            "| rollout/                |              |",
            "|    ep_len_mean          | 27.4         |",
            "|    ep_rew_mean          | 27.2         |",
            "| time/                   |              |",
            "|    fps                  | 901          |",
            "|    iterations           | 2            |",
            "|    time_elapsed         | 4            |",
            "|    total_timesteps      | 4096         |",
            "| train/                  |              |",
            "|    approx_kl            | 0.0081234    |",
            "|    loss                 | 6.51         |",
            "------------------------------------------",
        ),
        {
            "train/rollout_ep_rew_mean": [(2048, 21.5), (4096, 27.2)],
            "train/loss": [(4096, 6.51)],
            "train/approx_kl": [(4096, 0.0081234)],
        },
    ),
    Printer(
        "CleanRL",
        lines(
            "global_step=128, episodic_return=[21.]", "SPS: 512", "global_step=307, episodic_return=[34.]", "SPS: 540"
        ),
        {"train/episodic_return": [(128, 21.0), (307, 34.0)]},
    ),
    Printer(
        "RLlib, Tune's table",
        lines(
            "+-----------------------------+------------+---------------+--------+------------------+------+----------+",
            "| Trial name                  | status     | loc           |   iter |   total time (s) |   ts |   reward |",
            "|-----------------------------+------------+---------------+--------+------------------+------+----------|",
            "| PPO_CartPole-v1_4242a_00000 | RUNNING    | 127.0.0.1:999 |      1 |           3.1012 | 4000 |  22.1102 |",
            "+-----------------------------+------------+---------------+--------+------------------+------+----------+",
            "+-----------------------------+------------+---------------+--------+------------------+------+----------+",
            "| Trial name                  | status     | loc           |   iter |   total time (s) |   ts |   reward |",
            "|-----------------------------+------------+---------------+--------+------------------+------+----------|",
            "| PPO_CartPole-v1_4242a_00000 | RUNNING    | 127.0.0.1:999 |      2 |           6.2012 | 8000 |  61.5102 |",
            "+-----------------------------+------------+---------------+--------+------------------+------+----------+",
        ),
        {"train/reward": [(1, 22.1102), (2, 61.5102)]},
    ),
    Printer(
        "timm",
        lines(
            "Train: 0 [   0/100 (  0%)]  Loss: 6.932 (6.93)  Time: 1.201s,  106.57/s  (1.201s,  106.57/s)  LR: 1.000e-05"
            "  Data: 0.512 (0.512)",
            "Train: 0 [  50/100 ( 50%)]  Loss: 6.871 (6.90)  Time: 0.201s,  636.57/s  (0.251s,  509.57/s)  LR: 1.000e-05"
            "  Data: 0.002 (0.012)",
            "Test: [   0/10]  Time: 0.812 (0.812)  Loss:   6.801 ( 6.801)  Acc@1:   1.562 (  1.562)  Acc@5:   4.688 (  "
            "4.688)",
            "Test: [  10/10]  Time: 0.112 (0.202)  Loss:   6.711 ( 6.761)  Acc@1:   2.562 (  2.062)  Acc@5:   5.688 (  "
            "5.188)",
            "Train: 1 [   0/100 (  0%)]  Loss: 6.701 (6.70)  Time: 0.401s,  319.57/s  (0.401s,  319.57/s)  LR: 2.000e-04"
            "  Data: 0.212 (0.212)",
            "Train: 1 [  50/100 ( 50%)]  Loss: 6.601 (6.65)  Time: 0.201s,  636.57/s  (0.251s,  509.57/s)  LR: 2.000e-04"
            "  Data: 0.002 (0.012)",
        ),
        {
            "train/loss": [(0, 6.932), (50, 6.871), (100, 6.701), (150, 6.601)],
            "train/learning_rate": [(0, 1e-5), (50, 1e-5), (100, 2e-4), (150, 2e-4)],
            "test/loss": [(100, 6.761)],
            "test/accuracy": [(100, 2.062)],
        },
    ),
    Printer(
        "torchvision references",
        lines(
            "Epoch: [0]  [  0/500]  eta: 0:10:01  lr: 0.1  img/s: 21.3  loss: 6.9412 (6.9412)  acc1: 0.0000 (0.0000)  "
            "acc5: 3.1250 (3.1250)  time: 1.2001  data: 0.7001  max mem: 3213",
            "Epoch: [0]  [ 10/500]  eta: 0:08:01  lr: 0.1  img/s: 81.3  loss: 6.8412 (6.9012)  acc1: 3.1250 (1.0000)  "
            "acc5: 6.2500 (5.1250)  time: 0.9001  data: 0.1001  max mem: 3213",
            "Epoch: [0] Total time: 0:07:30",
            "Test:   [ 0/50]  eta: 0:00:30  loss: 6.1012 (6.1012)  acc1: 6.2500 (6.2500)  acc5: 18.7500 (18.7500)  "
            "time: 0.6001  data: 0.5001  max mem: 3213",
            "Test:  Acc@1 5.120 Acc@5 17.300",
            "Epoch: [1]  [  0/500]  eta: 0:09:01  lr: 0.05  img/s: 23.3  loss: 6.2412 (6.2412)  acc1: 6.2500 (6.2500)  "
            "acc5: 9.3750 (9.3750)  time: 1.1001  data: 0.6001  max mem: 3213",
        ),
        {
            "train/loss": [(0, 6.9412), (10, 6.8412), (500, 6.2412)],
            "train/learning_rate": [(0, 0.1), (10, 0.1), (500, 0.05)],
            "test/accuracy": [(10, 5.12)],
            "test/loss": [(10, 6.1012)],
        },
    ),
    Printer(
        "DETR",
        lines(
            "Epoch: [0]  [ 90/100]  eta: 0:00:09  lr: 0.000100  class_error: 77.12  loss: 31.1201 (33.2201)  loss_ce: "
            "4.1201 (4.4201)  time: 0.9101  data: 0.0101  max mem: 5120",
            "Averaged stats: lr: 0.000100  class_error: 81.02  loss: 29.1201 (32.0201)  loss_ce: 4.0201 (4.3201)",
            "Epoch: [1]  [  0/100]  eta: 0:02:09  lr: 0.000100  class_error: 71.12  loss: 28.1201 (28.1201)  loss_ce: "
            "3.8201 (3.8201)  time: 1.2101  data: 0.4101  max mem: 5120",
        ),
        {"train/loss": [(90, 31.1201), (100, 28.1201)], "train/loss_ce": [(90, 4.1201), (100, 3.8201)]},
    ),
    Printer(
        "PyTorch ImageNet example",
        lines(
            "=> creating model 'resnet18'",
            "Epoch: [0][   1/5005]\tTime  9.123 ( 9.123)\tData  5.102 ( 5.102)\tLoss 7.0011e+00 (7.0011e+00)\tAcc@1   "
            "0.00 (  0.00)\tAcc@5   0.39 (  0.39)",
            "Epoch: [0][  11/5005]\tTime  0.223 ( 1.123)\tData  0.002 ( 0.502)\tLoss 6.9811e+00 (7.0101e+00)\tAcc@1   "
            "0.39 (  0.11)\tAcc@5   1.17 (  0.67)",
            "Test: [  1/196]\tTime  4.811 ( 4.811)\tLoss 5.9112e+00 (5.9112e+00)\tAcc@1   3.12 (  3.12)\tAcc@5  10.94 ("
            " 10.94)",
            " *   Acc@1 3.602 Acc@5 11.004",
            "Epoch: [1][   1/5005]\tTime  8.123 ( 8.123)\tData  5.002 ( 5.002)\tLoss 5.8011e+00 (5.8011e+00)\tAcc@1   "
            "4.30 (  4.30)\tAcc@5  12.89 ( 12.89)",
        ),
        {
            "train/loss": [(1, 7.0011), (11, 6.9811), (5006, 5.8011)],
            "test/loss": [(11, 5.9112)],
            "test/accuracy": [(11, 3.602)],
        },
    ),
    Printer(
        "PyTorch MNIST example",
        lines(
            "Train Epoch: 1 [0/60000 (0%)]\tLoss: 2.300024",
            "Train Epoch: 1 [640/60000 (1%)]\tLoss: 1.150213",
            "Train Epoch: 1 [59520/60000 (99%)]\tLoss: 0.081201",
            "",
            "Test set: Average loss: 0.0501, Accuracy: 9830/10000 (98%)",
            "",
            "Train Epoch: 2 [0/60000 (0%)]\tLoss: 0.051201",
            "Train Epoch: 2 [640/60000 (1%)]\tLoss: 0.031201",
        ),
        {
            "train/loss": [(0, 2.300024), (640, 1.150213), (59520, 0.081201), (60000, 0.051201), (60640, 0.031201)],
            "test/loss": [(60000, 0.0501)],
            "test/accuracy": [(60000, 0.983)],
        },
    ),
    Printer(
        "PyTorch quickstart tutorial",
        lines(
            "Epoch 1",
            "-------------------------------",
            "loss: 2.302988  [   64/60000]",
            "loss: 2.291982  [ 6464/60000]",
            "Test Error: ",
            " Accuracy: 51.9%, Avg loss: 2.146820 ",
            "",
            "Epoch 2",
            "-------------------------------",
            "loss: 2.162988  [   64/60000]",
            "loss: 2.151982  [ 6464/60000]",
        ),
        {
            "train/loss": [(64, 2.302988), (6464, 2.291982), (60064, 2.162988), (66464, 2.151982)],
            "test/loss": [(6464, 2.14682)],
            "test/accuracy": [(6464, 51.9)],
        },
    ),
    Printer(
        "PyTorch CIFAR-10 tutorial",
        lines(
            "[1,  2000] loss: 2.185",
            "[1,  4000] loss: 1.832",
            "[2,  2000] loss: 1.402",
            "[2,  4000] loss: 1.372",
            "Finished Training",
            "Accuracy of the network on the 10000 test images: 54 %",
        ),
        {"train/loss": [(2000, 2.185), (4000, 1.832), (6000, 1.402), (8000, 1.372)]},
    ),
    Printer(
        "PyTorch word language model",
        lines(
            "| epoch   1 |   200/ 2983 batches | lr 20.00 | ms/batch 12.10 | loss  7.63 | ppl  2051.10",
            "| epoch   1 |   400/ 2983 batches | lr 20.00 | ms/batch 11.10 | loss  6.85 | ppl   944.10",
            "-" * 89,
            "| end of epoch   1 | time: 40.01s | valid loss  6.10 | valid ppl   446.01",
            "-" * 89,
            "| epoch   2 |   200/ 2983 batches | lr 20.00 | ms/batch 11.90 | loss  6.13 | ppl   459.10",
        ),
        {
            "train/loss": [(200, 7.63), (400, 6.85), (3183, 6.13)],
            "train/perplexity": [(200, 2051.1), (400, 944.1), (3183, 459.1)],
            "eval/loss": [(400, 6.1)],
            "eval/perplexity": [(400, 446.01)],
        },
    ),
    Printer(
        "detectron2",
        lines(
            "[11/20 10:00:01 d2.engine.train_loop]: Starting training from iteration 0",
            "\x1b[32m[11/20 10:00:09 d2.utils.events]: \x1b[0m eta: 0:03:12  iter: 19  total_loss: 2.101  loss_cls: "
            "0.701  loss_box_reg: 0.612  time: 0.4101  last_time: 0.4012  data_time: 0.0101  last_data_time: 0.0051  "
            "lr: 9.7405e-06  max_mem: 2411M",
            "\x1b[32m[11/20 10:00:17 d2.utils.events]: \x1b[0m eta: 0:03:04  iter: 39  total_loss: 1.901  loss_cls: "
            "0.601  loss_box_reg: 0.602  time: 0.4091  last_time: 0.4002  data_time: 0.0091  last_data_time: 0.0041  "
            "lr: 1.9731e-05  max_mem: 2411M",
        ),
        {
            "train/total_loss": [(19, 2.101), (39, 1.901)],
            "train/loss_cls": [(19, 0.701), (39, 0.601)],
            "train/learning_rate": [(19, 9.7405e-6), (39, 1.9731e-5)],
        },
    ),
    Printer(
        "mmengine",
        lines(
            "11/20 10:00:01 - mmengine - INFO - Epoch(train)  [1][100/270]  lr: 1.0000e-02  eta: 0:10:21  time: 0.3101  "
            "data_time: 0.0101  memory: 4111  loss: 1.2012  loss_cls: 0.8012  loss_bbox: 0.4000",
            "11/20 10:00:31 - mmengine - INFO - Epoch(train)  [1][200/270]  lr: 1.0000e-02  eta: 0:09:51  time: 0.3001  "
            "data_time: 0.0091  memory: 4111  loss: 1.0012  loss_cls: 0.7012  loss_bbox: 0.3000",
            "11/20 10:00:55 - mmengine - INFO - Epoch(val)  [1][50/50]    accuracy/top1: 61.2001  accuracy/top5: "
            "84.1002  data_time: 0.0101  time: 0.1201",
            "11/20 10:01:31 - mmengine - INFO - Epoch(train)  [2][100/270]  lr: 1.0000e-03  eta: 0:09:01  time: 0.3001  "
            "data_time: 0.0091  memory: 4111  loss: 0.9012  loss_cls: 0.6012  loss_bbox: 0.3000",
        ),
        {
            "train/loss": [(100, 1.2012), (200, 1.0012), (370, 0.9012)],
            "train/loss_bbox": [(100, 0.4), (200, 0.3), (370, 0.3)],
            "eval/accuracy_top1": [(270, 61.2001)],
        },
    ),
    Printer(
        "OpenNMT-py",
        lines(
            "[2026-11-20 10:00:01,123 INFO] Step 50/100000; acc:   4.01; ppl: 8211.30; xent: 9.01; lr: 0.00001; "
            "7012/6811 tok/s;     10 sec",
            "[2026-11-20 10:00:11,123 INFO] Step 100/100000; acc:   6.21; ppl: 3011.30; xent: 8.01; lr: 0.00002; "
            "7112/6911 tok/s;     20 sec",
            "[2026-11-20 10:00:15,123 INFO] Validation perplexity: 2500.1",
            "[2026-11-20 10:00:15,124 INFO] Validation accuracy: 7.5",
        ),
        {
            "train/accuracy": [(50, 4.01), (100, 6.21)],
            "train/perplexity": [(50, 8211.3), (100, 3011.3)],
            "train/xent": [(50, 9.01), (100, 8.01)],
            "eval/perplexity": [(100, 2500.1)],
            "eval/accuracy": [(100, 7.5)],
        },
    ),
    Printer(
        "ESPnet2",
        lines(
            "[node1] 2026-11-20 10:00:01,123 (trainer:737) INFO: 1epoch:train:1-50batch: iter_time=0.001, "
            "forward_time=0.091, loss_ctc=121.512, loss_att=70.112, acc=0.112, loss=85.512, backward_time=0.081, "
            "optim_step_time=0.011, optim0_lr0=8.333e-07, train_time=0.812",
            "[node1] 2026-11-20 10:00:41,123 (trainer:737) INFO: 1epoch:train:51-100batch: iter_time=0.001, "
            "forward_time=0.091, loss_ctc=101.512, loss_att=60.112, acc=0.132, loss=72.512, backward_time=0.081, "
            "optim_step_time=0.011, optim0_lr0=2.083e-06, train_time=0.801",
            "[node1] 2026-11-20 10:01:41,123 (trainer:737) INFO: 2epoch:train:1-50batch: iter_time=0.001, "
            "forward_time=0.091, loss_ctc=91.512, loss_att=50.112, acc=0.152, loss=62.512, backward_time=0.081, "
            "optim_step_time=0.011, optim0_lr0=4.083e-06, train_time=0.801",
        ),
        {
            "train/loss": [(50, 85.512), (100, 72.512), (150, 62.512)],
            "train/accuracy": [(50, 0.112), (100, 0.132), (150, 0.152)],
            "train/loss_ctc": [(50, 121.512), (100, 101.512), (150, 91.512)],
        },
    ),
    Printer(
        "SpeechBrain",
        lines(
            "speechbrain.utils.epoch_loop - Going into epoch 1",
            "epoch: 1, lr: 1.00e-03 - train loss: 2.70 - valid loss: 3.39, valid error: 9.47e-01",
            "epoch: 2, lr: 9.00e-04 - train loss: 2.10 - valid loss: 2.39, valid error: 8.47e-01",
            "Epoch loaded: 2 - test loss: 2.43, test error: 8.54e-01",
        ),
        {
            "train/loss": [(1, 2.7), (2, 2.1)],
            "eval/loss": [(1, 3.39), (2, 2.39)],
            "eval/error": [(1, 0.947), (2, 0.847)],
            "test/loss": [(2, 2.43)],
        },
        counts="epoch",
    ),
    Printer(
        "torchtune",
        bar(1, 250, "1|1|Loss: 2.7034")
        + bar(2, 250, "1|2|Loss: 2.6034")
        + bar(250, 250, "1|250|Loss: 1.5")
        + "\n"
        + bar(1, 250, "2|251|Loss: 1.4034")
        + bar(2, 250, "2|252|Loss: 1.3034")
        + "\n",
        {"train/loss": [(1, 2.7034), (2, 2.6034), (250, 1.5), (251, 1.4034), (252, 1.3034)]},
    ),
    Printer(
        "torchtitan",
        lines(
            "[rank0]:[titan] 2026-11-20 10:00:01,123 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss:  8.1301  "
            "\x1b[38;2;180;60;0mgrad_norm:  1.5201  \x1b[38;2;54;234;195mmemory:  1.12GiB(1.41%)  \x1b[34mtps: 3,012  "
            "\x1b[36mtflops: 0.21  \x1b[35mmfu: 0.07%\x1b[39m",
            "[rank0]:[titan] 2026-11-20 10:00:03,123 - root - INFO - \x1b[31mstep: 1,010  \x1b[32mloss:  6.1301  "
            "\x1b[38;2;180;60;0mgrad_norm:  1.1201  \x1b[38;2;54;234;195mmemory:  1.12GiB(1.41%)  \x1b[34mtps: 43,012  "
            "\x1b[36mtflops: 3.21  \x1b[35mmfu: 1.07%\x1b[39m",
            "[rank0]:[titan] 2026-11-20 10:00:04,123 - root - INFO - \x1b[33mvalidate step: 1010  \x1b[32mloss:  6.5301"
            "  \x1b[38;2;54;234;195mmemory:  1.12GiB(1.41%)  \x1b[34mtps: 90,012\x1b[39m",
        ),
        {
            "train/loss": [(1, 8.1301), (1010, 6.1301)],
            "train/grad_norm": [(1, 1.5201), (1010, 1.1201)],
            "train/tps": [(1, 3012.0), (1010, 43012.0)],
            "eval/loss": [(1010, 6.5301)],
        },
    ),
    Printer(
        "several ranks in one stream",
        lines(
            "[rank0]: step 10 loss 2.5",
            "[rank1]: step 10 loss 2.7",
            "[rank1]: step 20 loss 2.2",
            "[rank0]: step 20 loss 2.0",
        ),
        {"train/loss": [(10, 2.5), (20, 2.0)]},
        never=("rank",),
    ),
    Printer(
        "srun --label",
        lines("1: step 10 loss 2.7", "0: step 10 loss 2.5", "0: step 20 loss 2.0", "1: step 20 loss 2.2"),
        {"train/loss": [(10, 2.5), (20, 2.0)]},
    ),
    Printer(
        "litgpt",
        lines(
            "Epoch 1 | iter 4 step 1 | loss train: 3.701, val: n/a | iter time: 412.02 ms (step) remaining time: 0:10:01",
            "Epoch 1 | iter 8 step 2 | loss train: 3.502, val: n/a | iter time: 402.02 ms (step) remaining time: 0:09:51",
            "iter 8: val loss 3.4101, val time: 1021.12 ms",
            "Epoch 1 | iter 12 step 3 | loss train: 3.303, val: 3.410 | iter time: 401.02 ms (step) remaining time: "
            "0:09:41",
        ),
        {"train/loss": [(1, 3.701), (2, 3.502), (3, 3.303)], "eval/loss": [(2, 3.4101), (3, 3.41)]},
    ),
    Printer(
        "OLMo",
        lines(
            "2026-11-20 10:00:01.123\tnode1:0\tolmo.train:912\tINFO\t[step=1/739328,epoch=0]",
            "    optim/total_grad_norm=10.51",
            "    train/CrossEntropyLoss=11.21",
            "    train/Perplexity=73,865",
            "    throughput/total_tokens=4,194,304",
            "2026-11-20 10:00:11.123\tnode1:0\tolmo.train:912\tINFO\t[step=2/739328,epoch=0]",
            "    optim/total_grad_norm=9.51",
            "    train/CrossEntropyLoss=10.91",
            "    train/Perplexity=54,721",
            "    throughput/total_tokens=8,388,608",
        ),
        {"train/cross_entropy_loss": [(1, 11.21), (2, 10.91)], "train/perplexity": [(1, 73865.0), (2, 54721.0)]},
    ),
    Printer(
        "MosaicML Composer",
        lines(
            "[batch=1/20]:",
            "\t Train time/batch: 0",
            "\t Train time/epoch: 0",
            "\t Train loss/train/total: 11.5012",
            "\t Train metrics/train/LanguagePerplexity: 98912.1",
            "[batch=2/20]:",
            "\t Train time/batch: 1",
            "\t Train time/epoch: 0",
            "\t Train loss/train/total: 11.2012",
            "\t Train metrics/train/LanguagePerplexity: 73202.1",
            "[eval batch=1/4]:",
            "[eval batch=4/4]:",
            "\t Eval metrics/eval/LanguageCrossEntropy: 11.1012",
        ),
        {"train/loss_total": [(1, 11.5012), (2, 11.2012)], "eval/metrics_language_cross_entropy": [(2, 11.1012)]},
    ),
    Printer(
        "XGBoost",
        lines(
            "[0]\ttrain-rmse:0.48012\teval-rmse:0.49012",
            "[1]\ttrain-rmse:0.40012\teval-rmse:0.42012",
            "[10]\ttrain-rmse:0.20012\teval-rmse:0.28012",
        ),
        {
            "train/rmse": [(0, 0.48012), (1, 0.40012), (10, 0.20012)],
            "eval/rmse": [(0, 0.49012), (1, 0.42012), (10, 0.28012)],
        },
    ),
    Printer(
        "LightGBM",
        lines(
            "[LightGBM] [Info] Number of positive: 212, number of negative: 357",
            "[LightGBM] [Info] Total Bins 6556",
            "Training until validation scores don't improve for 10 rounds",
            "[10]\ttraining's binary_logloss: 0.21012\tvalid_1's binary_logloss: 0.25012",
            "[20]\ttraining's binary_logloss: 0.11012\tvalid_1's binary_logloss: 0.16012",
            "Early stopping, best iteration is:",
        ),
        {"train/binary_logloss": [(10, 0.21012), (20, 0.11012)], "eval/binary_logloss": [(10, 0.25012), (20, 0.16012)]},
    ),
    Printer(
        "CatBoost",
        lines(
            "Learning rate set to 0.081",
            "0:\tlearn: 0.6412012\ttest: 0.6501012\tbest: 0.6501012 (0)\ttotal: 50.1ms\tremaining: 49.9s",
            "100:\tlearn: 0.2412012\ttest: 0.3001012\tbest: 0.3001012 (100)\ttotal: 1.21s\tremaining: 10.8s",
            "",
            "bestTest = 0.2981012",
            "bestIteration = 140",
        ),
        {"train/value": [(0, 0.6412012), (100, 0.2412012)], "test/value": [(0, 0.6501012), (100, 0.3001012)]},
    ),
    Printer(
        "scikit-learn MLP",
        lines("Iteration 1, loss = 2.30112012", "Iteration 2, loss = 2.10112012", "Validation score: 0.710000"),
        {"train/loss": [(1, 2.30112012), (2, 2.10112012)], "eval/score": [(2, 0.71)]},
    ),
    Printer(
        "scikit-learn gradient boosting",
        lines(
            "      Iter       Train Loss   Remaining Time ",
            "         1           1.2613            1.03s",
            "         2           1.1715            0.98s",
            "       100           0.3015            0.00s",
        ),
        {"train/loss": [(1, 1.2613), (2, 1.1715), (100, 0.3015)]},
    ),
    Printer(
        "tqdm with a postfix",
        "".join(
            bar(step, 100, f"epoch {epoch}", f"loss={loss}, acc={acc}")
            for epoch, step, loss, acc in ((1, 50, 0.9, 0.5), (1, 100, 0.7, 0.6), (2, 50, 0.5, 0.7), (2, 100, 0.4, 0.8))
        )
        + "\n",
        {
            "train/loss": [(50, 0.9), (100, 0.7), (150, 0.5), (200, 0.4)],
            "train/accuracy": [(50, 0.5), (100, 0.6), (150, 0.7), (200, 0.8)],
        },
    ),
    Printer(
        "a stale postfix",
        bar(10, 100, "", "loss=0.9")
        + "".join(bar(step, 100, "", "loss=0.9") for step in range(11, 20))
        + bar(20, 100, "", "loss=0.8")
        + "\n",
        {"train/loss": [(10, 0.9), (20, 0.8)]},
    ),
    Printer(
        "wandb's summary",
        lines("step 10 loss 0.5", "step 20 loss 0.4")
        + lines(
            "wandb: ",
            "wandb: Run history:",
            "wandb:       loss █▁",
            "wandb: ",
            "wandb: Run summary:",
            "wandb:       loss 0.4",
            "wandb:   val_loss 0.45",
            "wandb: ",
        ),
        {"train/loss": [(10, 0.5), (20, 0.4)], "eval/loss": [(20, 0.45)]},
    ),
    Printer(
        "rich's logging",
        lines(
            "[11/20/26 10:00:01] INFO     step 10 loss 2.5                                     train.py:20",
            "[11/20/26 10:00:02] INFO     step 1,200, loss 2.1                                 train.py:20",
            "                    INFO     step 1k3 is not a number                             train.py:21",
        ),
        {"train/loss": [(10, 2.5), (1200, 2.1)]},
    ),
    Printer(
        "epochs only",
        lines(
            "Epoch 1/3, Train Loss: 0.9012, Val Loss: 0.8012, Val Acc: 71.20%",
            "Epoch 2/3, Train Loss: 0.7012, Val Loss: 0.6012, Val Acc: 79.20%",
            "Epoch 3/3, Train Loss: 0.5012, Val Loss: 0.5512, Val Acc: 81.20%",
        ),
        {
            "train/loss": [(1, 0.9012), (2, 0.7012), (3, 0.5012)],
            "eval/loss": [(1, 0.8012), (2, 0.6012), (3, 0.5512)],
            "eval/accuracy": [(1, 71.2), (2, 79.2), (3, 81.2)],
        },
        counts="epoch",
    ),
    Printer(
        "an epoch's heading, then phases",
        lines(
            "Epoch 0/24",
            "----------",
            "train Loss: 0.5582 Acc: 0.6967",
            "val Loss: 0.2122 Acc: 0.9216",
            "",
            "Epoch 1/24",
            "----------",
            "train Loss: 0.4482 Acc: 0.7967",
            "val Loss: 0.2022 Acc: 0.9316",
        ),
        {
            "train/loss": [(0, 0.5582), (1, 0.4482)],
            "train/accuracy": [(0, 0.6967), (1, 0.7967)],
            "eval/loss": [(0, 0.2122), (1, 0.2022)],
            "eval/accuracy": [(0, 0.9216), (1, 0.9316)],
        },
        counts="epoch",
    ),
    Printer(
        "CSV on standard output",
        lines("step,train_loss,val_loss,lr", "10,2.5,2.6,0.001", "20,2.0,2.2,0.0009"),
        {"train/loss": [(10, 2.5), (20, 2.0)], "eval/loss": [(10, 2.6), (20, 2.2)]},
    ),
    Printer(
        "a deep Q-network tutorial",
        lines(
            "Episode 1\tLast reward: 12.00\tAverage reward: 10.10",
            "Episode 11\tLast reward: 32.00\tAverage reward: 14.10",
        ),
        {"train/average_reward": [(1, 10.1), (11, 14.1)]},
        counts="step",
    ),
    Printer(
        "a restarted batch counter",
        lines(
            "Epoch 1 batch 100 loss 0.9",
            "Epoch 1 batch 200 loss 0.8",
            "Epoch 2 batch 100 loss 0.7",
            "Epoch 2 batch 200 loss 0.6",
        ),
        {"train/loss": [(100, 0.9), (200, 0.8), (300, 0.7), (400, 0.6)]},
    ),
    Printer(
        "no counter at all",
        lines("loss: 0.9", "loss: 0.8", "loss: 0.7"),
        {"train/loss": [(1, 0.9), (2, 0.8), (3, 0.7)]},
        counts="row",
    ),
    Printer(
        "accelerate's example",
        lines("epoch 0: {'accuracy': 0.6838, 'f1': 0.8122}", "epoch 1: {'accuracy': 0.7230, 'f1': 0.8291}"),
        {"train/accuracy": [(0, 0.6838), (1, 0.723)], "train/f1": [(0, 0.8122), (1, 0.8291)]},
        counts="epoch",
    ),
    # The next ten were written down after the rules, which then read seven of them.
    Printer(
        "PyTorch-GAN",
        lines(
            "[Epoch 0/200] [Batch 10/938] [D loss: 0.691201] [G loss: 0.711201]",
            "[Epoch 0/200] [Batch 937/938] [D loss: 0.591201] [G loss: 0.811201]",
            "[Epoch 1/200] [Batch 10/938] [D loss: 0.491201] [G loss: 0.911201]",
        ),
        {
            "train/d_loss": [(10, 0.691201), (937, 0.591201), (948, 0.491201)],
            "train/g_loss": [(10, 0.711201), (937, 0.811201), (948, 0.911201)],
        },
    ),
    Printer(
        "CycleGAN and pix2pix",
        lines(
            "================ Training Loss (Fri Nov 20 10:00:01 2026) ================",
            "(epoch: 1, iters: 100, time: 0.412, data: 0.201) D_A: 0.412 G_A: 0.512 cycle_A: 1.512 ",
            "(epoch: 1, iters: 200, time: 0.411, data: 0.001) D_A: 0.312 G_A: 0.612 cycle_A: 1.312 ",
            "End of epoch 1 / 200 \t Time Taken: 90 sec",
            "(epoch: 2, iters: 100, time: 0.411, data: 0.001) D_A: 0.212 G_A: 0.712 cycle_A: 1.112 ",
        ),
        {
            "train/d_a": [(100, 0.412), (200, 0.312), (300, 0.212)],
            "train/g_a": [(100, 0.512), (200, 0.612), (300, 0.712)],
        },
    ),
    Printer(
        "modded-nanogpt",
        lines(
            "step:0/3000 val_loss:10.8258 train_time:0ms step_avg:0.01ms",
            "step:1/3000 train_time:91ms step_avg:91.20ms",
            "step:125/3000 val_loss:4.5012 train_time:11234ms step_avg:89.87ms",
        ),
        {"eval/loss": [(0, 10.8258), (125, 4.5012)]},
    ),
    Printer(
        "nanochat",
        lines(
            "step 00010/21400 (0.05%) | loss: 10.123456 | lrm: 1.00 | dt: 300.12ms | tok/sec: 1,748,123 | bf16_mfu: 50.10 | epoch: 1 | total time: 0.12m | eta: 100.1m",
            "step 00011/21400 (0.05%) | loss: 10.023456 | lrm: 1.00 | dt: 301.12ms | tok/sec: 1,738,123 | bf16_mfu: 49.10 | epoch: 1 | total time: 0.13m | eta: 100.1m",
            "Step 00250 | Validation bpb: 1.2345",
        ),
        {
            "train/loss": [(10, 10.123456), (11, 10.023456)],
            "train/tokens_per_s": [(10, 1748123.0), (11, 1738123.0)],
            "eval/bpb": [(250, 1.2345)],
        },
    ),
    Printer(
        "Swin Transformer",
        lines(
            "[2026-11-20 10:00:01 swin_tiny] (main.py 227): INFO Train: [0/300][10/1251]\teta 1:20:00 lr 0.000001\t time 0.4012 (0.5012)\tloss 6.9512 (6.9612)\tgrad_norm 1.5012 (1.6012)\tmem 5012MB",
            "[2026-11-20 10:00:11 swin_tiny] (main.py 227): INFO Train: [1/300][10/1251]\teta 1:19:00 lr 0.000002\t time 0.4012 (0.5012)\tloss 6.8512 (6.8612)\tgrad_norm 1.4012 (1.5012)\tmem 5012MB",
            "[2026-11-20 10:00:21 swin_tiny] (main.py 272): INFO Test: [0/391]\tTime 1.012 (1.012)\tLoss 5.9012 (5.9012)\tAcc@1 12.500 (12.500)\tAcc@5 29.688 (29.688)\tMem 5012MB",
            "[2026-11-20 10:00:31 swin_tiny] (main.py 279): INFO  * Acc@1 13.100 Acc@5 30.200",
        ),
        {
            "train/loss": [(10, 6.9512), (1261, 6.8512)],
            "train/learning_rate": [(10, 1e-6), (1261, 2e-6)],
            "train/grad_norm": [(10, 1.5012), (1261, 1.4012)],
            "test/accuracy": [(1261, 13.1)],
        },
    ),
    Printer(
        "Chinese-Text-Classification",
        lines(
            "Epoch [1/20]",
            "Iter:      0,  Train Loss:   2.4,  Train Acc: 13.28%,  Val Loss:   2.7,  Val Acc:  9.08%,  Time: 0:00:23 *",
            "Iter:    100,  Train Loss:  0.73,  Train Acc: 70.31%,  Val Loss:  0.69,  Val Acc: 78.04%,  Time: 0:00:56 *",
            "Epoch [2/20]",
            "Iter:   1500,  Train Loss:  0.43,  Train Acc: 86.31%,  Val Loss:  0.39,  Val Acc: 88.04%,  Time: 0:05:56 ",
        ),
        {
            "train/loss": [(0, 2.4), (100, 0.73), (1500, 0.43)],
            "eval/loss": [(0, 2.7), (100, 0.69), (1500, 0.39)],
            "train/accuracy": [(0, 13.28), (100, 70.31), (1500, 86.31)],
            "eval/accuracy": [(0, 9.08), (100, 78.04), (1500, 88.04)],
        },
    ),
    Printer(
        "Informer and its descendants",
        lines(
            "\titers: 100, epoch: 1 | loss: 0.4123456",
            "\tspeed: 0.0412s/iter; left time: 123.4123s",
            "\titers: 200, epoch: 1 | loss: 0.3123456",
            "\tspeed: 0.0412s/iter; left time: 113.4123s",
            "Epoch: 1 cost time: 12.1",
            "Epoch: 1, Steps: 265 | Train Loss: 0.3912345 Vali Loss: 0.7112345 Test Loss: 0.5112345",
            "Validation loss decreased (inf --> 0.711234).  Saving model ...",
            "Updating learning rate to 0.0001",
            "\titers: 100, epoch: 2 | loss: 0.2123456",
        ),
        {
            "train/loss": [(100, 0.4123456), (200, 0.3123456), (365, 0.2123456)],
            "train/mean_loss": [(265, 0.3912345)],
            "test/loss": [(265, 0.5112345)],
            "eval/loss": [(265, 0.7112345)],
        },
    ),
    Printer(
        "a deep RL course",
        "".join(f"\rEpisode {i}\tAverage Score: {i / 10:.2f}" for i in range(1, 6))
        + "\rEpisode 100\tAverage Score: 20.31\n",
        {"train/average_score": [(i, i / 10) for i in range(1, 6)] + [(100, 20.31)]},
    ),
    Printer(
        "NeRF",
        lines("[TRAIN] Iter: 100 Loss: 0.0512345  PSNR: 15.123")
        + bar(150, 1000)
        + "\n"
        + lines("[TRAIN] Iter: 200 Loss: 0.0412345  PSNR: 16.123"),
        {"train/loss": [(100, 0.0512345), (200, 0.0412345)], "train/psnr": [(100, 15.123), (200, 16.123)]},
    ),
    Printer(
        "Dassl",
        lines(
            "epoch [1/50] batch [5/20] time 0.512 (0.812) data 0.000 (0.212) loss 1.2012 (1.3012) acc 62.5000 (60.0000) lr 2.0000e-03 eta 0:10:12",
            "epoch [2/50] batch [5/20] time 0.512 (0.812) data 0.000 (0.212) loss 1.1012 (1.2012) acc 65.6250 (61.0000) lr 1.9000e-03 eta 0:09:12",
        ),
        {
            "train/loss": [(5, 1.2012), (25, 1.1012)],
            "train/accuracy": [(5, 62.5), (25, 65.625)],
            "train/learning_rate": [(5, 2e-3), (25, 1.9e-3)],
        },
    ),
    Printer(
        "PyTorch Geometric",
        lines(
            "Epoch: 001, Loss: 1.9456, Train: 0.5123, Val: 0.4321, Test: 0.4456",
            "Epoch: 002, Loss: 1.8456, Train: 0.6123, Val: 0.5321, Test: 0.5456",
        ),
        {
            "train/loss": [(1, 1.9456), (2, 1.8456)],
            "train/value": [(1, 0.5123), (2, 0.6123)],
            "eval/value": [(1, 0.4321), (2, 0.5321)],
            "test/value": [(1, 0.4456), (2, 0.5456)],
        },
        counts="epoch",
    ),
    Printer(
        "DGL",
        lines("Epoch 00001 | Loss 1.9456 | Accuracy 0.5123 ", "Epoch 00002 | Loss 1.8456 | Accuracy 0.6123 "),
        {"train/loss": [(1, 1.9456), (2, 1.8456)], "train/accuracy": [(1, 0.5123), (2, 0.6123)]},
        counts="epoch",
    ),
    Printer(
        "icefall",
        lines(
            "2024-01-01 10:00:00,000 INFO [train.py:895] (0/2) Epoch 1, batch 50, loss[loss=0.9876, over 12345.00 frames. ]"
            ", tot_loss[loss=1.0123, over 123456.78 frames. ], batch size: 64, lr: 4.50e-02",
            "2024-01-01 10:00:30,000 INFO [train.py:895] (0/2) Epoch 1, batch 100, loss[loss=0.8876, over 12345.00 frames. ]"
            ", tot_loss[loss=0.9123, over 123456.78 frames. ], batch size: 64, lr: 4.40e-02",
        ),
        {
            "train/loss": [(50, 0.9876), (100, 0.8876)],
            "train/tot_loss": [(50, 1.0123), (100, 0.9123)],
            "train/learning_rate": [(50, 0.045), (100, 0.044)],
        },
        never=("size", "over"),
    ),
    Printer(
        "llm.c",
        lines(
            "step    1/19560 | loss 11.012345 (+nanz)| norm 15.3456 (+nanz)| lr 8.57e-07 | 3056.36 ms | 58.4% bf16 MFU",
            "val loss 11.009",
            "step    2/19560 | loss 10.962345 (+nanz)| norm 14.3456 (+nanz)| lr 1.71e-06 | 2056.36 ms | 58.4% bf16 MFU",
        ),
        {
            "train/loss": [(1, 11.012345), (2, 10.962345)],
            "train/learning_rate": [(1, 8.57e-07), (2, 1.71e-06)],
            "eval/loss": [(1, 11.009)],
        },
    ),
    Printer(
        "YOLOX",
        lines(
            "2024-01-01 10:00:00 | INFO     | yolox.core.trainer:270 - epoch: 1/300, iter: 10/100, mem: 1234Mb, "
            "iter_time: 0.512s, total_loss: 12.3, iou_loss: 4.1, lr: 1.000e-06, size: 640, ETA: 1 day, 2:03:04",
            "2024-01-01 10:00:05 | INFO     | yolox.core.trainer:270 - epoch: 2/300, iter: 10/100, mem: 1234Mb, "
            "iter_time: 0.512s, total_loss: 11.3, iou_loss: 4.0, lr: 2.000e-06, size: 640, ETA: 1 day, 2:03:04",
        ),
        {
            "train/total_loss": [(10, 12.3), (110, 11.3)],
            "train/iou_loss": [(10, 4.1), (110, 4.0)],
            "train/learning_rate": [(10, 1e-06), (110, 2e-06)],
        },
        never=("mem", "eta", "day"),
    ),
    Printer(
        "verl",
        lines(
            "step:1 - global_seqlen/mean:61520.25 - actor/kl_loss:0.001 - actor/pg_loss:-0.012 - critic/score/mean:0.123",
            "step:2 - global_seqlen/mean:61520.25 - actor/kl_loss:0.002 - actor/pg_loss:-0.011 - critic/score/mean:0.223",
        ),
        {
            "train/actor_kl_loss": [(1, 0.001), (2, 0.002)],
            "train/actor_pg_loss": [(1, -0.012), (2, -0.011)],
            "train/critic_score_mean": [(1, 0.123), (2, 0.223)],
        },
    ),
    Printer(
        "Tianshou",
        lines(
            "Epoch #1: test_reward: 95.100000 ± 12.300000, best_reward: 95.100000 ± 12.300000 in #1",
            "Epoch #2: test_reward: 195.100000 ± 2.300000, best_reward: 195.100000 ± 2.300000 in #2",
        ),
        {"test/reward": [(1, 95.1), (2, 195.1)], "train/best_reward": [(1, 95.1), (2, 195.1)]},
        counts="epoch",
    ),
    Printer(
        "d3rlpy",
        lines(
            "2024-01-01 10:00.00 [info     ] DQN_20240101: epoch=1 step=1000 epoch=1 metrics={'time_step': 0.0051, "
            "'loss': 0.0512} step=1000",
            "2024-01-01 10:01.00 [info     ] DQN_20240101: epoch=2 step=2000 epoch=2 metrics={'time_step': 0.0052, "
            "'loss': 0.0412} step=2000",
        ),
        {"train/loss": [(1000, 0.0512), (2000, 0.0412)]},
    ),
    Printer(
        "diffusers",
        bar(10, 1000, "Steps", "lr=1e-5, step_loss=0.123") + bar(20, 1000, "Steps", "lr=1e-5, step_loss=0.113") + "\n",
        {"train/step_loss": [(10, 0.123), (20, 0.113)]},
    ),
    Printer(
        "NeMo",
        bar(10, 100, "Epoch 0", "v_num=0, reduced_train_loss=10.50, global_step=9.000, consumed_samples=80.0")
        + bar(20, 100, "Epoch 0", "v_num=0, reduced_train_loss=9.50, global_step=19.00, consumed_samples=160.0")
        + "\n",
        {"train/reduced_loss": [(9, 10.5), (19, 9.5)]},
        never=("v_num",),
    ),
    Printer(
        "Flax examples",
        lines(
            "I0101 10:00:00.000000 140 train.py:146] epoch:  1, train_loss: 0.2345, train_accuracy: 92.34, "
            "test_loss: 0.1112, test_accuracy: 95.78",
            "I0101 10:00:09.000000 140 train.py:146] epoch:  2, train_loss: 0.1234, train_accuracy: 95.67, "
            "test_loss: 0.1012, test_accuracy: 96.78",
        ),
        {
            "train/loss": [(1, 0.2345), (2, 0.1234)],
            "train/accuracy": [(1, 92.34), (2, 95.67)],
            "test/loss": [(1, 0.1112), (2, 0.1012)],
            "test/accuracy": [(1, 95.78), (2, 96.78)],
        },
        counts="epoch",
    ),
    Printer(
        "Marian",
        lines(
            "[2022-03-14 09:12:01] [config] learn-rate: 0.0003",
            "[2022-03-14 09:12:05] [memory] Reserving 526 MB, device gpu0",
            "[2022-03-14 09:12:05] Training started",
            "[2022-03-14 09:13:40] Ep. 1 : Up. 500 : Sen. 31,207 : Cost 6.89552215 * 812,345 @ 9,121 after "
            "812,345 : Time 96.11s : 6013.37 words/s : gNorm 1.3000 : L.r. 9.3750e-06",
            "[2022-03-14 09:14:40] Ep. 1 : Up. 1000 : Sen. 62,414 : Cost 5.55081275 * 812,345 @ 9,122 after "
            "1,624,690 : Time 97.11s : 6026.74 words/s : gNorm 1.4000 : L.r. 1.8750e-05",
            "[2022-03-14 09:15:40] Ep. 1 : Up. 1500 : Sen. 93,621 : Cost 4.64565125 * 812,345 @ 9,123 after "
            "2,437,035 : Time 98.11s : 6040.11 words/s : gNorm 1.5000 : L.r. 2.8125e-05",
            "[2022-03-14 09:16:40] Ep. 1 : Up. 2000 : Sen. 124,828 : Cost 4.03427782 * 812,345 @ 9,124 after "
            "3,249,380 : Time 99.11s : 6053.48 words/s : gNorm 1.6000 : L.r. 3.7500e-05",
            "[2022-03-14 09:16:44] Saving model weights and runtime parameters to model/model.iter2000.npz",
            "[2022-03-14 09:16:52] [valid] Ep. 1 : Up. 2000 : cross-entropy : 114.0 : new best",
            "[2022-03-14 09:16:52] [valid] Ep. 1 : Up. 2000 : perplexity : 221.4064 : new best",
            "[2022-03-14 09:16:52] [valid] Ep. 1 : Up. 2000 : bleu : 6.0 : new best",
            "[2022-03-14 09:17:58] Seen 156035 samples",
            "[2022-03-14 09:17:58] Starting data epoch 2 in logical epoch 2",
            "[2022-03-14 09:18:40] Ep. 2 : Up. 3000 : Sen. 31,207 : Cost 3.34421430 * 812,345 @ 9,126 after "
            "4,874,070 : Time 101.11s : 6080.22 words/s : gNorm 1.8000 : L.r. 5.6250e-05",
        ),
        {
            "train/cost": [
                (500, 6.89552215),
                (1000, 5.55081275),
                (1500, 4.64565125),
                (2000, 4.03427782),
                (3000, 3.3442143),
            ],
            "train/words_s": [(500, 6013.37), (1000, 6026.74), (1500, 6040.11), (2000, 6053.48), (3000, 6080.22)],
            "train/learning_rate": [
                (500, 9.375e-06),
                (1000, 1.875e-05),
                (1500, 2.8125e-05),
                (2000, 3.75e-05),
                (3000, 5.625e-05),
            ],
            "eval/cross_entropy": [(2000, 114.0)],
            "eval/perplexity": [(2000, 221.4064)],
            "eval/bleu": [(2000, 6.0)],
        },
    ),
    Printer(
        "Caffe",
        lines(
            "I0914 09:42:50.112233  6584 solver.cpp:54] Solving CIFAR10_quick",
            "I0914 09:42:50.112240  6584 solver.cpp:55] Learning Rate Policy: fixed",
            "I0914 09:42:50.200000  6584 solver.cpp:346] Iteration 0, Testing net (#0)",
            "I0914 09:42:50.300000  6584 solver.cpp:414]     Test net output #0: accuracy = 0.1",
            "I0914 09:42:50.300100  6584 solver.cpp:414]     Test net output #1: loss = 2.302 (* 1 = 2.302 loss)",
            "I0914 09:42:50.400000  6584 solver.cpp:239] Iteration 0 (25.6412 iter/s, 3.9s/100 iters), loss = 2.3",
            "I0914 09:42:50.400050  6584 solver.cpp:258]     Train net output #0: loss = 2.3 (* 1 = 2.3 loss)",
            "I0914 09:42:50.400060  6584 sgd_solver.cpp:112] Iteration 0, lr = 0.001",
            "I0914 09:42:51.400000  6584 solver.cpp:239] Iteration 100 (26.6412 iter/s, 3.9s/100 iters), loss = "
            "1.75571",
            "I0914 09:42:51.400050  6584 solver.cpp:258]     Train net output #0: loss = 1.75571 (* 1 = 1.75571 loss)",
            "I0914 09:42:51.400060  6584 sgd_solver.cpp:112] Iteration 100, lr = 0.001",
            "I0914 09:42:55.200000  6584 solver.cpp:346] Iteration 500, Testing net (#0)",
            "I0914 09:42:55.300000  6584 solver.cpp:414]     Test net output #0: accuracy = 0.6",
            "I0914 09:42:55.300100  6584 solver.cpp:414]     Test net output #1: loss = 1.302 (* 1 = 1.302 loss)",
            "I0914 09:42:55.400000  6584 solver.cpp:239] Iteration 500 (30.6412 iter/s, 3.9s/100 iters), loss = "
            "1.01064",
            "I0914 09:42:55.400050  6584 solver.cpp:258]     Train net output #0: loss = 1.01064 (* 1 = 1.01064 loss)",
            "I0914 09:42:55.400060  6584 sgd_solver.cpp:112] Iteration 500, lr = 0.001",
            "I0914 09:43:01.000000  6584 solver.cpp:464] Snapshotting to binary proto file "
            "examples/cifar10_quick_iter_500.caffemodel",
            "I0914 09:43:01.100000  6584 solver.cpp:332] Optimization Done.",
        ),
        {
            "train/loss": [(0, 2.3), (100, 1.75571), (500, 1.01064)],
            "train/learning_rate": [(0, 0.001), (100, 0.001), (500, 0.001)],
            "test/accuracy": [(0, 0.1), (500, 0.6)],
            "test/loss": [(0, 2.302), (500, 1.302)],
        },
    ),
    Printer(
        "StyleGAN3",
        lines(
            "Training for 25000 kimg...",
            "",
            "tick 0     kimg 0.0      time 33s          sec/tick 33.1    sec/kimg 8.28    maintenance 24.5   "
            "cpumem 4.31   gpumem 9.79   reserved 10.64  augment 0.000",
            "Evaluating metrics...",
            '{"results": {"fid50k_full": 412.7}, "metric": "fid50k_full", "total_time": 812.4, "total_time_str": '
            '"13m 32s", "num_gpus": 8, "snapshot_pkl": "network-snapshot-000000.pkl", "timestamp": 1639485742.1}',
            "tick 1     kimg 4.1      time 2m 31s       sec/tick 108.3   sec/kimg 27.07   maintenance 0.1    "
            "cpumem 4.32   gpumem 9.79   reserved 10.64  augment 0.004",
            "tick 2     kimg 8.1      time 4m 29s       sec/tick 109.3   sec/kimg 27.32   maintenance 0.1    "
            "cpumem 4.33   gpumem 9.79   reserved 10.64  augment 0.008",
            "tick 3     kimg 12.1     time 6m 27s       sec/tick 110.3   sec/kimg 27.57   maintenance 0.1    "
            "cpumem 4.34   gpumem 9.79   reserved 10.64  augment 0.012",
            "tick 4     kimg 16.1     time 8m 25s       sec/tick 111.3   sec/kimg 27.82   maintenance 0.1    "
            "cpumem 4.35   gpumem 9.79   reserved 10.64  augment 0.016",
            "Evaluating metrics...",
            '{"results": {"fid50k_full": 288.206176}, "metric": "fid50k_full", "total_time": 812.4, '
            '"total_time_str": "13m 32s", "num_gpus": 8, "snapshot_pkl": "network-snapshot-000016.pkl", '
            '"timestamp": 1639485746.1}',
        ),
        {
            "train/sec_tick": [(0, 33.1), (1, 108.3), (2, 109.3), (3, 110.3), (4, 111.3)],
            "train/sec_kimg": [(0, 8.28), (1, 27.07), (2, 27.32), (3, 27.57), (4, 27.82)],
            "train/augment": [(0, 0.0), (1, 0.004), (2, 0.008), (3, 0.012), (4, 0.016)],
            "eval/results_fid50k_full": [(0, 412.7), (4, 288.206176)],
        },
    ),
    Printer(
        "ML-Agents",
        lines(
            "[INFO] Hyperparameters for behavior name 3DBall: ",
            "\t  batch_size:\t64",
            "\t  num_epoch:\t3",
            "\tmax_steps:\t500000",
            "[INFO] 3DBall. Step: 12000. Time Elapsed: 18.224 s. Mean Reward: 1.000. Std of Reward: 3.780. Training.",
            "[INFO] 3DBall. Step: 24000. Time Elapsed: 31.675 s. Mean Reward: 26.659. Std of Reward: 6.880. Training.",
            "[INFO] 3DBall. Step: 36000. Time Elapsed: 45.126 s. Mean Reward: 45.668. Std of Reward: 9.980. Training.",
            "[INFO] 3DBall. Step: 84000. Time Elapsed: 91.201 s. No episode was completed since last summary. "
            "Training.",
            "[INFO] 3DBall. Step: 84000. Time Elapsed: 98.930 s. Mean Reward: 83.635. Std of Reward: 22.380. Training.",
        ),
        {
            "train/mean_reward": [(12000, 1.0), (24000, 26.659), (36000, 45.668), (84000, 83.635)],
            "train/std_of_reward": [(12000, 3.78), (24000, 6.88), (36000, 9.98), (84000, 22.38)],
        },
    ),
    Printer(
        "Coqui TTS",
        lines(
            "\x1b[4m\x1b[1m > EPOCH: 0/2\x1b[0m",
            " --> runs/glow-May-10-2022",
            "",
            "\x1b[1m > TRAINING (2022-05-10 10:10:32) \x1b[0m",
            "",
            "\x1b[1m   --> STEP: 0/75 -- GLOBAL_STEP: 0\x1b[0m",
            "     | > loss: 3.40000  (3.41000)",
            "     | > log_mle: 0.80000  (0.81000)",
            "     | > loss_dur: 2.60000  (2.61000)",
            "     | > grad_norm: 4.00000  (4.01000)",
            "     | > current_lr: 0.00025 ",
            "     | > step_time: 0.55960  (0.62000)",
            "     | > loader_time: 0.10720  (0.10000)",
            "",
            "\x1b[1m   --> STEP: 25/75 -- GLOBAL_STEP: 25\x1b[0m",
            "     | > loss: 2.41753  (2.42753)",
            "     | > log_mle: 0.46963  (0.47963)",
            "     | > loss_dur: 1.93767  (1.94767)",
            "     | > grad_norm: 3.80000  (3.81000)",
            "     | > current_lr: 0.00025 ",
            "     | > step_time: 0.55960  (0.62000)",
            "     | > loader_time: 0.10720  (0.10000)",
            "",
            "\x1b[1m   --> STEP: 50/75 -- GLOBAL_STEP: 50\x1b[0m",
            "     | > loss: 1.75789  (1.76789)",
            "     | > log_mle: 0.22336  (0.23336)",
            "     | > loss_dur: 1.53530  (1.54530)",
            "     | > grad_norm: 3.60000  (3.61000)",
            "     | > current_lr: 0.00025 ",
            "     | > step_time: 0.55960  (0.62000)",
            "     | > loader_time: 0.10720  (0.10000)",
            "",
            "\x1b[1m > EVALUATION \x1b[0m",
            "",
            "  \x1b[1m--> EVAL PERFORMANCE\x1b[0m",
            "     | > avg_loader_time: 0.00512 (+0.00000)",
            "     | > avg_loss: 2.71000 (+0.00000)",
            "",
            " > BEST MODEL : runs/glow-May-10-2022/best_model_75.pth",
            "",
            "\x1b[4m\x1b[1m > EPOCH: 1/2\x1b[0m",
            " --> runs/glow-May-10-2022",
            "",
            "\x1b[1m > TRAINING (2022-05-10 10:11:32) \x1b[0m",
            "",
            "\x1b[1m   --> STEP: 0/75 -- GLOBAL_STEP: 75\x1b[0m",
            "     | > loss: 1.31195  (1.32195)",
            "     | > log_mle: 0.03691  (0.04691)",
            "     | > loss_dur: 1.28769  (1.29769)",
            "     | > grad_norm: 3.40000  (3.41000)",
            "     | > current_lr: 0.00025 ",
            "     | > step_time: 0.55960  (0.62000)",
            "     | > loader_time: 0.10720  (0.10000)",
        ),
        {
            "train/loss": [(0, 3.4), (25, 2.41753), (50, 1.75789), (75, 1.31195)],
            "train/log_mle": [(0, 0.8), (25, 0.46963), (50, 0.22336), (75, 0.03691)],
            "train/grad_norm": [(0, 4.0), (25, 3.8), (50, 3.6), (75, 3.4)],
            "train/current_learning_rate": [(0, 0.00025), (25, 0.00025), (50, 0.00025), (75, 0.00025)],
            "eval/loss": [(75, 2.71)],
        },
    ),
    Printer(
        "CatBoost, stopped early",
        lines(
            "Learning rate set to 0.079572",
            "0:\tlearn: 0.6600000\ttest: 0.6600000\tbest: 0.6600000 (0)\ttotal: 70.1ms\tremaining: 1m 10s",
            "20:\tlearn: 0.5632107\ttest: 0.5750483\tbest: 0.5750483 (20)\ttotal: 1s\tremaining: 49s",
            "240:\tlearn: 0.3225804\ttest: 0.3782947\tbest: 0.3782947 (240)\ttotal: 12s\tremaining: 38s",
            "260:\tlearn: 0.3147584\ttest: 0.3789593\tbest: 0.3782947 (240)\ttotal: 13s\tremaining: 37s",
            "280:\tlearn: 0.3068725\ttest: 0.3802433\tbest: 0.3782947 (240)\ttotal: 14s\tremaining: 36s",
            "Stopped by overfitting detector  (50 iterations wait)",
            "",
            "bestTest = 0.378294692",
            "bestIteration = 240",
            "",
            "Shrink model to first 241 iterations.",
        ),
        {
            "train/value": [(0, 0.66), (20, 0.5632107), (240, 0.3225804), (260, 0.3147584), (280, 0.3068725)],
            "test/value": [(0, 0.66), (20, 0.5750483), (240, 0.3782947), (260, 0.3789593), (280, 0.3802433)],
            "test/best": [(0, 0.66), (20, 0.5750483), (240, 0.3782947), (260, 0.3782947), (280, 0.3782947)],
        },
        never=("remaining",),
    ),
    Printer(
        "Flair",
        lines(
            '2023-05-12 10:14:07,259  - max_epochs: "3"',
            "2023-05-12 10:14:08,296 "
            "----------------------------------------------------------------------------------------------------",
            "2023-05-12 10:14:09,333 epoch 1 - iter 249/1749 - loss 0.75587919 - time (sec): 5.65 - samples/sec: "
            "80.25 - lr: 0.000048",
            "2023-05-12 10:14:10,370 epoch 1 - iter 749/1749 - loss 0.49899859 - time (sec): 17.00 - "
            "samples/sec: 80.75 - lr: 0.000043",
            "2023-05-12 10:14:11,407 epoch 1 - iter 1249/1749 - loss 0.34538296 - time (sec): 28.34 - "
            "samples/sec: 81.25 - lr: 0.000038",
            "2023-05-12 10:14:12,444 epoch 1 - iter 1749/1749 - loss 0.25661131 - time (sec): 39.69 - "
            "samples/sec: 81.75 - lr: 0.000033",
            "2023-05-12 10:14:13,481 "
            "----------------------------------------------------------------------------------------------------",
            "2023-05-12 10:14:14,518 EPOCH 1 done: loss 0.5000 - lr: 0.000033",
            "2023-05-12 10:14:15,555 DEV : loss 0.5 - f1-score (micro avg)  0.67",
            "2023-05-12 10:14:16,592 saving best model",
            "2023-05-12 10:14:17,629 "
            "----------------------------------------------------------------------------------------------------",
            "2023-05-12 10:14:18,666 epoch 2 - iter 249/1749 - loss 0.23417459 - time (sec): 5.65 - samples/sec: "
            "82.00 - lr: 0.000031",
        ),
        {
            "train/loss": [
                (249, 0.75587919),
                (749, 0.49899859),
                (1249, 0.34538296),
                (1749, 0.25661131),
                (1998, 0.23417459),
            ],
            "train/learning_rate": [(249, 4.8e-05), (749, 4.3e-05), (1249, 3.8e-05), (1749, 3.3e-05), (1998, 3.1e-05)],
            "eval/loss": [(1749, 0.5)],
            "eval/f1_score": [(1749, 0.67)],
        },
    ),
    Printer(
        "Keras in a terminal",
        lines(
            "Epoch 1/3",
            "\x1b[1m   1/1875\x1b[0m \x1b[37m━━━━━━━━━━━━━━━━━━━━\x1b[0m \x1b[1m6:07\x1b[0m 196ms/step - accuracy: 0.1007 - loss: 2.3980"
            + "\b" * 75
            + "\r\x1b[1m 468/1875\x1b[0m \x1b[32m━━━━\x1b[0m\x1b[37m━━━━━━━━━━━━━━━━\x1b[0m \x1b[1m4s\x1b[0m 3ms/step - accuracy: 0.3935 - loss: 1.6081"
            + "\b" * 80
            + "\r\x1b[1m 937/1875\x1b[0m \x1b[32m━━━━━━━━━\x1b[0m\x1b[37m━━━━━━━━━━━\x1b[0m \x1b[1m3s\x1b[0m 3ms/step - accuracy: 0.5815 - loss: 1.0924"
            + "\b" * 80
            + "\r\x1b[1m1406/1875\x1b[0m \x1b[32m━━━━━━━━━━━━━━\x1b[0m\x1b[37m━━━━━━\x1b[0m \x1b[1m1s\x1b[0m 3ms/step - accuracy: 0.7142 - loss: 0.7448"
            + "\b" * 80
            + "\r\x1b[1m1875/1875\x1b[0m \x1b[32m━━━━━━━━━━━━━━━━━━━━\x1b[0m\x1b[37m\x1b[0m \x1b[1m0s\x1b[0m 3ms/step - accuracy: 0.7875 - loss: 0.5308"
            + "\b" * 80
            + "\r\x1b[1m1875/1875\x1b[0m \x1b[32m━━━━━━━━━━━━━━━━━━━━\x1b[0m\x1b[37m\x1b[0m \x1b[1m8s\x1b[0m 4ms/step - accuracy: 0.7875 - loss: 0.5308 - val_accuracy: 0.9200 - val_loss: 0.3000",
        ),
        {
            "train/accuracy": [(1, 0.1007), (468, 0.3935), (937, 0.5815), (1406, 0.7142), (1875, 0.7875)],
            "train/loss": [(1, 2.398), (468, 1.6081), (937, 1.0924), (1406, 0.7448), (1875, 0.5308)],
            "eval/accuracy": [(1875, 0.92)],
            "eval/loss": [(1875, 0.3)],
        },
    ),
]
