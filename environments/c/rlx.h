/* A client of an rlx server in C99, for one environment; rlx_more.h adds what few of them need.
 * rlx.c includes rlx_wire.c, which is needed, too, but not compiled by itself.
 *
 *     float state[4];
 *     int64_t choice, choices[] = {2};
 *     rlx_leaf observation = {.name = "observation", .kind = RLX_BOX, .dtype = "float32",
 *                             .axes = 1, .shape = {4}, .data = state};
 *     rlx_leaf action = {.name = "action", .kind = RLX_DISCRETE, .dtype = "int64",
 *                        .n = choices, .data = &choice};
 *     rlx_client client;
 *     rlx_init(&client, "localhost:7001", "my_game", &observation, 1, &action, 1);
 *     rlx_status status = rlx_connect(&client);
 *     if (status == RLX_OK) status = rlx_act(&client);    // sends `state`, sets `choice`
 *     ...
 *     rlx_close(&client);
 *
 * Each leaf of a space names the memory that holds its values: a verb sends the observations'
 * values and writes those of the actions. rlx_connect and the verbs block until the server has
 * answered, for at most `timeout_sec`; looking up a host name can take longer. Not thread-safe;
 * a process can have several clients. A signal whose handler returns does not interrupt a call.
 *
 * From C++ include rlx.hpp. The protocol: docs/protocol.md and protos/relaax_like/v1/rlx.proto.
 */
#ifndef RLX_H
#define RLX_H

#include "rlx_wire.h"

/* RLX_FINISHED: the training has ended, not with an error; `text` says what ended it.
 * RLX_UNAVAILABLE: the server cannot be reached, was lost, did not answer in time, or asked to
 *   retry later (OVERLOADED, UNAVAILABLE). Pause, connect, and begin a new episode.
 * RLX_REFUSED: the server refused (`code`), or sent what this protocol does not allow.
 * RLX_INVALID: an invalid setting, a verb at the wrong time, or what the server does not support.
 * RLX_LATE: only with `answer_timeout_sec` of rlx_more.h. No answer yet; the session continues. */
typedef enum {
    RLX_OK, RLX_FINISHED, RLX_UNAVAILABLE, RLX_REFUSED, RLX_INVALID, RLX_LATE
} rlx_status;

/* Codes of the server's Error; a newer server can have others. */
enum {
    RLX_NO_CODE, RLX_MALFORMED, RLX_VERSION_MISMATCH, RLX_SPACE_MISMATCH, RLX_INVALID_FIELD,
    RLX_OUT_OF_ORDER, RLX_OVERLOADED, RLX_UNAUTHENTICATED, RLX_AGENT_FAILED, RLX_SERVER_UNAVAILABLE
};

typedef enum { RLX_BOX = 1, RLX_DISCRETE, RLX_MULTI_DISCRETE, RLX_MULTI_BINARY } rlx_kind;

enum { RLX_MAX_AXES = 32 };

/* One leaf of an observation or action space, and where its values are. A plain space is one leaf
 * named "observation" or "action"; a nested one has several, named by their paths. Names have 1 to
 * 200 characters of "A-Z a-z 0-9 _ - . /". What is left out is 0 or NULL. */
typedef struct {
    const char *name;
    rlx_kind kind;
    /* bool, int8 to int64, uint8 to uint64, float16 to float64, bfloat16. DISCRETE and
     * MULTI_DISCRETE need integers. bool is one byte, 0 or 1. */
    const char *dtype;
    int axes; /* of one value; 0 for DISCRETE */
    int64_t shape[RLX_MAX_AXES];
    /* BOX: bounds, each an array of this shape and dtype; NULL: unbounded. Actions are clipped to
     * them, except those of float16 and bfloat16. */
    const void *low, *high;
    const int64_t *n; /* DISCRETE: one number of choices; MULTI_DISCRETE: one for each component */
    int64_t start;    /* DISCRETE: the first choice */
    void *data;       /* [shape], or [slots, shape] with several slots, in C order */
    size_t count, item_size; /* set by rlx_connect: numbers in one slot, bytes of one */
    bool given;              /* private */
} rlx_leaf;

