"""Options in classes that derive from each other, as in CycleGAN."""

import os

from options.train_options import TrainOptions

if __name__ == "__main__":
    opt = TrainOptions().parse()
    open(os.environ["ZOO_MARK"], "w").close()
