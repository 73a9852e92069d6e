"""The process that answers with a trained model, `python -m nbtools.training`: see `prediction_server`."""

from nbtools.training import fast_imports

with fast_imports():
    from nbtools.training.prediction_server import main

if __name__ == "__main__":
    main()
