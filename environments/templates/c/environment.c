/* __NAME__: an environment that asks an rlx server for its actions. */
#include "rlx_more.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Replace from here by your own: now observations are random, and an episode has 20 steps. */

/* `data` holds the values. */
static rlx_leaf observations[] = __OBSERVATION__;
static rlx_leaf actions[] = __ACTION__;
enum { NUM_OBSERVATIONS = sizeof observations / sizeof *observations };
enum { NUM_ACTIONS = sizeof actions / sizeof *actions };

static int steps;

/* Writes random values. */
static void sample(rlx_leaf *leaf) {
    for (size_t i = 0; i < leaf->count; i++) {
        double part = rand() / (RAND_MAX + 1.0);
        float single = (float)part;
        int64_t n = leaf->kind == RLX_DISCRETE ? *leaf->n : 2;
        if (leaf->kind == RLX_MULTI_DISCRETE) n = leaf->n[i];
        int64_t integer = leaf->start + (int64_t)(part * (double)n);
        const void *value = &integer;
        if (strstr(leaf->dtype, "float")) value = leaf->item_size == 8 ? (void *)&part : &single;
        memcpy((char *)leaf->data + i * leaf->item_size, value, leaf->item_size);
    }
}

/* Begins an episode; writes its first observation. */
static void reset(void) {
    steps = 0;
    for (int i = 0; i < NUM_OBSERVATIONS; i++) sample(&observations[i]);
}

/* Does what `actions` hold, and writes the observation; returns the reward. truncated: the episode
 * is cut off, as by a time limit. */
static double step(bool *terminated, bool *truncated) {
    steps++;
    for (int i = 0; i < NUM_OBSERVATIONS; i++) sample(&observations[i]);
    *terminated = false;
    *truncated = steps == 20;
    return 1;
}

/* To here. */

static rlx_status play_episode(rlx_client *client) {
    bool terminated = false, truncated = false;
    reset();
    rlx_status status = rlx_act(client);
    while (status == RLX_OK) {
        double reward = step(&terminated, &truncated);
        if (terminated) return rlx_reward_and_reset(client, reward, -1);
        if (truncated) return rlx_reward_and_truncate(client, reward, -1);
        status = rlx_reward_and_act(client, reward);
    }
    return status;
}

/* Returns the first line of a file; NULL: it cannot be read. */
static const char *read_line(const char *path) {
    static char line[1024];
    FILE *file = fopen(path, "r");
    bool read = file && fgets(line, sizeof line, file);
    if (file) fclose(file);
    line[strcspn(line, "\r\n")] = '\0';
    return read ? line : NULL;
}

static int refuse(const char *flag, const char *what) {
    fprintf(stderr, "__NAME__: %s: %s\n", flag, what);
    return 2;
}

int main(int argc, char **argv) {
    rlx_more more;
    rlx_client *client = &more.client;
    rlx_more_init(&more, "localhost:7001", "__NAME__", observations, NUM_OBSERVATIONS, actions,
                  NUM_ACTIONS);
    const char *token = getenv("RELAAX_TOKEN");
    client->token = token && *token ? token : NULL;
    for (int i = 1; i < argc; i += 2) {
        const char *value = argv[i + 1];
        if (!value) return refuse(argv[i], "expected a value after it");
        if (!strcmp(argv[i], "--rlx-server")) client->address = value;
        else if (!strcmp(argv[i], "--name")) client->name = value;
        else if (!strcmp(argv[i], "--tls-ca")) more.tls_ca = value;
        else if (!strcmp(argv[i], "--tls-cert")) more.tls_cert = value;
        else if (!strcmp(argv[i], "--tls-key")) more.tls_key = value;
        else if (strcmp(argv[i], "--token-file"))
            return refuse(argv[i], "expected --rlx-server, --name, --token-file, --tls-ca, "
                                   "--tls-cert or --tls-key");
        else if (!(client->token = read_line(value)))
            return refuse(argv[i], "expected a file with a token");
    }
    srand((unsigned)time(NULL));
    rlx_status status = rlx_connect_with_retry(&more);
    while (status == RLX_OK) {
        status = play_episode(client);
        if (status == RLX_UNAVAILABLE) status = rlx_reconnect(&more);
    }
    fprintf(status == RLX_FINISHED ? stdout : stderr, "__NAME__: %s\n", client->text);
    rlx_more_close(&more);
    return status == RLX_FINISHED ? 0 : client->code == RLX_AGENT_FAILED ? 1 : 2;
}
