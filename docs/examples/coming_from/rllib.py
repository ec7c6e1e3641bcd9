"""An environment that RLlib's policy client would drive, with the three verbs instead."""

import argparse

import gymnasium

from relaax_like.client import Retry, RlxClient

parser = argparse.ArgumentParser()
parser.add_argument("--rlx-server", default="localhost:7001")
options = parser.parse_args()

env = gymnasium.make("CartPole-v1")  # any simulator: only its spaces and steps matter
spaces = env.observation_space, env.action_space
with RlxClient(options.rlx_server, *spaces, retry=Retry()) as client:  # until it is ready
    while not client.finished:
        observation, _ = env.reset()
        action = client.act(observation)  # start_episode and get_action
        over = False
        while not over and action is not None:
            observation, reward, terminated, truncated, _ = env.step(action)
            over = terminated or truncated
            if over:  # end_episode
                client.reward_and_reset(float(reward), observation, truncated=truncated)
            else:  # log_returns and get_action
                action = client.reward_and_act(float(reward), observation)
print(f"finished: {client.finished}")
