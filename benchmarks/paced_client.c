/* What `python -m benchmarks.load one ADDRESS PERIOD_SEC` does, in C: the same environment, the
 * same conversation with the parent, the same result. benchmarks/c_client.py compiles it. With a
 * third argument, `exploit`, nothing is learned. If that is a number, it is max_wait_ms: the result
 * then has when each step was asked, and of all steps the answers, and those that the server itself
 * says came later; the client stays connected for some seconds, so that these can be compared.
 */
#define _POSIX_C_SOURCE 200809L

#include "rlx_more.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STATE = 4, ACTIONS = 2, EPISODE_STEPS = 200 };
static const double STAGGER_SEC = 1.0, LINGER_SEC = 6.0;

/* The time in which steps are counted, as the parent says, and what was counted. */
typedef struct {
    double start, end; /* monotonic seconds */
    double cpu_sec;    /* processor time before the first step that was counted */
    double *latencies, *asked;
    size_t count, room;
    size_t answers, late; /* of all steps */
} window;

static double read_clock(clockid_t id)
{
    struct timespec now;
    clock_gettime(id, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void sleep_until(double due)
{
    struct timespec until = {.tv_sec = (time_t)due};
    until.tv_nsec = (long)(1e9 * (due - (double)until.tv_sec));
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

static window open_window(void)
{
    window opened = {0};
    double seconds;
    puts("ready");
    fflush(stdout);
    if (scanf("%lf %lf", &opened.start, &seconds) != 2)
        exit(1);
    opened.end = opened.start + seconds;
    return opened;
}

static void add(window *counting, double asked, double answered)
{
    if (answered < counting->start || answered >= counting->end)
        return;
    if (!counting->count)
        counting->cpu_sec = read_clock(CLOCK_PROCESS_CPUTIME_ID);
    if (counting->count == counting->room) {
        counting->room = counting->room ? 2 * counting->room : 1024;
        counting->latencies =
            realloc(counting->latencies, counting->room * sizeof *counting->latencies);
        counting->asked = realloc(counting->asked, counting->room * sizeof *counting->asked);
        if (!counting->latencies || !counting->asked)
            exit(1);
    }
    counting->asked[counting->count] = asked;
    counting->latencies[counting->count++] = answered - asked;
}

/* The most memory ever held. getrusage would tell that of the parent where it was more, as it
 * counts from before exec. */
static double read_rss_mb(void)
{
    char line[256];
    long kilobytes = 0;
    FILE *status = fopen("/proc/self/status", "r");
    if (!status)
        exit(1);
    while (fgets(line, sizeof line, status) && sscanf(line, "VmHWM: %ld", &kilobytes) != 1)
        continue;
    fclose(status);
    return (double)kilobytes / 1024;
}

static void print(const window *counted)
{
    fputs("{\"latencies\": [", stdout);
    for (size_t i = 0; i < counted->count; i++)
        printf("%s%.9f", i ? ", " : "", counted->latencies[i]);
    fputs("], \"asked\": [", stdout);
    for (size_t i = 0; i < counted->count; i++)
        printf("%s%.6f", i ? ", " : "", counted->asked[i]);
    printf("], \"answers\": %zu, \"late\": %zu", counted->answers, counted->late);
    printf(", \"cpu_sec\": %.9f, \"rss_mb\": %.3f}\n",
           read_clock(CLOCK_PROCESS_CPUTIME_ID) - counted->cpu_sec, read_rss_mb());
}

/* Counts an answer, by the time that the server says it took. */
static void count(window *counting, const rlx_more *client)
{
    counting->answers++;
    counting->late += client->total_us > 1000u * (unsigned)client->max_wait_ms;
}

/* Asks for the action after a step, whose reward is 1. */
static rlx_status ask(rlx_more *client, bool episode_ends, window *counting)
{
    rlx_status status;
    if (!episode_ends) {
        status = rlx_reward_and_act(&client->client, 1);
    } else {
        status = rlx_reward_and_reset(&client->client, 1, -1);
        if (status)
            return status;
        count(counting, client);
        status = rlx_act(&client->client);
    }
    count(counting, client);
    return status;
}

static rlx_status play(rlx_more *client, double period_sec, window *counting)
{
    rlx_status status = rlx_act(&client->client);
    count(counting, client);
    double due = read_clock(CLOCK_MONOTONIC), now;
    if (period_sec > 0)
        due += STAGGER_SEC * rand() / RAND_MAX;
    for (int step = 1; !status && (now = read_clock(CLOCK_MONOTONIC)) < counting->end; step++) {
        if (now < due)
            sleep_until(due);
        double asked = read_clock(CLOCK_MONOTONIC);
        status = ask(client, step % EPISODE_STEPS == 0, counting);
        double answered = read_clock(CLOCK_MONOTONIC);
        add(counting, asked, answered);
        due = due + period_sec > answered ? due + period_sec : answered;
    }
    return status;
}

int main(int argc, char **argv)
{
    bool exploit = argc == 4 && !strcmp(argv[3], "exploit");
    int max_wait_ms = argc == 4 && !exploit ? atoi(argv[3]) : 0;
    if (argc != 3 && !exploit && max_wait_ms < 1) {
        fprintf(stderr, "usage: %s ADDRESS PERIOD_SEC [exploit | MAX_WAIT_MS]\n", argv[0]);
        return 2;
    }
    float observation[STATE] = {0};
    int64_t choices = ACTIONS, action;
    rlx_leaf seen = {.name = "observation", .kind = RLX_BOX, .dtype = "float32", .axes = 1,
                     .shape = {STATE}, .data = observation};
    rlx_leaf done = {.name = "action", .kind = RLX_DISCRETE, .dtype = "int64", .n = &choices,
                     .data = &action};
    rlx_more client;
    window counting;
    srand((unsigned)getpid());
    rlx_more_init(&client, argv[1], "paced", &seen, 1, &done, 1);
    client.client.exploit = exploit;
    client.max_wait_ms = max_wait_ms;
    client.report = NULL;
    client.min_sleep_sec = 0.2;
    client.max_sleep_sec = 0.5;
    rlx_status status = rlx_connect_with_retry(&client);
    if (!status) {
        counting = open_window();
        status = play(&client, atof(argv[2]), &counting);
    }
    if (status) {
        fprintf(stderr, "%s\n", client.client.text);
        return 1;
    }
    if (max_wait_ms)
        sleep_until(read_clock(CLOCK_MONOTONIC) + LINGER_SEC);
    print(&counting);
    free(counting.latencies);
    free(counting.asked);
    rlx_more_close(&client);
    return 0;
}
