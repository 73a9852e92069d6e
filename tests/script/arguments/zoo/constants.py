"""Constants that branches decide, that come from others, and that share a line, read by a configurator."""

import os

import torch

_here = os.path.dirname(os.path.abspath(__file__))
root = os.environ.get("DATA_ROOT", "data")
data_dir = os.path.join(root, "book")
n_layer, n_head = 12, 6  # of the model
n_embd = 64 * n_head
vocab_size = None  # of the data
learning_rate = 6e-4
min_lr = learning_rate / 10  # lowest rate
if torch.cuda.is_available():
    dtype = "bfloat16"
else:
    dtype = "float32"
workers = 4
if os.environ.get("SLURM_JOB_ID"):
    workers = os.cpu_count()
seed = 1337
seed += n_layer
exec(open(os.path.join(_here, "configurator.py")).read())
open(os.environ["ZOO_MARK"], "w").close()
