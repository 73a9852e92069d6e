try:
    from yacs.config import CfgNode as CN
except ImportError:  # what building the config needs

    class CN(dict):
        def __init__(self, new_allowed=False):
            super().__init__()

        __getattr__ = dict.__getitem__
        __setattr__ = dict.__setitem__


_C = CN()
_C.OUTPUT_DIR = ""
_C.GPUS = (0,)
_C.MODEL = CN()
_C.MODEL.NAME = "seg_hrnet"
_C.MODEL.EXTRA = CN(new_allowed=True)
_C.TRAIN = CN()
_C.TRAIN.LR = 0.01
_C.TRAIN.FLIP = True
_C.TRAIN.IGNORE_LABEL = -1
config = _C


def update_config(cfg, args):
    cfg.defrost()
    cfg.merge_from_file(args.cfg)
    cfg.merge_from_list(args.opts)
    cfg.freeze()
