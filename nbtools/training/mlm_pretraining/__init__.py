"""BERT-style pretraining by masked language modelling."""

from nbtools.training.mlm_pretraining.train import main

__all__ = ["main"]
