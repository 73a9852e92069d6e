"""Data sets without torch: text corpora, tables, hub data, and the data of each recipe."""
