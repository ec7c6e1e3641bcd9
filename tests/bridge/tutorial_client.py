"""A client written from protos/bridge.proto alone: generates it, then trains CartPole.

Usage: tutorial_client.py PROTO ADDRESS FOLDER. It knows nothing of relaax_like; the last line
that it prints is the mean return of its last 20 episodes.
"""

import sys
import warnings

import grpc
import gymnasium
import numpy as np
from grpc_tools import protoc

PROTO, ADDRESS, FOLDER = sys.argv[1:]
MAX_EPISODES, ENOUGH = 600, 120.0


def generate():
    folder = PROTO.rpartition("/")[0]
    arguments = ["", f"-I{folder}", f"--python_out={FOLDER}", f"--grpc_python_out={FOLDER}", PROTO]
    assert protoc.main(arguments) == 0
    sys.path.insert(0, FOLDER)
    import bridge_pb2
    import bridge_pb2_grpc

    return bridge_pb2, bridge_pb2_grpc


def main():
    pb, pb_grpc = generate()
    stub = pb_grpc.ParameterServerStub(grpc.insecure_channel(ADDRESS))
    random = np.random.default_rng(1)
    warnings.simplefilter("ignore")
    env = gymnasium.make("CartPole-v0")
    scores = []
    state, _ = env.reset(seed=1)
    while len(scores) < MAX_EPISODES and np.mean(scores[-20:] or [0]) < ENOUGH:
        w1, w2 = (
            np.frombuffer(m.data, m.dtype).reshape(tuple(m.shape))
            for m in stub.GetValues(pb.NullMessage(), timeout=10)
        )
        states, actions, rewards, over = [], [], [], False
        while not over:
            pi = 1 / (1 + np.exp(-np.maximum(state @ w1, 0) @ w2))[0]
            action = 0 if random.uniform() < pi else 1
            states.append(state)
            actions.append(action)
            state, reward, terminated, truncated, _ = env.step(action)
            rewards.append(reward)
            stub.IncrementGlobalT(pb.NullMessage(), timeout=10)
            over = terminated or truncated
        gradients = compute_gradients(w1, w2, np.array(states), np.array(actions), rewards)
        stub.ApplyGradients(
            (pb.NdArray(dtype="float32", shape=g.shape, data=g.tobytes()) for g in gradients),
            timeout=10,
        )
        scores.append(sum(rewards))
        metric = pb.ScalarMetric(name="episode reward", y=scores[-1])
        if len(scores) == 1:
            metric.x.value = 1
        stub.StoreScalarMetric(metric, timeout=10)
        state, _ = env.reset()
    print(np.mean(scores[-20:]))


def compute_gradients(w1, w2, states, actions, rewards):
    returns = np.zeros(len(rewards))
    total = 0.0
    for t in reversed(range(len(rewards))):
        returns[t] = total = rewards[t] + 0.99 * total
    returns = (returns - returns.mean()) / (returns.std() + 1e-20)
    hidden = np.maximum(states @ w1, 0)
    pi = 1 / (1 + np.exp(-hidden @ w2))
    d_logits = -((actions == 0)[:, None] - pi) * returns[:, None] / len(returns)
    d_hidden = d_logits @ w2.T * (hidden > 0)
    return [(states.T @ d_hidden).astype("<f4"), (hidden.T @ d_logits).astype("<f4")]


if __name__ == "__main__":
    main()
