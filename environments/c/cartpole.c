/* CartPole-v1 as a client of an rlx server; see --help. */
#define _POSIX_C_SOURCE 200809L

#include "cartpole_physics.h"
#include "rlx_more.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char HELP[] =
    "usage: c/main [--cpp] [--flag VALUE ...]\n"
    "\n"
    "CartPole-v1 in C as a client of an rlx server; with --cpp, which comes first, in C++.\n"
    "\n"
    "  --rlx-server HOST:PORT  default: localhost:7001\n"
    "  --name NAME             shown in the server's log; default: cartpole and process id\n"
    "  --num-envs K            slots: environments that are stepped together; default: 1; not in C++\n"
    "  --seed N                seed of the first states; default: random\n"
    "  --episodes N            end after N episodes; -1, the default: when training ends\n"
    "  --exploit               choose the best actions; learn nothing\n"
    "  --retry-sleep MIN MAX   seconds before a reconnection, drawn between the two; default: 1 10\n"
    "  --token-file FILE       a file with only the token that the server requires\n"
    "  --tls-ca FILE           CA certificates to trust; without it, TLS is not used\n"
    "  --tls-cert FILE         the client's certificate, if the server requires one\n"
    "  --tls-key FILE          its private key\n"
    "  -h, --help              show this and exit\n"
    "\n"
    "The client reconnects if the server is lost. Exit code: 0 at the end of training or after\n"
    "--episodes, 2 for a usage or configuration error, 130 after Ctrl-C, 143 after SIGTERM, 1 for an\n"
    "error after which a retry can succeed.\n";

enum { MAY_PASS = 1, MISTAKE = 2, MAX_SLOTS = 1024 };

typedef struct {
    const char *address, *name, *token_file, *tls_ca, *tls_cert, *tls_key;
    uint64_t seed;
    long episodes; /* -1: no end */
    long slots;
    bool exploit;
    double min_sleep_sec, max_sleep_sec;
} settings;

typedef struct {
    long episodes, steps;
} counts;

/* The environments, and what is exchanged about them. */
typedef struct {
    rlx_more client;
    cartpole poles[MAX_SLOTS];
    int steps[MAX_SLOTS];
    float states[MAX_SLOTS][CARTPOLE_STATE], final_states[MAX_SLOTS][CARTPOLE_STATE];
    int64_t actions[MAX_SLOTS];
    uint64_t random;
} simulator;

/* `value`: of the flag; NULL: none is shown. */
static void refuse(const char *flag, const char *value, const char *what)
{
    if (value)
        fprintf(stderr, "cartpole: %s: '%.100s', %s\n", flag, value, what);
    else
        fprintf(stderr, "cartpole: %s: %s\n", flag, what);
    exit(MISTAKE);
}

static long parse_integer(const char *flag, const char *text, long least)
{
    char *end;
    errno = 0;
    long number = strtol(text, &end, 10);
    if (errno == ERANGE)
        refuse(flag, text, "expected an integer that fits into a C long");
    if (end == text || *end || errno || number < least)
        refuse(flag, text, least < -1 ? "expected an integer" : "expected an integer, -1 or more");
    return number;
}

static double parse_seconds(const char *flag, const char *text)
{
    char *end;
    double seconds = strtod(text, &end);
    if (end == text || *end)
        refuse(flag, text, "expected two numbers, in seconds");
    return seconds;
}

static void parse_sleep(settings *parsed, const char *flag, const char *least, const char *most)
{
    if (!most)
        refuse(flag, NULL, "expected two values after it");
    parsed->min_sleep_sec = parse_seconds(flag, least);
    parsed->max_sleep_sec = parse_seconds(flag, most);
    if (parsed->min_sleep_sec >= 0 && parsed->min_sleep_sec <= parsed->max_sleep_sec
        && parsed->max_sleep_sec <= 1e6)
        return;
    fprintf(stderr, "cartpole: %s: %g %g, expected 0 <= MIN <= MAX <= 1e6\n", flag,
            parsed->min_sleep_sec, parsed->max_sleep_sec);
    exit(MISTAKE);
}

