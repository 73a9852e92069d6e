"""A dataclass with texts below its fields for tyro, as in CleanRL."""

import os
from dataclasses import dataclass

import tyro


@dataclass
class Args:
    exp_name: str = os.path.basename(__file__)[: -len(".py")]
    """the name of this experiment"""
    seed: int = 1
    """seed of the experiment"""
    torch_deterministic: bool = True
    """if toggled, `torch.backends.cudnn.deterministic=False`"""
    track: bool = False
    """if toggled, this experiment will be tracked with Weights and Biases"""
    wandb_entity: str | None = None
    """the entity (team) of wandb's project"""
    total_timesteps: int = 500000
    """total timesteps of the experiments"""
    learning_rate: float = 2.5e-4
    """the learning rate of the optimizer"""
    target_kl: float | None = None
    """the target KL divergence threshold"""
    batch_size: int = 0
    """the batch size (computed in runtime)"""


if __name__ == "__main__":
    args = tyro.cli(Args)
    open(os.environ["ZOO_MARK"], "w").close()