/* What happened in all slots. Arrays have one element for each slot. */
typedef struct {
    const double *rewards; /* of the last actions; NULL: there were none */
    const bool *terminated, *truncated; /* with rewards */
    const int8_t *success; /* of ended episodes: 1, 0, -1 unknown; NULL: not known */
    bool observes;          /* false: every slot ended, and no new episode has begun */
    /* Whether final observations are sent, as they must be if a slot was truncated: one array for
     * each observation leaf, as its data; NULL: the observations' data are the final ones. */
    bool sends_finals;
    const void *const *finals;
} rlx_step;

typedef struct rlx_client {
    rlx_wire wire; /* private; first, for rlx_more.c */

    /* Settings; change them between rlx_init and rlx_connect. */
    const char *address; /* "HOST:PORT" or "[IPV6]:PORT"; without a port 7001 */
    const char *name;    /* for the server's log: 1 to 100 bytes of UTF-8, no control characters */
    const char *token;   /* a secret that the server can require; NULL: no token */
    rlx_leaf *observations, *actions;
    int num_observations, num_actions;
    int slots;         /* environments that are stepped together; default: 1 */
    bool exploit;      /* best actions, nothing is learned */
    bool sends_finals; /* rlx_reward_and_reset sends the final observation; for hindsight */
    double timeout_sec, connect_timeout_sec; /* longest wait for an answer or ping, default: 60; for
                                              * the connection, default: 10 */

    /* Results. */
    double score;    /* of the newest ended episode: its sum of rewards */
    bool finished;   /* the training has ended */
    char text[1024]; /* after any status but RLX_OK: one line that describes it */
    uint64_t code;   /* of the server's Error; RLX_NO_CODE: the server sent no Error */
    char field[256]; /* the field that the server found wrong; can be empty */

    /* Private. */
    bool reward_due;
    int num_episodes;
    size_t max_message_bytes;
    rlx_status (*exchange)(struct rlx_client *, const rlx_step *step); /* NULL: that of rlx.c */
} rlx_client;

/* Sets up a client, without connecting; rlx_connect checks the arguments. All of them must stay
 * valid as long as the client, and so must what the leaves point to. */
void rlx_init(rlx_client *client, const char *address, const char *name, rlx_leaf *observations,
              int num_observations, rlx_leaf *actions, int num_actions);

/* Makes one attempt to connect and to exchange the hello. Drops a connection that is open. Continue
 * with rlx_act. */
rlx_status rlx_connect(rlx_client *client);

/* Requests the first action of an episode. RLX_OK: the actions' values are there. */
rlx_status rlx_act(rlx_client *client);

/* Sends the last action's reward, a finite number, and requests the next action. */
rlx_status rlx_reward_and_act(rlx_client *client, double reward);

/* Sends the last reward of an episode that ended in a terminal state, and whether it was a
 * success: 1 yes, 0 no, -1 unknown. RLX_OK: `score` is set. Continue with rlx_act. */
rlx_status rlx_reward_and_reset(rlx_client *client, double reward, int success);

/* Sends the last reward of an episode that was cut off, such as by a time limit. The
 * observations are what was seen last: the value of what would have followed is estimated from
 * it. */
rlx_status rlx_reward_and_truncate(rlx_client *client, double reward, int success);

/* Sends what happened in all slots, and requests their next actions: the verbs for several
 * slots. */
rlx_status rlx_exchange(rlx_client *client, const rlx_step *step);

/* Closes the connection and frees all memory; the server discards an unfinished episode.
 * Idempotent, and allowed after any status. `text`, `code` and `field` keep their values. */
void rlx_close(rlx_client *client);

#endif
