"""Numbers with thousands separators; after each thousand steps a loop prints one line for each task of a dict."""
import math

TASKS = {"cola": "mcc", "sst2": "acc", "stsb": "pearson"}
WORLD, BS = 4, 32
print(f"global batch {WORLD * BS}, {1_250_000:,} tokens per step, {6_738_415_616:,} parameters")


def evaluate(step):
    return {task: 0.9 - 0.5 * math.exp(-step / 2000) - 0.05 * i for i, task in enumerate(TASKS)}


for step in range(500, 4001, 500):
    loss = 2 + 5 * math.exp(-step / 1500)
    print(f"[step {step:,}/4,000] loss={loss:.3f} ppl={math.exp(loss):,.1f} tok/s={151_000 + step:,} mem={31.4:.1f}GB")
    if step % 1000 == 0:
        print(f"--- evaluation @ {step:,} ---")
        for task, score in evaluate(step).items():
            print(f"  {task:<6}{TASKS[task]:>8}  {score:.4f}")
        print("---")
