"""A few real steps before a launch: time, memory and the largest batch that fits."""
