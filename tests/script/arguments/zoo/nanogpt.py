"""Constants that a configurator overrides, as in nanoGPT."""

import os
import time

import torch

# I/O
out_dir = "out"
eval_interval = 2000
eval_only = False  # if True, the script exits right after the first eval
init_from = "scratch"  # 'scratch' or 'resume' or 'gpt2*'
wandb_run_name = "run" + str(time.time())
# data
gradient_accumulation_steps = 5 * 8
learning_rate = 6e-4  # max learning rate
beta2 = 0.95
device = "cuda"
dtype = "bfloat16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "float16"
config_keys = [k for k, v in globals().items() if not k.startswith("_") and isinstance(v, (int, float, bool, str))]
exec(open("configurator.py").read())
config = {k: globals()[k] for k in config_keys}
open(os.environ["ZOO_MARK"], "w").close()
