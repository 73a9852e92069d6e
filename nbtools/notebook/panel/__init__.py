"""The live panel of a run."""
