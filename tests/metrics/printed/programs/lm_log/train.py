"""Word-level language model; rows between bars, an end-of-epoch row between rules, a log that is also a file."""
import math

from logger import get_logger

log_interval, batches, lr = 50, 220, 20.0
logging = get_logger("log.txt")
logging("options: {}".format({"emsize": 200, "nhid": 200, "bptt": 35, "clip": 0.25, "dropout": 0.2}))
logging("=" * 89)
logging("    - vocabulary 33278, parameters 13819578")
best = None
for epoch in range(1, 4):
    total = 0.0
    for batch in range(batches):
        total += 4 + 3 * math.exp(-((epoch - 1) * batches + batch) / 150)
        if batch % log_interval == 0 and batch > 0:
            cur = total / log_interval
            logging("| epoch {:3d} | {:5d}/{:5d} chunks | lr {:02.2f} | ms/chunk {:5.2f} | loss {:5.2f} | ppl {:8.2f}".format(
                epoch, batch, batches, lr, 11.2 + batch % 3, cur, math.exp(cur)))
            total = 0.0
    val_loss = 4.6 + 1 / epoch
    logging("-" * 89)
    logging("| epoch {:3d} done | took {:5.2f}s | valid loss {:5.2f} | valid ppl {:8.2f}".format(
        epoch, 2.5 + epoch / 10, val_loss, math.exp(val_loss)))
    logging("-" * 89)
    if not best or val_loss < best:
        best = val_loss
    else:
        lr /= 4.0
logging("=" * 89)
logging("| finished | test loss {:5.2f} | test ppl {:8.2f}".format(best - 0.05, math.exp(best - 0.05)))
