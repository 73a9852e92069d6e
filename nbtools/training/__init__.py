"""Training: the only part that imports torch and transformers; exported scripts name its modules as text."""

import os

PARENT_PID = os.getppid()
"""The process that started this one, torchrun's agent or a shell; read before torch takes seconds to load."""
