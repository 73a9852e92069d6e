"""BERT-style pretraining by masked language modelling."""

from nbtools.training import main as main
