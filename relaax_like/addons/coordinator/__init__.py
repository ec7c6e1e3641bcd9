"""The coordinator: a persisted queue of jobs, and the resident slaves that run them.

| module | contents |
|---|---|
| `job`, `job_queue` | jobs, and their file |
| `versions` | the runs' folders at the coordinator |
| `coordinator` | slaves, assignment, time limits |
| `servicer`, `client` | both ends of `protos/relaax_like/v1/coordinator.proto` |
| `tasks` | the tasks that slaves receive, and their time limits |
| `slave` | a slave's session: `Slave`, `LearnerSlave` |
| `job_learner` | what `relaax jobs work` runs: each job in a process of its own |
| `comm_learner`, `comm_hooks` | DI-engine's `BaseCommLearner` and its hooks |

None of these modules imports TensorFlow, so an idle slave is small.
"""

import relaax_like.bridge  # noqa: F401  before grpc is loaded: limits what it logs
