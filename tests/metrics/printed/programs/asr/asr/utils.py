import logging
import os
import sys


def init_logging():
    rank = int(os.environ.get("RANK", 0))
    logging.basicConfig(level=logging.DEBUG, stream=sys.stdout,
                        format=f"%(asctime)s [rank{rank}] %(levelname)s %(filename)s:%(lineno)d %(message)s")
    return logging.getLogger("asr")
