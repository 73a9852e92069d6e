"""Options of training."""

from .base_options import BaseOptions


class TrainOptions(BaseOptions):
    def initialize(self, parser):
        parser = BaseOptions.initialize(self, parser)
        parser.add_argument("--display_freq", type=int, default=400, help="frequency of showing results")
        parser.add_argument("--continue_train", action="store_true", help="continue training: load the latest model")
        parser.add_argument("--lr_policy", type=str, default="linear", help="learning rate policy.")
        self.isTrain = True
        return parser
