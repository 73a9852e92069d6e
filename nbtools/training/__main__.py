"""The process that answers with a trained model, `python -m nbtools.training`: see `prediction_server`."""

from nbtools.training import load

if __name__ == "__main__":
    load("nbtools.training.prediction_server").main()
