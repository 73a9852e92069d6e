"""The training wing: torch and transformers live only here; exported scripts name its modules as text."""

import os

PARENT_PID = os.getppid()
"""Who started this process, asked before torch takes its seconds to load: torchrun's agent, or a shell."""
