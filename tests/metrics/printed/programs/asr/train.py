"""Speech recogniser of several ranks: a logger with rank and file, TRAIN and CV rows of one form, a port, sizes."""
import asr.executor
from asr.utils import init_logging

if __name__ == "__main__":
    logger = init_logging()
    logger.info("training on multiple gpus, this gpu 0, master 10.12.0.7:29411")
    logger.info("the number of model params: 48,349,107")
    asr.executor.fit(epochs=2, batches=300, logger=logger)
