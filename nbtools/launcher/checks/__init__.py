"""What is told of a launch before it starts: findings, the size of its training, its steps."""
