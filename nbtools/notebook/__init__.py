"""The notebook wing: ipywidgets and matplotlib live only here."""
