/* Makes the calls of a test with the client in C; see support/drivers.py, which spells them.
 *
 *     driver ADDRESS [CA]      calls come as words on standard input
 */
#include "rlx_more.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LEAVES = 8, MAX_SLOTS = 4 };

typedef struct {
    rlx_leaf leaves[MAX_LEAVES];
    char names[MAX_LEAVES][64], dtypes[MAX_LEAVES][16];
    void *finals[MAX_LEAVES];
    const bool *masks[MAX_LEAVES];
    int count;
} space;

static rlx_more more;
static space observations, actions;
static int slots;

static const char *read_word(void)
{
    static char word[256];
    if (scanf("%255s", word) != 1) exit(0);
    return word;
}

static double read_number(void) { return atof(read_word()); }
static int64_t read_integer(void) { return atoll(read_word()); }

static void *allocate(size_t count)
{
    void *memory = calloc(count + 1, 8);
    return memory ? memory : (exit(3), NULL);
}

static size_t count_numbers(const rlx_leaf *leaf)
{
    size_t count = 1;
    for (int i = 0; i < leaf->axes; i++) count *= (size_t)leaf->shape[i];
    return count;
}

static void put(const char *dtype, void *data, size_t i, double value)
{
    if (!strcmp(dtype, "float32")) ((float *)data)[i] = (float)value;
    else if (!strcmp(dtype, "float64")) ((double *)data)[i] = value;
    else if (!strcmp(dtype, "int8")) ((int8_t *)data)[i] = (int8_t)value;
    else if (!strcmp(dtype, "uint8")) ((uint8_t *)data)[i] = (uint8_t)value;
    else ((int64_t *)data)[i] = (int64_t)value;
}

static double get(const char *dtype, const void *data, size_t i)
{
    if (!strcmp(dtype, "float32")) return (double)((const float *)data)[i];
    if (!strcmp(dtype, "float64")) return ((const double *)data)[i];
    if (!strcmp(dtype, "int8")) return ((const int8_t *)data)[i];
    if (!strcmp(dtype, "uint8")) return ((const uint8_t *)data)[i];
    return (double)((const int64_t *)data)[i];
}

static void *read_bound(const char *dtype)
{
    size_t count = (size_t)read_integer();
    void *bound = count ? allocate(count) : NULL;
    for (size_t i = 0; i < count; i++) put(dtype, bound, i, read_number());
    return bound;
}

static void read_leaf(space *of)
{
    int at = of->count++;
    rlx_leaf *leaf = &of->leaves[at];
    strcpy(of->names[at], read_word());
    leaf->kind = (rlx_kind)read_integer();
    strcpy(of->dtypes[at], read_word());
    leaf->name = of->names[at];
    leaf->dtype = of->dtypes[at];
    leaf->axes = (int)read_integer();
    for (int i = 0; i < leaf->axes; i++) leaf->shape[i] = read_integer();
    size_t count = (size_t)read_integer(), choices = 0;
    int64_t *n = allocate(count);
    for (size_t i = 0; i < count; i++) choices += (size_t)(n[i] = read_integer());
    leaf->n = count ? n : NULL;
    leaf->start = read_integer();
    leaf->low = read_bound(leaf->dtype);
    leaf->high = read_bound(leaf->dtype);
    leaf->data = allocate((size_t)slots * count_numbers(leaf));
    of->finals[at] = allocate((size_t)slots * count_numbers(leaf));
    bool *mask = count ? allocate((size_t)slots * choices) : NULL;
    for (size_t i = 0; mask && i < (size_t)slots * choices; i++) mask[i] = true;
    of->masks[at] = mask;
}

static void read_values(space *of, void *const *finals)
{
    const char *name = read_word();
    for (int at = 0; at < of->count; at++) {
        rlx_leaf *leaf = &of->leaves[at];
        if (strcmp(name, leaf->name)) continue;
        void *data = finals ? finals[at] : leaf->data;
        size_t count = (size_t)slots * count_numbers(leaf);
        for (size_t i = 0; i < count; i++) put(leaf->dtype, data, i, read_number());
        return;
    }
}

static void fail(void)
{
    printf("{\"error\":{\"code\":%d,\"field\":\"%s\"}}\n", (int)more.client.code,
           more.client.field);
}

