"""Steering of a running training: the requests of its owner, and the events that answer them."""
