"""A generator and a discriminator, both language models, trained against each other."""

from nbtools.training import main as main
