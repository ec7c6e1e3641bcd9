"""What `PPO("MlpPolicy", "CartPole-v1").learn(...)` and `predict` become here."""

import argparse

import gymnasium

import relaax_like

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--run-dir", default="runs/from_sb3")
options = parser.parse_args()

result = relaax_like.train(
    "ppo",  # a shipped experiment; or the path of your own YAML file
    [
        f"run_dir={options.run_dir}",
        f"algorithm.max_global_step={options.steps}",
        "seed=1",
    ],
)
print(f"{result.finished}; mean return {result.mean_return:.1f}")

policy = relaax_like.load(options.run_dir)
env = gymnasium.make("CartPole-v1")
observation, _ = env.reset(seed=0)
policy.reset()
total, over = 0.0, False
while not over:
    action = policy.act(observation)
    observation, reward, terminated, truncated, _ = env.step(action)
    total, over = total + float(reward), terminated or truncated
print(f"a greedy episode: {total:g}")
