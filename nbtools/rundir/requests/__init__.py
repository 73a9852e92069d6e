"""The requests to a running training, and the events that answer them."""
