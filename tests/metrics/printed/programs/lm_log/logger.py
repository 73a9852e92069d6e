import functools


def _log(text, path, print_=True):
    if print_:
        print(text, flush=True)
    with open(path, "a") as file:
        file.write(text + "\n")


def get_logger(path):
    return functools.partial(_log, path=path)
