"""Phase: which variable groups are stepped together, and how often."""


class Phase:
    """One optimizer step of some variable groups within each update.

        phases = (Phase("critic"), Phase("actor", "temperature", every=2))

    Phases run in order. `learn` is called once per phase, at the values that the phases before it
    left.

    Attributes:
      groups: variable groups that are stepped.
      every: the phase runs in every n-th update.
    """

    def __init__(self, *groups: str, every: int = 1):
        if not groups:
            raise ValueError("Phase: no variable group; name those that it steps")
        if len(set(groups)) < len(groups):
            raise ValueError(f"Phase: {', '.join(groups)}: a group is named twice")
        if every < 1:
            raise ValueError(f"Phase {', '.join(groups)}: every is {every}, expected 1 or more")
        self.groups = groups
        self.every = every
