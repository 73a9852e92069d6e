import sys

BOLD, GREEN, RED, RESET = "\033[1m", "\033[32m", "\033[31m", "\033[0m"


def bar(i, n, text, width=20):
    full = width * i // n
    sys.stdout.write("\r[" + "#" * full + "." * (width - full) + f"] {i}/{n} {text}")
    sys.stdout.flush()
