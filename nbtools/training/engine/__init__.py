"""Parts shared by all training loops: worker, plan, optimizer, checkpoints, sampler, flags."""
