"""Where the data of a training comes from: found, read, checked, divided and counted, without torch."""
