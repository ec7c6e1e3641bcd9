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
 * Observations are a vector of float32 numbers (Box), actions are one of 0 to n-1 (Discrete). Each
 * call blocks until the server has answered, for at most `timeout_sec`. Not thread-safe; several
 * clients may live in one process. Memory is taken by the first rlx_connect and by nothing else. A
 * signal whose handler returns ends no call.
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
    /* The training has ended: a good end. `text` says what ended it. */
    RLX_FINISHED,
    /* No server there, lost, no answer in time, or one that asks to come back (OVERLOADED,
     * UNAVAILABLE): rlx_reconnect and begin a new episode. */
    RLX_UNAVAILABLE,
    /* The server refused, or sent what is not of this protocol. `code` tells the two apart. */
    RLX_REFUSED,
    /* An argument that cannot be, or a verb at the wrong time. Nothing was sent. */
    RLX_INVALID,
    /* No answer within `answer_timeout_sec`. The session continues: do what is safe, report it with
     * rlx_executed, and call the next verb. The answer is dropped when it comes. */
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
    /* May be changed between rlx_init and rlx_connect. */
    bool exploit;               /* best actions, nothing is learned; default: false */
    double timeout_sec;         /* longest wait for an answer; default: 60 */
    double connect_timeout_sec; /* longest wait for the TCP connection; default: 10 */
    /* The server answers each step within so many milliseconds, 1 to 60000, whatever its learner
     * does. Default: 0, it may take its time to learn. */
    int max_wait_ms;
    /* Longest wait of a verb before it returns RLX_LATE; needs max_wait_ms. Default: 0, none. */
    double answer_timeout_sec;
    /* Before a reconnection; drawn anew between the two, so that many clients do not come back at
     * the same moment. Default: 1 and 10. */
    double min_sleep_sec, max_sleep_sec;
    /* Takes the progress lines of reconnecting; NULL: nobody. Default: prints them. */
    void (*report)(const char *line);

    /* With max_wait_ms: where the time of the newest answer went at the server, in microseconds, and
     * how many answers were dropped. */
    uint32_t queue_us, prediction_us, total_us;
    uint64_t late_answers;

    /* To be read after any status but RLX_OK: one line, for people. */
    char text[1024];
    rlx_code code;   /* RLX_NO_CODE: there was no Error of the server */
    char field[128]; /* the field that the server found wrong; may be empty */

    /* The library's own. */
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

/* Sets up a client; connects to nothing yet.
 *
 * address: "HOST:PORT" or "[IPV6]:PORT"; without a port 7001. Must live as long as the client.
 * name: shown in the server's log, 1 to 100 bytes of UTF-8. Must live as long as the client.
 * observation_size: numbers of an observation, 1 or more.
 * actions: how many there are, 1 or more.
 */
void rlx_init(rlx_client *client, const char *address, const char *name, int observation_size,
              int actions);

/* Connects and says hello, once. An open connection is dropped; go on with rlx_act. */
rlx_status rlx_connect(rlx_client *client);

/* Connects; while there is no server, sleeps a random time and tries again. The first sleeps are
 * short, as the server may just be starting. Never returns RLX_UNAVAILABLE. */
rlx_status rlx_connect_with_retry(rlx_client *client);

/* After a loss: sleeps a random time, and connects with retries. Go on with a new episode. */
rlx_status rlx_reconnect(rlx_client *client);

/* Asks for the first action of an episode.
 *
 * observation: [observation_size].
 * action: set to 0 .. actions-1 when RLX_OK is returned.
 */
rlx_status rlx_act(rlx_client *client, const float *observation, int64_t *action);

/* Tells the last action's reward, finite, and asks for the next action. */
rlx_status rlx_reward_and_act(rlx_client *client, double reward, const float *observation,
                              int64_t *action);

/* Tells that something else than the policy decided the last action, such as a human or a safety
 * controller, and what was carried out. To be called before the verb that tells the reward, which
 * sends it. RLX_INVALID: no such action, or the server's agents cannot use it.
 */
rlx_status rlx_executed(rlx_client *client, int64_t action);

/* Tells a reward while no action is due, as when it is another player's turn. It counts for the last
 * action, as does the reward of the next verb. */
rlx_status rlx_reward_and_skip(rlx_client *client, double reward);

/* Tells the last reward of an episode that ended itself. Go on with rlx_act.
 *
 * score: set to the episode's sum of rewards when RLX_OK is returned; may be NULL.
 */
rlx_status rlx_reward_and_reset(rlx_client *client, double reward, double *score);

/* The same for an episode that was cut off, such as by a time limit: the value of what would have
 * followed is estimated from its final observation. */
rlx_status rlx_reward_and_truncate(rlx_client *client, double reward,
                                   const float *final_observation, double *score);

/* Closes the connection and frees all memory; the server discards an unfinished episode. May be
 * called twice, and after any status. `text`, `code` and `field` stay. */
void rlx_close(rlx_client *client);

#endif
