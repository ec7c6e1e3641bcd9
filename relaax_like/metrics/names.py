"""Names of the curves that show the performance of a training run."""

# The first of these curves that a run has shows its performance. The parameter server records the
# mean over the newest episodes, some agents record each episode.
MEAN_RETURN = "Train/Return"
EPISODE_LENGTH = "Train/Episode Length"
EPISODES = "Train/Episodes"
EPISODE_REWARD = "episode reward"
