"""What every training loop uses: worker, plan, optimizer, checkpoints, sampler, flags."""
