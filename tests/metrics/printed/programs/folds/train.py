"""Cross-validation as in competitions: a header per fold, two rows per epoch, a row of the best score at times."""
import math

from src.utils import CFG, LOGGER


def train_loop(fold):
    LOGGER.info(f"========== fold: {fold} training ==========")
    best_score = 0.0
    for epoch in range(CFG.epochs):
        avg_loss = 0.7 * math.exp(-epoch / 3) + 0.02 * fold
        avg_val_loss = 0.72 * math.exp(-epoch / 4) + 0.03 * fold
        score = [0.71, 0.78, 0.77, 0.81][epoch] + 0.01 * fold
        elapsed = 31 + epoch + fold
        LOGGER.info(f"Epoch {epoch+1} - train_loss: {avg_loss:.4f}  val_loss: {avg_val_loss:.4f}  elapsed: {elapsed:.0f}s")
        LOGGER.info(f"Epoch {epoch+1} - Score: {score:.4f}")
        if score > best_score:
            best_score = score
            LOGGER.info(f"Epoch {epoch+1} - new best score: {best_score:.4f}, saved")
    return best_score


if __name__ == "__main__":
    LOGGER.info(f"num_workers={CFG.num_workers} size={CFG.size} lr={CFG.lr}")
    scores = [train_loop(fold) for fold in range(CFG.n_fold)]
    LOGGER.info("========== CV ==========")
    LOGGER.info(f"Score: {sum(scores) / len(scores):<.4f}")
