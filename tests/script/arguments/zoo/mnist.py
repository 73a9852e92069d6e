"""Short flags without types, as in the MNIST example of PyTorch."""

import argparse
import os


def main():
    # Training settings
    parser = argparse.ArgumentParser(description="PyTorch MNIST Example")
    parser.add_argument(
        "--batch-size", type=int, default=64, metavar="N", help="input batch size (default: %(default)s)"
    )
    parser.add_argument("--gamma", type=float, default=0.7, metavar="M", help="Learning rate step gamma (default: 0.7)")
    parser.add_argument("--no-accel", action="store_true", default=False, help="disables accelerator")
    parser.add_argument("--save-model", action="store_true", help="For Saving the current Model")
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("-v", "--verbose", action="count", default=0, help="100%% more output")
    args = parser.parse_args()
    open(os.environ["ZOO_MARK"], "w").close()


if __name__ == "__main__":
    main()
