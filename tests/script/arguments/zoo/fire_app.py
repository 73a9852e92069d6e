"""A function for fire, as in the recipes of llama."""

import os

import fire


def main(ckpt_dir: str, temperature: float = 0.6, max_seq_len: int = 128, use_peft=False, name="x", ids=[1, 2]):
    open(os.environ["ZOO_MARK"], "w").close()


if __name__ == "__main__":
    fire.Fire(main)
