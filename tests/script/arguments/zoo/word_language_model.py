"""Many short arguments on module level, as in the language model example of PyTorch."""

import argparse
import os

parser = argparse.ArgumentParser(description="PyTorch Wikitext-2 RNN/GRU/LSTM/Transformer Language Model")
add = parser.add_argument
add("--data", type=str, default="./data/wikitext-2", help="location of the data corpus")
add("--model", type=str, default="LSTM", help="type of network (RNN_TANH, RNN_RELU, LSTM, GRU, Transformer)")
add("--emsize", type=int, default=200, help="size of word embeddings")
add("--lr", type=float, default=20, help="initial learning rate")
add("--tied", action="store_true", help="tie the word embedding and softmax weights")
add("--save", type=str, default="model.pt", help="path to save the final model")
add("--onnx-export", type=str, default="", help="path to export the final model in onnx format")
args = parser.parse_args()
open(os.environ["ZOO_MARK"], "w").close()
