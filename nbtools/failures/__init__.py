"""Why a run failed: the evidence in its files, the known errors, and the automatic restarts."""
