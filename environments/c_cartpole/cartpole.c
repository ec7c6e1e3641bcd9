/* CartPole-v1 as a client of an rlx server; see --help. */
#define _POSIX_C_SOURCE 200809L

#include "cartpole_physics.h"
#include "rlx_client.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char HELP[] =
    "usage: c_cartpole/main [--flag VALUE ...]\n"
    "\n"
    "CartPole-v1 in C as a client of an rlx server.\n"
    "\n"
    "  --rlx-server HOST:PORT  default: localhost:7001\n"
    "  --name NAME             shown in the server's log; default: c_cartpole and process id\n"
    "  --seed N                seed of the first states; default: random\n"
    "  --episodes N            end after N episodes; -1, the default: when training ends\n"
    "  --exploit               choose the best actions; learn nothing\n"
    "  --retry-sleep MIN MAX   seconds before a reconnection, drawn between the two; default: 1 10\n"
    "  -h, --help              show this and exit\n"
    "\n"
    "Without TLS and tokens, see README.md. The client reconnects if the server is lost. Exit code:\n"
    "0 at the end of training or after --episodes, 2 for a usage or configuration error, 130 after\n"
    "Ctrl-C, 143 after SIGTERM, 1 for an error after which a retry can succeed.\n";

enum { MAY_PASS = 1, MISTAKE = 2 };

typedef struct {
    const char *address, *name;
    uint64_t seed;
    long episodes; /* -1: no end */
    bool exploit;
    double min_sleep_sec, max_sleep_sec;
} settings;

typedef struct {
    long episodes, steps;
} counts;

/* `value`: of the flag; NULL: none is shown. */
static void refuse(const char *flag, const char *value, const char *what)
{
    if (value)
        fprintf(stderr, "c_cartpole: %s: '%.100s', %s\n", flag, value, what);
    else
        fprintf(stderr, "c_cartpole: %s: %s\n", flag, what);
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

/* Reads the command line; ends the program when there is a mistake in it. */
static settings parse(char **argument)
{
    static char name[64];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(name, sizeof name, "c_cartpole-%ld", (long)getpid());
    settings parsed = {
        .address = "localhost:7001",
        .name = name,
        .seed = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec
                + ((uint64_t)getpid() << 40),
        .episodes = -1,
        .min_sleep_sec = 1,
        .max_sleep_sec = 10,
    };
    while (*++argument) {
        const char *flag = *argument;
        if (!strcmp(flag, "--help") || !strcmp(flag, "-h")) {
            fputs(HELP, stdout);
            exit(0);
        }
        if (!strcmp(flag, "--exploit")) {
            parsed.exploit = true;
            continue;
        }
        bool known = !strcmp(flag, "--rlx-server") || !strcmp(flag, "--name")
                     || !strcmp(flag, "--seed") || !strcmp(flag, "--episodes")
                     || !strcmp(flag, "--retry-sleep");
        if (!known)
            refuse(flag, NULL,
                   "unknown; --help lists the flags, and README.md describes what to use for TLS, "
                   "tokens and several slots");
        if (!*++argument)
            refuse(flag, NULL, "expected a value after it");
        if (!strcmp(flag, "--rlx-server"))
            parsed.address = *argument;
        else if (!strcmp(flag, "--name"))
            parsed.name = *argument;
        else if (!strcmp(flag, "--seed"))
            parsed.seed = (uint64_t)parse_integer(flag, *argument, LONG_MIN);
        else if (!strcmp(flag, "--episodes"))
            parsed.episodes = parse_integer(flag, *argument, -1);
        else {
            parsed.min_sleep_sec = parse_seconds(flag, *argument);
            if (!*++argument)
                refuse(flag, NULL, "expected two values after it");
            parsed.max_sleep_sec = parse_seconds(flag, *argument);
            if (!(parsed.min_sleep_sec >= 0 && parsed.min_sleep_sec <= parsed.max_sleep_sec
                  && parsed.max_sleep_sec <= 1e6)) {
                fprintf(stderr, "c_cartpole: %s: %g %g, expected 0 <= MIN <= MAX <= 1e6\n", flag,
                        parsed.min_sleep_sec, parsed.max_sleep_sec);
                exit(MISTAKE);
            }
        }
    }
    return parsed;
}

static rlx_status play_episode(rlx_client *client, uint64_t *random, counts *counted)
{
    cartpole pole;
    float observation[CARTPOLE_STATE];
    int64_t action;
    cartpole_reset(&pole, random);
    cartpole_observe(&pole, observation);
    rlx_status status = rlx_act(client, observation, &action);
    for (int step = 1; status == RLX_OK; step++) {
        bool terminated = cartpole_step(&pole, (int)action);
        cartpole_observe(&pole, observation);
        counted->steps++;
        if (terminated || step == CARTPOLE_MAX_STEPS) {
            counted->episodes++;
            return terminated ? rlx_reward_and_reset(client, 1, NULL)
                              : rlx_reward_and_truncate(client, 1, observation, NULL);
        }
        status = rlx_reward_and_act(client, 1, observation, &action);
    }
    return status;
}

static rlx_status play(rlx_client *client, const settings *wanted, counts *counted)
{
    uint64_t random = wanted->seed;
    rlx_status status = rlx_connect_with_retry(client);
    while (status == RLX_OK && counted->episodes != wanted->episodes) {
        status = play_episode(client, &random, counted);
        if (status == RLX_UNAVAILABLE)
            status = rlx_reconnect(client);
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
    settings wanted = parse(argv);
    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    rlx_client client;
    counts counted = {0};
    rlx_init(&client, wanted.address, wanted.name, CARTPOLE_STATE, CARTPOLE_ACTIONS);
    client.exploit = wanted.exploit;
    client.min_sleep_sec = wanted.min_sleep_sec;
    client.max_sleep_sec = wanted.max_sleep_sec;
    rlx_status status = play(&client, &wanted, &counted);
    rlx_close(&client);
    if (status != RLX_OK && status != RLX_FINISHED) {
        fprintf(stderr, "c_cartpole: %s\n", client.text);
        return is_mistake(&client, status) ? MISTAKE : MAY_PASS;
    }
    printf("c_cartpole: %s; %ld episodes, %ld steps\n",
           status == RLX_FINISHED ? client.text : "done", counted.episodes, counted.steps);
    return 0;
}
