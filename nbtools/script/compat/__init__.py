"""Names, YAML files and shell scripts of the programs that the recipes replace."""