/* Reads the command line; ends the program when there is a mistake in it. */
static settings parse(char **argument)
{
    static char name[64];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(name, sizeof name, "cartpole-%ld", (long)getpid());
    settings parsed = {
        .address = "localhost:7001",
        .name = name,
        .seed = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec
                + ((uint64_t)getpid() << 40),
        .episodes = -1,
        .slots = 1,
        .min_sleep_sec = 1,
        .max_sleep_sec = 10,
    };
    const struct {
        const char *flag, **value;
    } texts[] = {
        {"--rlx-server", &parsed.address}, {"--name", &parsed.name},
        {"--token-file", &parsed.token_file}, {"--tls-ca", &parsed.tls_ca},
        {"--tls-cert", &parsed.tls_cert}, {"--tls-key", &parsed.tls_key},
    };
    while (*++argument) {
        const char *flag = *argument, *value = argument[1];
        const char **text = NULL;
        bool seed = !strcmp(flag, "--seed"), episodes = !strcmp(flag, "--episodes");
        bool slots = !strcmp(flag, "--num-envs"), sleep = !strcmp(flag, "--retry-sleep");
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
            if (!strcmp(flag, texts[i].flag))
                text = texts[i].value;
        if (!strcmp(flag, "--help") || !strcmp(flag, "-h")) {
            fputs(HELP, stdout);
            exit(0);
        }
        if (!strcmp(flag, "--exploit")) {
            parsed.exploit = true;
            continue;
        }
        if (!text && !seed && !episodes && !slots && !sleep)
            refuse(flag, NULL, "unknown; --help lists the flags");
        if (!value)
            refuse(flag, NULL, "expected a value after it");
        argument++;
        if (text)
            *text = value;
        else if (seed)
            parsed.seed = (uint64_t)parse_integer(flag, value, LONG_MIN);
        else if (episodes)
            parsed.episodes = parse_integer(flag, value, -1);
        else if (slots)
            parsed.slots = parse_integer(flag, value, -1);
        else
            parse_sleep(&parsed, flag, value, *++argument);
    }
    if (parsed.slots < 1 || parsed.slots > MAX_SLOTS)
        refuse("--num-envs", NULL, "expected 1 to 1024");
    size_t size = strlen(parsed.name);
    for (const char *at = parsed.name; *at; at++)
        if ((unsigned char)*at < 0x20 || *at == 0x7f)
            refuse("--name", NULL, "expected 1 to 100 bytes without control characters");
    if (size < 1 || size > 100)
        refuse("--name", NULL, "expected 1 to 100 bytes without control characters");
    return parsed;
}

/* Reads the line of a file that is not a comment. */
static const char *read_token(const char *path)
{
    static char line[1024];
    FILE *file = fopen(path, "r");
    if (!file)
        refuse("--token-file", path, strerror(errno));
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, " \t\r\n")] = '\0';
        if (*line && *line != '#') {
            fclose(file);
            return line;
        }
    }
    refuse("--token-file", path, "contains no token; write one token into it");
    return NULL;
}

static void reset(simulator *all, int slot)
{
    cartpole_reset(&all->poles[slot], &all->random);
    cartpole_observe(&all->poles[slot], all->states[slot]);
    all->steps[slot] = 0;
}

/* Plays one episode with the verbs, in the only slot. */
static rlx_status play_episode(simulator *all, counts *counted)
{
    rlx_client *client = &all->client.client;
    reset(all, 0);
    rlx_status status = rlx_act(client);
    for (int step = 1; status == RLX_OK; step++) {
        bool terminated = cartpole_step(&all->poles[0], (int)all->actions[0]);
        cartpole_observe(&all->poles[0], all->states[0]);
        counted->steps++;
        if (terminated || step == CARTPOLE_MAX_STEPS) {
            counted->episodes++;
            return terminated ? rlx_reward_and_reset(client, 1, -1)
                              : rlx_reward_and_truncate(client, 1, -1);
        }
        status = rlx_reward_and_act(client, 1);
    }
    return status;
}

