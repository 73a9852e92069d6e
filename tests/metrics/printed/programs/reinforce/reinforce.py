"""Policy gradient: one row per ten episodes, an evaluation now and then, a last sentence with numbers."""
import argparse
import math

parser = argparse.ArgumentParser()
parser.add_argument("--gamma", type=float, default=0.99)
parser.add_argument("--seed", type=int, default=543)
parser.add_argument("--log_interval", type=int, default=10)
args = parser.parse_args()
for key, value in vars(args).items():
    print(f"{key:>20}: {value}")
running = 10.0
for episode in range(1, 121):
    ep_reward = 15 + 1.5 * episode + 12 * math.sin(episode)
    running = 0.05 * ep_reward + 0.95 * running
    if episode % args.log_interval == 0:
        print("Ep {}\tlast return: {:.2f}\tsmoothed return: {:.2f}".format(episode, ep_reward, running))
    if episode % 40 == 0:
        print("    eval over 5 episodes: mean return {:.1f} +/- {:.1f}".format(ep_reward + 7, 3.5))
    if running > 150:
        print("reached the threshold: smoothed {} after {} frames, stopping".format(running, episode * 199))
        break
