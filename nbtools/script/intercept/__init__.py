"""Runs a program up to its parser and writes down what it declares: started by path, by the program's interpreter.

It imports nothing of nbtools, which that interpreter may lack, and works with Python 3.8 and later.
"""