/* Plays in all slots until so many episodes have ended; a slot that ended continues with the first
 * observation of its next episode. */
static rlx_status play_slots(simulator *all, long episodes, counts *counted)
{
    static double rewards[MAX_SLOTS];
    static bool terminated[MAX_SLOTS], truncated[MAX_SLOTS];
    rlx_client *client = &all->client.client;
    const void *const finals[] = {all->final_states};
    for (int i = 0; i < client->slots; i++) {
        rewards[i] = 1;
        reset(all, i);
    }
    rlx_status status = rlx_act(client);
    while (status == RLX_OK && (episodes < 0 || counted->episodes < episodes)) {
        rlx_step step = {.rewards = rewards, .terminated = terminated, .truncated = truncated,
                         .observes = true, .finals = finals};
        for (int i = 0; i < client->slots; i++) {
            terminated[i] = cartpole_step(&all->poles[i], (int)all->actions[i]);
            truncated[i] = !terminated[i] && ++all->steps[i] == CARTPOLE_MAX_STEPS;
            cartpole_observe(&all->poles[i], all->states[i]);
            if (truncated[i]) {
                memcpy(all->final_states[i], all->states[i], sizeof all->states[i]);
                step.sends_finals = true;
            }
            if (terminated[i] || truncated[i]) {
                counted->episodes++;
                reset(all, i);
            }
        }
        counted->steps += client->slots;
        status = rlx_exchange(client, &step);
    }
    return status;
}

static rlx_status play(simulator *all, const settings *wanted, counts *counted)
{
    rlx_status status = rlx_connect_with_retry(&all->client);
    while (status == RLX_OK && counted->episodes != wanted->episodes) {
        if (wanted->slots == 1)
            status = play_episode(all, counted);
        else
            status = play_slots(all, wanted->episodes, counted);
        if (status == RLX_UNAVAILABLE)
            status = rlx_reconnect(&all->client);
        else if (wanted->slots > 1)
            break;
    }
    return status;
}

static bool is_mistake(const rlx_client *client, rlx_status status)
{
    return status == RLX_INVALID || client->code == RLX_SPACE_MISMATCH
           || client->code == RLX_VERSION_MISMATCH || client->code == RLX_UNAUTHENTICATED;
}

/* Ends at once, also while it waits for the server, which discards the unfinished episode. */
static void stop(int number)
{
    _exit(128 + number);
}

int main(int argc, char **argv)
{
    (void)argc;
    static simulator all;
    settings wanted = parse(argv);
    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    int64_t choices = CARTPOLE_ACTIONS;
    rlx_leaf seen = {.name = "observation", .kind = RLX_BOX, .dtype = "float32", .axes = 1,
                     .shape = {CARTPOLE_STATE}, .data = all.states};
    rlx_leaf done = {.name = "action", .kind = RLX_DISCRETE, .dtype = "int64", .n = &choices,
                     .data = all.actions};
    rlx_more *more = &all.client;
    rlx_client *client = &more->client;
    counts counted = {0};
    rlx_more_init(more, wanted.address, wanted.name, &seen, 1, &done, 1);
    all.random = wanted.seed;
    client->slots = (int)wanted.slots;
    client->exploit = wanted.exploit;
    client->token = wanted.token_file ? read_token(wanted.token_file) : NULL;
    more->tls_ca = wanted.tls_ca;
    more->tls_cert = wanted.tls_cert;
    more->tls_key = wanted.tls_key;
    more->min_sleep_sec = wanted.min_sleep_sec;
    more->max_sleep_sec = wanted.max_sleep_sec;
    rlx_status status = play(&all, &wanted, &counted);
    rlx_more_close(more);
    if (status != RLX_OK && status != RLX_FINISHED) {
        fprintf(stderr, "cartpole: %s\n", client->text);
        return is_mistake(client, status) ? MISTAKE : MAY_PASS;
    }
    printf("cartpole: %s; %ld episodes, %ld steps\n",
           status == RLX_FINISHED ? client->text : "done", counted.episodes, counted.steps);
    return 0;
}
