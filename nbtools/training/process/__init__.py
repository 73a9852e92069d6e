"""One training process: its signals, heartbeat, device, random state and launcher."""
