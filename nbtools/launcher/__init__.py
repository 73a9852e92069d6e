"""From a script to a running job: preflight checks, launch, supervisor, resume."""