static void hello(const char *address, const char *ca)
{
    static char name[101], token[201];
    static const rlx_pair versions[] = {{"counters", "1.0"}};
    static const char *agents[MAX_SLOTS] = {"counter", "counter", "counter", "counter"};
    static const uint32_t games[MAX_SLOTS] = {7, 7, 7, 7};
    strcpy(name, read_word());
    strcpy(token, read_word());
    slots = (int)read_integer();
    bool exploit = read_integer(), uses_all = read_integer();
    for (int64_t i = read_integer(); i > 0; i--) read_leaf(&observations);
    for (int64_t i = read_integer(); i > 0; i--) read_leaf(&actions);
    rlx_more_init(&more, address, name, observations.leaves, observations.count, actions.leaves,
                  actions.count);
    more.client.slots = slots;
    more.client.exploit = exploit;
    more.client.token = strcmp(token, "-") ? token : NULL;
    more.client.timeout_sec = 4;
    more.tls_ca = ca;
    if (uses_all) {
        more.max_wait_ms = 5000;
        more.versions = versions;
        more.num_versions = 1;
        more.agents = agents;
        more.games = games;
        more.masks = more.final_masks = actions.masks;
        more.wants_versions_by_slot = true;
    }
    if (rlx_more_connect(&more) != RLX_OK) {
        fail();
        return;
    }
    static const char *const names[] = {"executed", "ping", "present", "slot_versions"};
    const char *comma = "";
    printf("{\"ready\":{\"features\":[");
    for (int i = 0; i < 4; i++)
        if (rlx_has(&more, names[i])) {
            printf("%s\"%s\"", comma, names[i]);
            comma = ",";
        }
    puts("]}}");
}

static void print_answer(rlx_status status, bool observes)
{
    printf("{\"version\":%llu,\"episodes\":[", (unsigned long long)more.version);
    for (int i = 0; i < more.client.num_episodes; i++)
        printf("%s{\"slot\":%u,\"score\":%.17g,\"length\":%llu}", i ? "," : "",
               (unsigned)more.episodes[i].slot, more.episodes[i].score,
               (unsigned long long)more.episodes[i].length);
    printf("]");
    if (status == RLX_FINISHED) printf(",\"finished\":\"%s\"", more.client.text);
    for (int at = 0; status == RLX_OK && observes && at < actions.count; at++) {
        const rlx_leaf *leaf = &actions.leaves[at];
        printf("%s\"%s\":[", at ? "," : ",\"action\":{", leaf->name);
        for (size_t i = 0; i < (size_t)slots * count_numbers(leaf); i++)
            printf("%s%.17g", i ? "," : "", get(leaf->dtype, leaf->data, i));
        printf("]%s", at + 1 == actions.count ? "}" : "");
    }
    puts("}");
}

static const bool *read_flags(bool *flags)
{
    for (int i = 0; i < slots; i++) flags[i] = read_integer() != 0;
    return flags;
}

static void step(void)
{
    static double rewards[MAX_SLOTS];
    static bool terminated[MAX_SLOTS], truncated[MAX_SLOTS], present[MAX_SLOTS],
        overridden[MAX_SLOTS];
    static int8_t success[MAX_SLOTS];
    rlx_step sent = {.terminated = terminated, .truncated = truncated};
    bool executes = false;
    memset(terminated, 0, sizeof terminated);
    memset(truncated, 0, sizeof truncated);
    more.present = more.overridden = NULL;
    for (char key[256]; strcmp(strcpy(key, read_word()), "end");) {
        if (!strcmp(key, "observation")) sent.observes = true, read_values(&observations, NULL);
        else if (!strcmp(key, "final_observation")) {
            read_values(&observations, observations.finals);
            sent.sends_finals = true;
            sent.finals = (const void *const *)observations.finals;
        } else if (!strcmp(key, "executed")) executes = true, read_values(&actions, NULL);
        else if (!strcmp(key, "terminated")) read_flags(terminated);
        else if (!strcmp(key, "truncated")) read_flags(truncated);
        else if (!strcmp(key, "present")) more.present = read_flags(present);
        else if (!strcmp(key, "overridden")) more.overridden = read_flags(overridden);
        else if (!strcmp(key, "reward")) {
            for (int i = 0; i < slots; i++) rewards[i] = read_number();
            sent.rewards = rewards;
        } else if (!strcmp(key, "success")) {
            for (int i = 0; i < slots; i++) success[i] = (int8_t)read_integer();
            sent.success = success;
        }
    }
    rlx_status status = executes ? rlx_executed(&more) : RLX_OK;
    if (status == RLX_OK)
        status = sent.rewards ? rlx_exchange(&more.client, &sent) : rlx_act(&more.client);
    if (status == RLX_OK || status == RLX_FINISHED) print_answer(status, sent.observes);
    else fail();
}

int main(int argc, char **argv)
{
    for (;;) {
        const char *kind = read_word();
        if (!strcmp(kind, "hello")) hello(argv[1], argc > 2 ? argv[2] : NULL);
        else if (!strcmp(kind, "ping")) rlx_ping(&more);
        else if (!strcmp(kind, "scalars")) rlx_send_point(&more, "count", read_number(), 0.0 / 0.0);
        else step();
        fflush(stdout);
    }
}
