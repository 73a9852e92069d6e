"""A JSON config by a flag, read as a text inside of main, as in HiFi-GAN."""

import argparse
import json
import os


class AttrDict(dict):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.__dict__ = self


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--group_name", default=None)
    parser.add_argument("--input_wavs_dir", default="LJSpeech-1.1/wavs")
    parser.add_argument("--checkpoint_path", default="cp_hifigan")
    parser.add_argument("--config", default="")
    parser.add_argument("--training_epochs", default=3100, type=int)
    parser.add_argument("--fine_tuning", default=False, type=bool)
    a = parser.parse_args()
    open(os.environ.get("ZOO_MARK", os.devnull), "w").write("executed")

    with open(a.config) as f:
        data = f.read()
    json_config = json.loads(data)
    h = AttrDict(json_config)
    os.makedirs(a.checkpoint_path, exist_ok=True)
    with open(os.path.join(a.checkpoint_path, "config.json"), "w") as f:
        json.dump(h, f)


if __name__ == "__main__":
    main()
