"""The process of a trial: steps of a recipe's own training, measured."""
