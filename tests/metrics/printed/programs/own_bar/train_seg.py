"""Colours, a bar of its own drawn by carriage returns, a loss that becomes nan, a summary over two lines."""
import math

from pretty import BOLD, GREEN, RED, RESET, bar

print(f"{BOLD}config{RESET} img_size=256 classes=19 lr=0.0100 workers=8")
N = 12
for epoch in range(1, 6):
    total = 0.0
    for i in range(1, N + 1):
        loss = 1.5 * math.exp(-((epoch - 1) * N + i) / 20) if epoch < 5 else float("nan")
        total += loss
        bar(i, N, f"loss {loss:.4f}")
    mean, iou = total / N, 0.6 - 0.5 * math.exp(-epoch / 2)
    print()
    colour = GREEN if mean == mean else RED
    print(f"{colour}Epoch {epoch}/5{RESET} train loss: {mean:.4f} ({3.2 + epoch / 10:.1f}s)\n"
          f"          val mIoU: {100 * iou:.1f}% (background {98.7}%)")
    if mean != mean:
        print(f"{RED}loss is nan, stopping training{RESET}")
        break
