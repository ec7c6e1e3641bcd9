/* A client of an rlx server, for one environment: the three verbs in C99 and POSIX, nothing else.
 *
 *     rlx_client client;
 *     float observation[4];
 *     int64_t action;
 *     rlx_init(&client, "localhost:7001", "my_game", 4, 2);
 *     rlx_status status = rlx_connect_with_retry(&client);
 *     if (status == RLX_OK) status = rlx_act(&client, observation, &action);
 *     ...
 *     rlx_close(&client);
 *
 * Observations are a vector of float32 numbers (Box), actions are one of 0 to n-1 (Discrete). The
 * verbs and rlx_connect block until the server has answered, for at most `timeout_sec` (rlx_connect
 * also waits up to `connect_timeout_sec`); the calls with retries block for as long as it takes. Not
 * thread-safe; a process can have several clients. Only the first rlx_connect allocates memory. A
 * signal whose handler returns does not interrupt a call.
 *
 * The protocol: docs/protocol.md and protos/relaax_like/v1/rlx.proto.
 */
#ifndef RLX_CLIENT_H
#define RLX_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    RLX_OK = 0,
    /* The training has ended, not with an error. `text` says what ended it. */
    RLX_FINISHED,
    /* The server cannot be reached, was lost, did not answer in time, or asked to retry later
     * (OVERLOADED, UNAVAILABLE): call rlx_reconnect and begin a new episode. */
    RLX_UNAVAILABLE,
    /* The server refused (`code` is not RLX_NO_CODE), or sent what this protocol does not allow. */
    RLX_REFUSED,
    /* An invalid setting or argument, a verb at the wrong time, or something that the server does not
     * support. */
    RLX_INVALID,
    /* No answer within `answer_timeout_sec`. The session continues. If the verb requested an action:
     * do what is safe, report it with rlx_executed, and call the next verb; or call rlx_reconnect if
     * the server's agents cannot use that. The answer is dropped when it arrives. */
    RLX_LATE
} rlx_status;

/* Codes of the server's Error. */
typedef enum {
    RLX_NO_CODE = 0,
    RLX_MALFORMED = 1,
    RLX_VERSION_MISMATCH = 2,
    RLX_SPACE_MISMATCH = 3,
    RLX_INVALID_FIELD = 4,
    RLX_OUT_OF_ORDER = 5,
    RLX_OVERLOADED = 6,
    RLX_UNAUTHENTICATED = 7,
    RLX_AGENT_FAILED = 8,
    RLX_SERVER_UNAVAILABLE = 9
} rlx_code;

typedef struct rlx_client {
    /* Settings; change them between rlx_init and rlx_connect. */
    bool exploit;               /* best actions, nothing is learned; default: false */
    double timeout_sec;         /* longest wait for an answer; default: 60 */
    double connect_timeout_sec; /* longest wait for the TCP connection; default: 10 */
    /* Milliseconds within which the server answers each step, 1 to 60000, even while its learner is
     * busy. Default: 0, no limit: the server can wait for its learner. */
    int max_wait_ms;
    /* Longest wait of a verb, in seconds, before it returns RLX_LATE; needs max_wait_ms. Default: 0,
     * no RLX_LATE. */
    double answer_timeout_sec;
    /* Seconds before a reconnection, drawn uniformly between the two each time, so that many clients
     * do not reconnect at the same moment. Default: 1 and 10. */
    double min_sleep_sec, max_sleep_sec;
    /* Receives the progress lines of reconnecting; NULL: they are dropped. Default: prints them. */
    void (*report)(const char *line);

    /* With max_wait_ms: how long the newest answer spent in the server, in microseconds (in its
     * queue, in its prediction, in total), and how many answers came too late and were dropped. */
    uint32_t queue_us, prediction_us, total_us;
    uint64_t late_answers;

    /* Valid after any status but RLX_OK: one line that describes it. */
    char text[1024];
    rlx_code code;   /* of the server's Error; RLX_NO_CODE: the server sent no Error */
    char field[128]; /* the field that the server found wrong; can be empty */

    /* Private to the library. */
    const char *address, *name;
    int observation_size, actions;
    int socket;
    bool reward_due, finished, unanswered;
    bool can_execute, can_skip; /* features of the session */
    bool has_executed;
    int64_t executed;
    uint64_t step_id;
    uint8_t *output, *input;
    size_t output_bytes, input_bytes, input_used;
    uint64_t random;
} rlx_client;

/* Sets up a client, without connecting; rlx_connect checks the arguments.
 *
 * address: "HOST:PORT" or "[IPV6]:PORT"; without a port 7001. Must stay valid as long as the client.
 * name: shown in the server's log, 1 to 100 bytes of UTF-8 without control characters. Must stay
 *   valid as long as the client.
 * observation_size: number of float32 numbers in an observation, 1 or more.
 * actions: number of actions, 1 or more.
 */
void rlx_init(rlx_client *client, const char *address, const char *name, int observation_size,
              int actions);

/* Makes one attempt to connect and to exchange the hello. Drops a connection that is open. Continue
 * with rlx_act. */
rlx_status rlx_connect(rlx_client *client);

/* Connects; while the server is unavailable, sleeps a random time and retries. The first sleeps are
 * short, because the server might just be starting. Never returns RLX_UNAVAILABLE. */
rlx_status rlx_connect_with_retry(rlx_client *client);

/* After a loss: sleeps a random time, and connects with retries. Continue with a new episode. */
rlx_status rlx_reconnect(rlx_client *client);

/* Requests the first action of an episode.
 *
 * observation: [observation_size].
 * action: set to 0 .. actions-1 when RLX_OK is returned.
 */
rlx_status rlx_act(rlx_client *client, const float *observation, int64_t *action);

/* Sends the last action's reward, a finite number, and requests the next action. */
rlx_status rlx_reward_and_act(rlx_client *client, double reward, const float *observation,
                              int64_t *action);

/* Records that something other than the policy, such as a human or a safety controller, decided the
 * last action, and the action that was executed. Call it before the verb that sends the reward; that
 * verb sends the action, too. RLX_INVALID: there is no such action, or no action to replace, or the
 * server's agents cannot use it.
 */
rlx_status rlx_executed(rlx_client *client, int64_t action);

/* Sends a reward without requesting an action, such as during another player's turn. It counts for
 * the last action, as does the reward of the next verb. RLX_INVALID: also if the server's agents
 * cannot use it. */
rlx_status rlx_reward_and_skip(rlx_client *client, double reward);

/* Sends the last reward of an episode that ended in a terminal state. Continue with rlx_act.
 *
 * score: set to the episode's sum of rewards when RLX_OK is returned; can be NULL.
 */
rlx_status rlx_reward_and_reset(rlx_client *client, double reward, double *score);

/* Sends the last reward of an episode that was cut off, such as by a time limit; the value of what
 * would have followed is estimated from its final observation. `score` as above. */
rlx_status rlx_reward_and_truncate(rlx_client *client, double reward,
                                   const float *final_observation, double *score);

/* Closes the connection and frees all memory; the server discards an unfinished episode. Idempotent,
 * and allowed after any status. `text`, `code` and `field` keep their values. */
void rlx_close(rlx_client *client);

#endif
