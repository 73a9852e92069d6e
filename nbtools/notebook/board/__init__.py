"""The board: the runs of a project as a list, their curves over each other, what differs, and scaling."""
