/* What `python -m benchmarks.load one ADDRESS PERIOD_SEC` does, in C: the same environment, the
 * same conversation with the parent, the same result. benchmarks/c_client.py compiles it. With a
 * third argument, `exploit`, nothing is learned.
 */
#define _POSIX_C_SOURCE 200809L

#include "rlx_client.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STATE = 4, ACTIONS = 2, EPISODE_STEPS = 200 };
static const double STAGGER_SEC = 1.0;

/* The time in which steps are counted, as the parent says, and what was counted. */
typedef struct {
    double start, end; /* monotonic seconds */
    double cpu_sec;    /* processor time before the first step that was counted */
    double *latencies;
    size_t count, room;
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
        if (!counting->latencies)
            exit(1);
    }
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
    printf("], \"cpu_sec\": %.9f, \"rss_mb\": %.3f}\n",
           read_clock(CLOCK_PROCESS_CPUTIME_ID) - counted->cpu_sec, read_rss_mb());
}

/* Asks for the action after a step, whose reward is 1. */
static rlx_status ask(rlx_client *client, bool episode_ends, int64_t *action)
{
    static const float observation[STATE];
    if (!episode_ends)
        return rlx_reward_and_act(client, 1, observation, action);
    rlx_status status = rlx_reward_and_reset(client, 1, NULL);
    return status ? status : rlx_act(client, observation, action);
}

static rlx_status play(rlx_client *client, double period_sec, window *counting)
{
    static const float observation[STATE];
    int64_t action;
    rlx_status status = rlx_act(client, observation, &action);
    double due = read_clock(CLOCK_MONOTONIC), now;
    if (period_sec > 0)
        due += STAGGER_SEC * rand() / RAND_MAX;
    for (int step = 1; !status && (now = read_clock(CLOCK_MONOTONIC)) < counting->end; step++) {
        if (now < due)
            sleep_until(due);
        double asked = read_clock(CLOCK_MONOTONIC);
        status = ask(client, step % EPISODE_STEPS == 0, &action);
        double answered = read_clock(CLOCK_MONOTONIC);
        add(counting, asked, answered);
        due = due + period_sec > answered ? due + period_sec : answered;
    }
    return status;
}

int main(int argc, char **argv)
{
    bool exploit = argc == 4 && !strcmp(argv[3], "exploit");
    if (argc != 3 && !exploit) {
        fprintf(stderr, "usage: %s ADDRESS PERIOD_SEC [exploit]\n", argv[0]);
        return 2;
    }
    rlx_client client;
    window counting;
    srand((unsigned)getpid());
    rlx_init(&client, argv[1], "paced", STATE, ACTIONS);
    client.exploit = exploit;
    client.report = NULL;
    client.min_sleep_sec = 0.2;
    client.max_sleep_sec = 0.5;
    rlx_status status = rlx_connect_with_retry(&client);
    if (!status) {
        counting = open_window();
        status = play(&client, atof(argv[2]), &counting);
    }
    if (status) {
        fprintf(stderr, "%s\n", client.text);
        return 1;
    }
    print(&counting);
    free(counting.latencies);
    rlx_close(&client);
    return 0;
}
