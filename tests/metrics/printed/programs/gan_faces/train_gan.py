"""GAN on faces: two counters in brackets, two numbers behind one name."""
import math

num_epochs, num_batches = 3, 60
G_losses, D_losses = [], []
print("manual seed:", 999)
print("Discriminator(\n  (main): Conv2d(3, 64, kernel_size=(4, 4), stride=(2, 2), padding=(1, 1), bias=False)\n)")
iters = 0
for epoch in range(num_epochs):
    for i in range(num_batches):
        errD = 1.3 * math.exp(-iters / 90) + 0.1 * math.cos(iters)
        errG = 1 + iters / 60 + 0.3 * math.sin(iters)
        D_x, D_G_z1, D_G_z2 = 0.5 + iters / 500, 0.5 - iters / 500, 0.45 - iters / 500
        if i % 20 == 0:
            print("[%d/%d][%d/%d] lossD: %.4f  lossG: %.4f  D(real): %.4f  D(fake): %.4f / %.4f"
                  % (epoch, num_epochs, i, num_batches, errD, errG, D_x, D_G_z1, D_G_z2))
        G_losses.append(errG)
        D_losses.append(errD)
        iters += 1
    print("saved fake_samples_epoch_%03d.png (8x8, 64 px)" % epoch)
