"""Uses a trained model in a process of its own, for the command line and notebooks: no torch here."""
