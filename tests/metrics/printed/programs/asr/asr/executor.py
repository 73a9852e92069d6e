import math


def fit(epochs, batches, logger):
    step = 0
    for epoch in range(epochs):
        logger.info("Epoch %d TRAIN begins, lr %.8f", epoch, 1e-5 * (epoch + 1))
        for batch in range(batches):
            loss = 80 * math.exp(-step / 300) + 9
            if batch % 100 == 0:
                log_str = "TRAIN Batch {}/{} loss {:.6f} ".format(epoch, batch, loss)
                for name, value in {"loss_att": loss * 0.8, "loss_ctc": loss * 1.4}.items():
                    log_str += "{} {:.6f} ".format(name, value)
                log_str += "lr {:.8f} rank {}".format(1e-5 + 1e-7 * step, 0)
                logger.debug(log_str)
            step += 1
        for batch in range(0, 200, 100):
            logger.debug("CV Batch {}/{} loss {:.6f} history loss {:.6f}".format(
                epoch, batch, 40 / (epoch + 1) + batch / 100, 41 / (epoch + 1)))
        logger.info("Epoch %d CV done, cv_loss %s", epoch, round(42 / (epoch + 1), 5))
        logger.info("saved exp/%d.pt (%.1f MB)", epoch, 184.7)
