/* What few environments need, on top of rlx.h: reconnecting, TLS, pings, limits of time for each
 * step, human and safety decisions, absent slots, masks, names of agents, points of curves.
 * rlx_more.c includes rlx.c, so compile it instead of rlx.c.
 *
 *     rlx_more more;
 *     rlx_more_init(&more, "localhost:7001", "my_game", observations, 2, &action, 1);
 *     more.client.slots = 8;
 *     more.max_wait_ms = 20;
 *     rlx_status status = rlx_connect_with_retry(&more);
 *     if (status == RLX_OK) status = rlx_act(&more.client);
 *     ...
 *     rlx_more_close(&more);
 *
 * The verbs of rlx.h work with `&more.client`; rlx_connect and rlx_close do not know of the
 * settings below. `more` must not be moved after rlx_more_init.
 */
#ifndef RLX_MORE_H
#define RLX_MORE_H

#include "rlx.h"

typedef struct { const char *name, *value; } rlx_pair;

typedef struct { uint32_t slot; double score; uint64_t length; } rlx_episode;

typedef struct {
    rlx_client client; /* the settings, results and verbs of rlx.h */

    /* Settings; change them between rlx_more_init and connecting. */
    /* Milliseconds within which the server answers each step, 1 to 60000, even while its learner is
     * busy. 0, the default: no limit. */
    int max_wait_ms;
    /* Longest wait of a verb, in seconds, before it returns RLX_LATE; needs max_wait_ms. 0, the
     * default: no RLX_LATE. After it do what is safe, write it into the actions, call
     * rlx_executed, and the next verb; or call rlx_reconnect if the server's agents cannot use
     * that. The answer is dropped when it arrives. */
    double answer_timeout_sec;
    /* Seconds before a reconnection, drawn uniformly between the two each time, so that many
     * clients do not reconnect at the same moment. Default: 1 and 10. */
    double min_sleep_sec, max_sleep_sec;
    /* Receives the progress lines of reconnecting; NULL: they are dropped. Default: prints them. */
    void (*report)(const char *line);
    /* PEM files: CA certificates to trust, NULL: no TLS; the client's certificate and its
     * private key, for servers that require one. */
    const char *tls_ca, *tls_cert, *tls_key;
    const rlx_pair *versions; /* the simulator's packages and their versions, for the records */
    int num_versions;
    /* The name of each slot's agent, and the number of its game: slots with equal numbers play one
     * game. NULL: one agent in games of its own. */
    const char *const *agents;
    const uint32_t *games;
    bool wants_versions_by_slot;

    /* Set before a verb, and sent with it; NULL, the default: not sent. */
    const bool *present;    /* [slots]: slots that take part in this step, as in another's turn */
    /* [slots], with rlx_executed: where something else than the policy decided. NULL: where what
     * was carried out differs from the given action. The only slot of a client always counts. */
    const bool *overridden;
    /* Choices that are legal at these and at the final observations: for each action leaf an
     * array [slots, sum of n], or NULL if all are. Set them before connecting, too, which is then
     * refused with RLX_INVALID if the server, or its run, does not support masks. */
    const bool *const *masks, *const *final_masks;

    /* Results of the newest answer. */
    rlx_episode *episodes;      /* [client.num_episodes]: those that have ended */
    uint64_t version;           /* of the weights that chose the actions */
    uint64_t *versions_by_slot; /* [slots]: those for each slot, if wants_versions_by_slot */
    uint32_t queue_us, prediction_us, total_us; /* with max_wait_ms: how long it was in the server's
                                                 * queue, in its prediction, and there in total */
    uint64_t late_answers;      /* all that were dropped */

    /* Private. */
    bool executed, unanswered;
    uint64_t step_id, random, features;
    void *tls, *tls_method;
} rlx_more;

/* Sets up a client, without connecting; see rlx_init. */
void rlx_more_init(rlx_more *more, const char *address, const char *name, rlx_leaf *observations,
                   int num_observations, rlx_leaf *actions, int num_actions);

/* Makes one attempt to connect; see rlx_connect. */
rlx_status rlx_more_connect(rlx_more *more);

/* Connects; while the server is unavailable, sleeps a random time and retries. The first sleeps are
 * short, because the server might just be starting. Never returns RLX_UNAVAILABLE. */
rlx_status rlx_connect_with_retry(rlx_more *more);

/* After a loss: sleeps a random time, and connects with retries. Continue with a new episode. */
rlx_status rlx_reconnect(rlx_more *more);

/* Records that something other than the policy, such as a human or a safety controller, decided the
 * last actions, and that the actions now hold what was carried out. The next verb sends them. */
rlx_status rlx_executed(rlx_more *more);

/* Sends a reward without requesting an action, such as during another player's turn; the
 * observations mean nothing. It counts for the last action, as does the reward of the next verb.
 * For one slot. */
rlx_status rlx_reward_and_skip(rlx_more *more, double reward);

/* Reports that the environment is alive while its next step takes minutes: the server
 * disconnects a client that sends nothing for 600 s, its default. Does nothing if the server
 * does not support it. */
rlx_status rlx_ping(rlx_more *more);

/* Whether the server supports a feature that was asked for. */
bool rlx_has(const rlx_more *more, const char *feature);

/* Sends a point of a curve, whose name has 1 to 200 characters; x is NaN: the newest global_t. The
 * server does not answer, and drops what is invalid, or more than 2 000 per second. */
rlx_status rlx_send_point(rlx_more *more, const char *curve, double y, double x);

/* Closes the connection and frees all memory; see rlx_close. */
void rlx_more_close(rlx_more *more);

#endif
