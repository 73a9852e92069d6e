"""Code tables, samples and built-in examples of the text-classification recipe."""
