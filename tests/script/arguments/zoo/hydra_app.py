"""A config folder with a group for hydra."""

import os

import hydra


@hydra.main(version_base=None, config_path="hydra_conf", config_name="config")
def main(cfg) -> None:
    open(os.environ["ZOO_MARK"], "w").close()


if __name__ == "__main__":
    main()
