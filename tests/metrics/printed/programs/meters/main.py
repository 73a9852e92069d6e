"""Image classifier; meters format themselves, the validation prints a summary behind a star."""
import argparse
import math

from tools.meters import Meter, Progress

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--print-freq", type=int, default=10)
args = parser.parse_args()
print("=> creating model 'resnet18'")
print(args)
BATCHES = 40


def run(epoch, prefix, batches, shift):
    loss, top1, took = Meter("Loss", ":.4e"), Meter("Acc@1", ":6.2f"), Meter("Time", ":6.3f")
    progress = Progress(batches, [took, loss, top1], prefix)
    for i in range(batches):
        t = epoch * BATCHES + i
        loss.update(2.3 * math.exp(-t / 60) + shift + 0.02 * math.sin(3 * t), 64)
        top1.update(90 - 80 * math.exp(-t / 60) - 20 * shift + math.cos(t), 64)
        took.update(0.1 + 0.01 * (i % 7))
        if i % args.print_freq == 0:
            progress.display(i)
    return top1.avg


best = 0
for epoch in range(args.epochs):
    run(epoch, f"Epoch: [{epoch}]", BATCHES, 0.0)
    acc1 = run(epoch, "Test: ", 20, 0.2)
    print(" *   Acc@1 {:.3f}".format(acc1))
    best = max(best, acc1)
