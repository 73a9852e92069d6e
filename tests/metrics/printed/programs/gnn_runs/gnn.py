"""Node classification, several runs: percentages, the split is the name, statistics with a plus-minus at the end."""
import math
import statistics

runs, epochs, log_steps = 2, 60, 10
results = []
print("Namespace(device=0, log_steps=10, num_layers=3, hidden_channels=256, dropout=0.5, lr=0.01, epochs=60, runs=2)")
for run in range(runs):
    best = (0.0, 0.0)
    for epoch in range(1, 1 + epochs):
        loss = 3.7 * math.exp(-epoch / 20) + 0.9 + 0.05 * run
        train_acc, valid_acc, test_acc = (0.75 + 0.01 * run - k * 0.02 - 0.6 * math.exp(-epoch / 15) for k in range(3))
        best = max(best, (valid_acc, test_acc))
        if epoch % log_steps == 0:
            print(f'Run: {run + 1:02d}, '
                  f'Epoch: {epoch:02d}, '
                  f'Loss: {loss:.4f}, '
                  f'Train: {100 * train_acc:.2f}%, '
                  f'Valid: {100 * valid_acc:.2f}% '
                  f'Test: {100 * test_acc:.2f}%')
    results.append(best)
    print(f"Run {run + 1:02d}:\n  best valid: {100 * best[0]:.2f}\n  test there: {100 * best[1]:.2f}")
print("All runs:")
print(f"  test: {100 * statistics.mean(b for _, b in results):.2f} ± {0.31:.2f}")
