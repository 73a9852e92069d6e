import sys
from logging import INFO, FileHandler, Formatter, StreamHandler, getLogger


class CFG:
    num_workers = 4
    size = 512
    epochs = 4
    lr = 1e-4
    n_fold = 2


def init_logger(log_file="train.log"):
    logger = getLogger(__name__)
    logger.setLevel(INFO)
    for handler in (StreamHandler(sys.stdout), FileHandler(filename=log_file)):
        handler.setFormatter(Formatter("%(message)s"))
        logger.addHandler(handler)
    return logger


LOGGER = init_logger()
