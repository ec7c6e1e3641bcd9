#define _POSIX_C_SOURCE 200809L

#include "rlx_client.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum {
    PROTOCOL_VERSION = 1,
    HEADER_BYTES = 4,
    /* Of a message to the server, its default; it tells its own bound in Ready. */
    MAX_OUTPUT_BYTES = 64 * 1024 * 1024,
    /* A message to one slot has less than 200 bytes, but for the text of an Error. */
    MAX_INPUT_BYTES = 64 * 1024,
    MAX_NAME_BYTES = 100,
    /* What a message has beside the numbers of an observation: names, dtypes, lengths. */
    MAX_REST_BYTES = 512,
    MAX_WAIT_MS = 60000,
    /* Values of the enums SpaceKind and Mode. */
    BOX = 1,
    DISCRETE = 2,
    TRAIN = 1,
    EXPLOIT = 2,
    /* Wire types of protobuf: https://protobuf.dev/programming-guides/encoding */
    VARINT = 0,
    FIXED64 = 1,
    BYTES = 2,
    FIXED32 = 5
};
#define DEFAULT_PORT "7001"
#define FIRST_SLEEP_SEC 0.25 /* at most, before the second attempt to connect */
#define KEY(number, kind) ((uint64_t)(number) << 3 | (kind))

/* What went wrong. */

static rlx_status fail(rlx_client *client, rlx_status status, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;

static rlx_status fail(rlx_client *client, rlx_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(client->text, sizeof client->text, format, arguments);
    va_end(arguments);
    client->code = RLX_NO_CODE;
    client->field[0] = '\0';
    return status;
}

static void drop_connection(rlx_client *client)
{
    if (client->socket >= 0)
        close(client->socket);
    client->socket = -1;
    client->reward_due = client->unanswered = client->has_executed = false;
    client->step_id = 0;
}

static rlx_status lose(rlx_client *client, const char *why)
{
    drop_connection(client);
    return fail(client, RLX_UNAVAILABLE, "lost the rlx server %s: %s", client->address, why);
}

static rlx_status lose_in_time(rlx_client *client)
{
    char why[64];
    snprintf(why, sizeof why, "no answer within %g s", client->timeout_sec);
    return lose(client, why);
}

static rlx_status distrust(rlx_client *client, const char *what)
{
    drop_connection(client);
    return fail(client, RLX_REFUSED,
                "%s sent %s; is it an rlx server without TLS? If so, update the client or the server",
                client->address, what);
}

static double monotonic_sec(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Writing. A message is written from its end to its beginning, as the length of each part stands
 * before it. So `put_*` writes before `at`, and returns where the bytes now begin. */

static uint8_t *put_varint(uint8_t *at, uint64_t value)
{
    size_t size = 1;
    for (uint64_t rest = value >> 7; rest; rest >>= 7)
        size++;
    at -= size;
    for (size_t i = 0; i < size; i++, value >>= 7)
        at[i] = (uint8_t)((value & 0x7f) | (i + 1 < size ? 0x80 : 0));
    return at;
}

static uint8_t *put_number(uint8_t *at, int field, uint64_t value)
{
    return put_varint(put_varint(at, value), KEY(field, VARINT));
}

/* Makes what stands from `at` to `end` the content of a field. */
static uint8_t *put_length(uint8_t *at, int field, const uint8_t *end)
{
    return put_varint(put_varint(at, (uint64_t)(end - at)), KEY(field, BYTES));
}

static uint8_t *put_bytes(uint8_t *at, int field, const void *bytes, size_t size)
{
    const uint8_t *end = at;
    at -= size;
    memcpy(at, bytes, size);
    return put_length(at, field, end);
}

static uint8_t *put_text(uint8_t *at, int field, const char *text)
{
    return put_bytes(at, field, text, strlen(text));
}

static void store_little_endian(uint8_t *at, uint64_t bits, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(bits >> 8 * i);
}

/* An NdArray of one number: shape [1]. */
static uint8_t *put_scalar(uint8_t *at, int field, const char *dtype, uint64_t bits, int bytes)
{
    const uint8_t *end = at, shape = 1;
    at -= bytes;
    store_little_endian(at, bits, bytes);
    at = put_length(at, 3, end);
    at = put_bytes(at, 2, &shape, 1);
    at = put_text(at, 1, dtype);
    return put_length(at, field, end);
}

/* Stands for an observation of zeros. */
static const float NOTHING_SEEN[1];

/* A map's entry "observation" -> NdArray of shape [1, observation_size]. */
static uint8_t *put_observation(const rlx_client *client, uint8_t *at, int field,
                                const float *observation)
{
    const uint8_t *end = at, *shape_end;
    at -= 4 * (size_t)client->observation_size;
    for (int i = 0; i < client->observation_size; i++) {
        uint32_t bits = 0;
        if (observation != NOTHING_SEEN)
            memcpy(&bits, &observation[i], sizeof bits);
        store_little_endian(at + 4 * (size_t)i, bits, 4);
    }
    at = put_length(at, 3, end);
    shape_end = at;
    at = put_varint(at, (uint64_t)client->observation_size);
    at = put_varint(at, 1);
    at = put_length(at, 2, shape_end);
    at = put_text(at, 1, "float32");
    at = put_length(at, 2, end);
    at = put_text(at, 1, "observation");
    return put_length(at, field, end);
}

/* A map's entry `leaf` -> Space; `list` is the field that holds its one number, as a list. */
static uint8_t *put_space(uint8_t *at, int field, const char *leaf, int kind, const char *dtype,
                          int list, int number)
{
    const uint8_t *end = at;
    at = put_varint(at, (uint64_t)number);
    at = put_length(at, list, end);
    at = put_text(at, 2, dtype);
    at = put_number(at, 1, (uint64_t)kind);
    at = put_length(at, 2, end);
    at = put_text(at, 1, leaf);
    return put_length(at, field, end);
}

static uint8_t *put_fixed64(uint8_t *at, int field, uint64_t value)
{
    at -= 8;
    store_little_endian(at, value, 8);
    return put_varint(at, KEY(field, FIXED64));
}

/* A map's entry "action" -> NdArray of one int64. */
static uint8_t *put_action(uint8_t *at, int field, int64_t action)
{
    const uint8_t *end = at;
    uint64_t bits;
    memcpy(&bits, &action, sizeof bits);
    at = put_scalar(at, 2, "int64", bits, 8);
    at = put_text(at, 1, "action");
    return put_length(at, field, end);
}

static uint8_t *output_end(const rlx_client *client)
{
    return client->output + client->output_bytes;
}

static uint8_t *put_hello(const rlx_client *client)
{
    uint8_t *at = output_end(client);
    if (client->max_wait_ms) {
        at = put_number(at, 9, (uint64_t)client->max_wait_ms);
        at = put_text(at, 8, "timings"); /* sorted, and written from the end */
        at = put_text(at, 8, "step_id");
    }
    at = put_text(at, 8, "present");
    if (client->max_wait_ms)
        at = put_text(at, 8, "max_wait");
    at = put_text(at, 8, "executed");
    at = put_number(at, 6, client->exploit ? EXPLOIT : TRAIN);
    at = put_space(at, 5, "action", DISCRETE, "int64", 6, client->actions);
    at = put_space(at, 4, "observation", BOX, "float32", 3, client->observation_size);
    at = put_number(at, 3, 1); /* slots */
    at = put_text(at, 2, client->name);
    at = put_number(at, 1, PROTOCOL_VERSION);
    return put_length(at, 1, output_end(client));
}

/* What a step tells. */
typedef struct {
    const float *observation; /* NULL: the episode ended */
    const double *reward;     /* NULL: the episode begins, nothing happened before */
    bool terminated, truncated;
    const float *final_observation; /* of a truncated episode */
    bool skips;                     /* no action is due; the observation means nothing */
} step;

static uint8_t *put_step(const rlx_client *client, const step *told)
{
    uint8_t *at = output_end(client);
    if (client->has_executed) {
        at = put_scalar(at, 10, "bool", 1, 1);
        at = put_action(at, 9, client->executed);
    }
    if (told->skips)
        at = put_scalar(at, 8, "bool", 0, 1);
    if (client->step_id)
        at = put_fixed64(at, 7, client->step_id);
    if (told->final_observation)
        at = put_observation(client, at, 6, told->final_observation);
    if (told->reward) {
        uint64_t bits;
        memcpy(&bits, told->reward, sizeof bits);
        at = put_scalar(at, 4, "bool", told->truncated, 1);
        at = put_scalar(at, 3, "bool", told->terminated, 1);
        at = put_scalar(at, 2, "float64", bits, 8);
    }
    if (told->observation)
        at = put_observation(client, at, 1, told->observation);
    return put_length(at, 2, output_end(client));
}

/* Reading. Nothing that is received is trusted: each length is compared with what is there. */

/* Bytes that are still to be read. */
typedef struct {
    const uint8_t *at;
    size_t size;
    bool bad; /* they are no message */
} reader;

typedef struct {
    uint64_t key;   /* KEY(number, kind) */
    uint64_t value; /* of a VARINT or FIXED64 */
    reader bytes;   /* of BYTES */
} field;

/* What a ServerMessage says. */
typedef struct {
    enum { NOTHING, READY, ACTIONS, ERROR } kind;
    uint64_t max_message_bytes; /* Ready; 0: not told */
    bool can_execute, can_skip, can_limit;
    uint64_t step_id; /* Actions; 0: not told */
    uint32_t queue_us, prediction_us, total_us;
    bool has_action;            /* Actions, with all that follows */
    int64_t action;
    int episodes;
    double score;
    reader finished;
    uint64_t code; /* Error */
    reader message, field;
} answer;

static void skip(reader *in, size_t size)
{
    in->at += size;
    in->size -= size;
}

static uint64_t read_varint(reader *in)
{
    uint64_t value = 0;
    for (int shift = 0; shift < 70 && in->size; shift += 7) {
        uint8_t byte = *in->at;
        skip(in, 1);
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return value;
    }
    in->bad = true;
    return 0;
}

static uint64_t read_fixed(reader *in, size_t bytes)
{
    uint64_t value = 0;
    if (in->size < bytes) {
        in->bad = true;
        return 0;
    }
    for (size_t i = 0; i < bytes; i++)
        value |= (uint64_t)in->at[i] << 8 * i;
    skip(in, bytes);
    return value;
}

/* Reads the next field; false at the end, and where the bytes are no message. */
static bool read_field(reader *in, field *out)
{
    uint64_t size;
    memset(out, 0, sizeof *out);
    if (in->bad || !in->size)
        return false;
    out->key = read_varint(in);
    if (!(out->key >> 3)) /* there is no field 0 */
        in->bad = true;
    switch (out->key & 7) {
    case VARINT:
        out->value = read_varint(in);
        break;
    case FIXED64:
        out->value = read_fixed(in, 8);
        break;
    case FIXED32:
        out->value = read_fixed(in, 4);
        break;
    case BYTES:
        size = read_varint(in);
        if (in->bad || size > in->size) {
            in->bad = true;
            break;
        }
        out->bytes.at = in->at;
        out->bytes.size = (size_t)size;
        skip(in, (size_t)size);
        break;
    default: /* a group: no message of this protocol has one */
        in->bad = true;
    }
    return !in->bad;
}

static bool equals(reader in, const char *text)
{
    return in.size == strlen(text) && !memcmp(in.at, text, in.size);
}

/* Reads an NdArray; whether it is one int64: shape [1]. */
static bool read_integer(reader in, int64_t *value)
{
    field part;
    reader dtype = {0}, data = {0};
    uint64_t length = 0;
    int axes = 0;
    while (read_field(&in, &part)) {
        switch (part.key) {
        case KEY(1, BYTES):
            dtype = part.bytes;
            break;
        case KEY(2, VARINT):
            length = part.value;
            axes++;
            break;
        case KEY(2, BYTES):
            for (; part.bytes.size && !part.bytes.bad; axes++)
                length = read_varint(&part.bytes);
            in.bad |= part.bytes.bad;
            break;
        case KEY(3, BYTES):
            data = part.bytes;
            break;
        }
    }
    if (in.bad || !equals(dtype, "int64") || axes != 1 || length != 1 || data.size != 8)
        return false;
    uint64_t bits = read_fixed(&data, 8);
    memcpy(value, &bits, sizeof *value);
    return true;
}

/* Reads an entry of Actions.actions; whether it is the action of the one slot. */
static bool read_action(reader in, int64_t *action)
{
    field part;
    bool named = false, valued = false;
    while (read_field(&in, &part)) {
        if (part.key == KEY(1, BYTES))
            named = equals(part.bytes, "action");
        else if (part.key == KEY(2, BYTES))
            valued = read_integer(part.bytes, action);
    }
    return !in.bad && named && valued;
}

static bool read_episode(reader in, double *score)
{
    field part;
    *score = 0;
    while (read_field(&in, &part))
        if (part.key == KEY(2, FIXED64))
            memcpy(score, &part.value, sizeof *score);
    return !in.bad;
}

static bool read_timings(reader in, answer *out)
{
    field part;
    while (read_field(&in, &part)) {
        if (part.key == KEY(1, FIXED32))
            out->queue_us = (uint32_t)part.value;
        else if (part.key == KEY(2, FIXED32))
            out->prediction_us = (uint32_t)part.value;
        else if (part.key == KEY(3, FIXED32))
            out->total_us = (uint32_t)part.value;
    }
    return !in.bad;
}

static bool read_actions(reader in, answer *out)
{
    field part;
    while (read_field(&in, &part)) {
        switch (part.key) {
        case KEY(1, BYTES):
            if (!read_action(part.bytes, &out->action))
                return false;
            out->has_action = true;
            break;
        case KEY(2, BYTES):
            if (!read_episode(part.bytes, &out->score))
                return false;
            out->episodes++;
            break;
        case KEY(3, BYTES):
            out->finished = part.bytes;
            break;
        case KEY(5, FIXED64):
            out->step_id = part.value;
            break;
        case KEY(6, BYTES):
            if (!read_timings(part.bytes, out))
                return false;
            break;
        }
    }
    return !in.bad;
}

static bool read_ready(reader in, answer *out)
{
    field part;
    while (read_field(&in, &part)) {
        if (part.key == KEY(3, VARINT))
            out->max_message_bytes = part.value;
        if (part.key != KEY(4, BYTES))
            continue;
        out->can_execute |= equals(part.bytes, "executed");
        out->can_skip |= equals(part.bytes, "present");
        out->can_limit |= equals(part.bytes, "max_wait");
    }
    return !in.bad;
}

static bool read_error(reader in, answer *out)
{
    field part;
    while (read_field(&in, &part)) {
        if (part.key == KEY(1, VARINT))
            out->code = part.value;
        else if (part.key == KEY(2, BYTES))
            out->message = part.bytes;
        else if (part.key == KEY(3, BYTES))
            out->field = part.bytes;
    }
    return !in.bad;
}

/* Reads a ServerMessage; returns NULL, or what is wrong with it. */
static const char *read_answer(reader in, answer *out)
{
    field part;
    memset(out, 0, sizeof *out);
    while (read_field(&in, &part)) {
        bool good = true;
        switch (part.key) {
        case KEY(1, BYTES):
            out->kind = READY;
            good = read_ready(part.bytes, out);
            break;
        case KEY(2, BYTES):
            out->kind = ACTIONS;
            good = read_actions(part.bytes, out);
            break;
        case KEY(3, BYTES):
            out->kind = ERROR;
            good = read_error(part.bytes, out);
            break;
        }
        if (!good)
            return "an invalid message, or an action that is not one int64";
    }
    if (in.bad)
        return "bytes that are not a message";
    return out->kind == NOTHING ? "a message without a known body" : NULL;
}

/* Copies a text that was received. It may hold anything, and will be printed. */
static void copy_text(char *to, size_t size, reader in)
{
    size_t i = 0;
    for (; i + 1 < size && i < in.size; i++)
        to[i] = (char)(in.at[i] < 0x20 ? ' ' : in.at[i] < 0x7f ? in.at[i] : '?');
    to[i] = '\0';
}

static rlx_status take_error(rlx_client *client, const answer *got)
{
    bool known = got->code <= RLX_SERVER_UNAVAILABLE;
    drop_connection(client);
    fail(client, RLX_REFUSED,
         "the rlx server %s refused a message with error code %llu; see the server's log",
         client->address, (unsigned long long)got->code);
    if (got->message.size)
        copy_text(client->text, sizeof client->text, got->message);
    copy_text(client->field, sizeof client->field, got->field);
    client->code = known ? (rlx_code)got->code : RLX_NO_CODE;
    if (client->code == RLX_OVERLOADED || client->code == RLX_SERVER_UNAVAILABLE)
        return RLX_UNAVAILABLE;
    return RLX_REFUSED;
}

/* The connection. */

/* Waits until something can be read; whether that came before the deadline. */
static bool wait_readable(const rlx_client *client, double deadline)
{
    struct pollfd waiting = {.fd = client->socket, .events = POLLIN};
    int ready;
    do {
        double left = deadline - monotonic_sec();
        ready = poll(&waiting, 1, left > 0 ? (int)(1e3 * left) + 1 : 0);
    } while (ready < 0 && errno == EINTR);
    return ready != 0;
}

/* Reads until the input has so many bytes. Only what has arrived is taken for there. A time that is
 * `soft` ends with RLX_LATE, and nothing is lost. */
static rlx_status fill(rlx_client *client, size_t size, double deadline, bool soft)
{
    while (client->input_bytes < size) {
        if (soft && !wait_readable(client, deadline))
            return RLX_LATE;
        ssize_t got = recv(client->socket, client->input + client->input_bytes,
                           HEADER_BYTES + MAX_INPUT_BYTES - client->input_bytes, 0);
        if (got == 0)
            return lose(client, "the server closed the connection");
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return lose_in_time(client);
        if (got < 0 && errno != EINTR)
            return lose(client, strerror(errno));
        if (got > 0)
            client->input_bytes += (size_t)got;
        if (!soft && client->input_bytes < size && monotonic_sec() > deadline)
            return lose_in_time(client);
    }
    return RLX_OK;
}

/* Waits for one message. What it says points into the input, until the next one is waited for. */
static rlx_status receive(rlx_client *client, answer *out, double deadline, bool soft)
{
    uint8_t *input = client->input;
    const char *problem;
    uint32_t length;
    rlx_status status;
    client->input_bytes -= client->input_used;
    memmove(input, input + client->input_used, client->input_bytes);
    client->input_used = 0;
    status = fill(client, HEADER_BYTES, deadline, soft);
    if (status)
        return status;
    length = (uint32_t)input[0] << 24 | (uint32_t)input[1] << 16 | (uint32_t)input[2] << 8
             | input[3];
    if (length > MAX_INPUT_BYTES)
        return distrust(client, "a message longer than any answer");
    status = fill(client, HEADER_BYTES + length, deadline, soft);
    if (status)
        return status;
    client->input_used = HEADER_BYTES + length;
    problem = read_answer((reader){.at = input + HEADER_BYTES, .size = length}, out);
    if (problem)
        return distrust(client, problem);
    return out->kind == ERROR ? take_error(client, out) : RLX_OK;
}

/* Sends the message that stands at the end of the output. */
static rlx_status send_message(rlx_client *client, uint8_t *at)
{
    size_t length = (size_t)(output_end(client) - at);
    for (int i = 0; i < HEADER_BYTES; i++)
        *--at = (uint8_t)(length >> 8 * i);
    while (at < output_end(client)) {
        ssize_t sent = send(client->socket, at, (size_t)(output_end(client) - at), MSG_NOSIGNAL);
        if (sent >= 0) {
            at += sent;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return lose_in_time(client);
        } else if (errno != EINTR) {
            /* The server says why before it closes; that is worth more than "broken pipe". */
            answer last;
            const char *why = strerror(errno);
            double deadline = monotonic_sec() + client->timeout_sec;
            rlx_status status = receive(client, &last, deadline, false);
            return status ? status : lose(client, why);
        }
    }
    return RLX_OK;
}

/* Splits an address; false when it is none. Each part has room for all of it. */
static bool parse_address(const char *address, char *host, char *port)
{
    const char *begin = address, *end = address + strlen(address), *colon = strrchr(address, ':');
    bool bracketed = *address == '[';
    bool has_port = colon && (bracketed ? colon[-1] == ']' : colon == strchr(address, ':'));
    strcpy(port, has_port ? colon + 1 : DEFAULT_PORT);
    if (has_port)
        end = colon;
    if (bracketed && end[-1] == ']') {
        begin++;
        end--;
    }
    memcpy(host, begin, (size_t)(end - begin));
    host[end - begin] = '\0';
    return *host && strlen(port) <= 5 && strspn(port, "0123456789") == strlen(port)
           && atol(port) >= 1 && atol(port) <= 65535;
}

static struct timeval to_timeval(double seconds)
{
    struct timeval time;
    time.tv_sec = (time_t)seconds;
    time.tv_usec = (suseconds_t)(1e6 * (seconds - (double)time.tv_sec));
    return time;
}

/* Connects to one address; returns 0 or what went wrong, as errno says it. */
static int open_socket(rlx_client *client, const struct addrinfo *to)
{
    int one = 1, error = 0, ready, flags;
    socklen_t size = sizeof error;
    struct timeval timeout = to_timeval(client->timeout_sec);
    struct pollfd waiting = {.events = POLLOUT};
    int opened = socket(to->ai_family, to->ai_socktype, to->ai_protocol);
    if (opened < 0)
        return errno;
    client->socket = waiting.fd = opened;
    flags = fcntl(opened, F_GETFL);
    if (flags < 0 || fcntl(opened, F_SETFL, flags | O_NONBLOCK) < 0
        || fcntl(opened, F_SETFD, FD_CLOEXEC) < 0)
        return errno;
    if (connect(opened, to->ai_addr, to->ai_addrlen) < 0) {
        if (errno != EINPROGRESS && errno != EINTR)
            return errno;
        do {
            ready = poll(&waiting, 1, (int)(1e3 * client->connect_timeout_sec));
        } while (ready < 0 && errno == EINTR);
        if (ready == 0)
            return ETIMEDOUT;
        if (ready < 0 || getsockopt(opened, SOL_SOCKET, SO_ERROR, &error, &size) < 0)
            return errno;
        if (error)
            return error;
    }
    /* Each step waits for its answer: without TCP_NODELAY it may be held back for 40 ms. */
    if (fcntl(opened, F_SETFL, flags) < 0
        || setsockopt(opened, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) < 0
        || setsockopt(opened, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one) < 0
        || setsockopt(opened, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) < 0
        || setsockopt(opened, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout) < 0)
        return errno;
    return 0;
}

static rlx_status open_connection(rlx_client *client)
{
    char host[256], port[256];
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found, *one;
    const char *why;
    int error = 0;
    if (strlen(client->address) >= sizeof host || !parse_address(client->address, host, port))
        return fail(client, RLX_INVALID,
                    "address '%.100s': expected HOST:PORT with a port of 1 to 65535, for example "
                    "localhost:" DEFAULT_PORT, client->address);
    int unknown = getaddrinfo(host, port, &hints, &found);
    if (!unknown) {
        for (one = found; one; one = one->ai_next) {
            error = open_socket(client, one);
            if (!error)
                break;
            drop_connection(client);
        }
        freeaddrinfo(found);
        if (!error)
            return RLX_OK;
    }
    why = unknown ? gai_strerror(unknown) : strerror(error);
    return fail(client, RLX_UNAVAILABLE,
                "rlx server %s: cannot connect (%s); is the address correct, and is the server "
                "running?", client->address, why);
}

static bool is_printable(const char *name)
{
    for (; *name; name++)
        if ((unsigned char)*name < 0x20 || *name == 0x7f)
            return false;
    return true;
}

static rlx_status validate(rlx_client *client)
{
    size_t size = strlen(client->name);
    int largest = (MAX_OUTPUT_BYTES - MAX_REST_BYTES) / 4;
    if (size < 1 || size > MAX_NAME_BYTES || !is_printable(client->name))
        return fail(client, RLX_INVALID,
                    "name: %zu bytes, expected 1 to %d without control characters", size,
                    MAX_NAME_BYTES);
    if (client->observation_size < 1 || client->observation_size > largest)
        return fail(client, RLX_INVALID, "observation_size: %d, expected 1 to %d",
                    client->observation_size, largest);
    if (client->actions < 1)
        return fail(client, RLX_INVALID, "actions: %d, expected 1 or more", client->actions);
    if (!(client->timeout_sec >= 1e-3 && client->timeout_sec <= 1e6
          && client->connect_timeout_sec >= 1e-3 && client->connect_timeout_sec <= 1e6))
        return fail(client, RLX_INVALID,
                    "connect_timeout_sec: %g and timeout_sec: %g, expected 0.001 to 1e6",
                    client->connect_timeout_sec, client->timeout_sec);
    if (client->max_wait_ms < 0 || client->max_wait_ms > MAX_WAIT_MS)
        return fail(client, RLX_INVALID, "max_wait_ms: %d, expected 0 to %d", client->max_wait_ms,
                    MAX_WAIT_MS);
    if (client->answer_timeout_sec != 0
        && !(client->max_wait_ms && client->answer_timeout_sec > 0
             && client->answer_timeout_sec <= 1e6))
        return fail(client, RLX_INVALID,
                    "answer_timeout_sec: %g with max_wait_ms: %d, expected 0, or more than 0 and at "
                    "most 1e6 if max_wait_ms is set", client->answer_timeout_sec,
                    client->max_wait_ms);
    if (!(client->min_sleep_sec >= 0 && client->min_sleep_sec <= client->max_sleep_sec
          && client->max_sleep_sec <= 1e6))
        return fail(client, RLX_INVALID,
                    "min_sleep_sec: %g and max_sleep_sec: %g, expected 0 <= min_sleep_sec <= "
                    "max_sleep_sec <= 1e6", client->min_sleep_sec, client->max_sleep_sec);
    return RLX_OK;
}

static rlx_status take_memory(rlx_client *client)
{
    client->output_bytes = 4 * (size_t)client->observation_size + MAX_REST_BYTES;
    if (!client->output)
        client->output = malloc(client->output_bytes);
    if (!client->input)
        client->input = malloc(HEADER_BYTES + MAX_INPUT_BYTES);
    if (!client->output || !client->input)
        return fail(client, RLX_INVALID,
                    "observation_size: %d, but there is not enough memory; use smaller observations",
                    client->observation_size);
    client->input_bytes = client->input_used = 0;
    return RLX_OK;
}

static rlx_status greet(rlx_client *client)
{
    answer got;
    rlx_status status = send_message(client, put_hello(client));
    if (!status)
        status = receive(client, &got, monotonic_sec() + client->timeout_sec, false);
    if (status)
        return status;
    if (got.kind != READY)
        return distrust(client, "a message other than Ready in reply to the hello");
    client->can_execute = got.can_execute;
    client->can_skip = got.can_skip;
    if (client->max_wait_ms && !got.can_limit) {
        drop_connection(client);
        return fail(client, RLX_INVALID,
                    "max_wait_ms: the server at %s does not support it; update the server, or set "
                    "max_wait_ms to 0", client->address);
    }
    if (got.max_message_bytes && got.max_message_bytes < client->output_bytes) {
        drop_connection(client);
        return fail(client, RLX_INVALID,
                    "observation_size: %d needs messages of up to %zu bytes, but %s reads at most "
                    "%llu; raise its relaax-rlx-server.max_message_bytes", client->observation_size,
                    client->output_bytes, client->address,
                    (unsigned long long)got.max_message_bytes);
    }
    return RLX_OK;
}

/* What the header promises. */

static void print_line(const char *line)
{
    puts(line);
    fflush(stdout);
}

void rlx_init(rlx_client *client, const char *address, const char *name, int observation_size,
              int actions)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    memset(client, 0, sizeof *client);
    client->address = address;
    client->name = name;
    client->observation_size = observation_size;
    client->actions = actions;
    client->timeout_sec = 60;
    client->connect_timeout_sec = 10;
    client->min_sleep_sec = 1;
    client->max_sleep_sec = 10;
    client->report = print_line;
    client->socket = -1;
    client->random = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec
                     + ((uint64_t)getpid() << 40);
}

rlx_status rlx_connect(rlx_client *client)
{
    rlx_status status;
    drop_connection(client);
    client->finished = false;
    status = validate(client);
    if (!status)
        status = take_memory(client);
    if (!status)
        status = open_connection(client);
    return status ? status : greet(client);
}

/* A number of [0, 1): splitmix64, Steele, Lea and Flood (2014), doi:10.1145/2660193.2660195. */
static double draw(rlx_client *client)
{
    uint64_t bits = client->random += 0x9e3779b97f4a7c15u;
    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111ebu;
    return (double)((bits ^ bits >> 31) >> 11) * 0x1p-53;
}

/* Sleeps before another attempt to connect; tells why, which is `text`. */
static void pause_before_retry(rlx_client *client, double at_most_sec)
{
    char line[sizeof client->text + 64];
    struct timespec left;
    double seconds = client->min_sleep_sec
                     + draw(client) * (client->max_sleep_sec - client->min_sleep_sec);
    if (seconds > at_most_sec)
        seconds = at_most_sec * (0.5 + 0.5 * draw(client));
    snprintf(line, sizeof line, "%s; retrying in %.1f s", client->text, seconds);
    if (client->report)
        client->report(line);
    left.tv_sec = (time_t)seconds;
    left.tv_nsec = (long)(1e9 * (seconds - (double)left.tv_sec));
    while (nanosleep(&left, &left) < 0 && errno == EINTR)
        continue;
}

rlx_status rlx_connect_with_retry(rlx_client *client)
{
    double at_most_sec = FIRST_SLEEP_SEC;
    rlx_status status;
    while ((status = rlx_connect(client)) == RLX_UNAVAILABLE) {
        pause_before_retry(client, at_most_sec);
        at_most_sec *= 2;
    }
    return status;
}

rlx_status rlx_reconnect(rlx_client *client)
{
    char line[sizeof client->text];
    rlx_status status;
    pause_before_retry(client, INFINITY);
    status = rlx_connect_with_retry(client);
    snprintf(line, sizeof line, "reconnected to %s", client->address);
    if (!status && client->report)
        client->report(line);
    return status;
}

/* Waits for the answer to the newest step; answers to earlier ones are dropped. */
static rlx_status receive_answer(rlx_client *client, answer *got)
{
    bool soft = client->answer_timeout_sec > 0;
    double deadline = monotonic_sec() + (soft ? client->answer_timeout_sec : client->timeout_sec);
    for (;;) {
        rlx_status status = receive(client, got, deadline, soft);
        char what[96];
        if (status)
            return status;
        if (got->kind != ACTIONS)
            return distrust(client, "a message other than Actions in reply to a step");
        if (got->finished.size || !client->step_id || got->step_id == client->step_id)
            return RLX_OK;
        if (!got->step_id || got->step_id > client->step_id) {
            snprintf(what, sizeof what, "an answer to step %llu, expected 1 to %llu",
                     (unsigned long long)got->step_id, (unsigned long long)client->step_id);
            return distrust(client, what);
        }
        client->late_answers++;
    }
}

/* What to do when a step was not answered in time. */
static const char *find_late_cure(const rlx_client *client, const step *told)
{
    if (!told->observation)
        return "begin the next episode with rlx_act";
    if (told->skips)
        return "call the next verb";
    if (client->can_execute)
        return "do what is safe and report it with rlx_executed";
    return "do what is safe, call rlx_reconnect and begin a new episode";
}

/* Tells a step and takes the answer. */
static rlx_status exchange(rlx_client *client, const step *told, answer *got)
{
    rlx_status status;
    if (client->finished)
        return RLX_FINISHED;
    if (client->socket < 0)
        return fail(client, RLX_UNAVAILABLE,
                    "no connection to %s; call rlx_connect or rlx_reconnect, and begin a new episode",
                    client->address);
    if (client->unanswered && !client->has_executed)
        return fail(client, RLX_INVALID, "the last step was not answered in time; %s",
                    client->can_execute
                        ? "report what was carried out with rlx_executed"
                        : "call rlx_reconnect and begin a new episode");
    if (client->reward_due != (told->reward != NULL))
        return fail(client, RLX_INVALID, "%s",
                    client->reward_due
                        ? "rlx_act begins an episode, but the last action's reward is due; call "
                          "rlx_reward_and_act, or rlx_reward_and_reset to end the episode"
                        : "no action precedes this reward; begin with rlx_act");
    if (client->max_wait_ms)
        client->step_id++;
    status = send_message(client, put_step(client, told));
    client->has_executed = client->unanswered = false;
    if (!status)
        status = receive_answer(client, got);
    if (status == RLX_LATE) {
        client->reward_due = told->observation != NULL;
        client->unanswered = told->observation && !told->skips;
        return fail(client, RLX_LATE, "%s: no answer to step %llu within %g s; %s", client->address,
                    (unsigned long long)client->step_id, client->answer_timeout_sec,
                    find_late_cure(client, told));
    }
    if (status)
        return status;
    client->queue_us = got->queue_us;
    client->prediction_us = got->prediction_us;
    client->total_us = got->total_us;
    client->reward_due = told->observation != NULL;
    if (!got->finished.size)
        return RLX_OK;
    drop_connection(client);
    client->finished = true;
    fail(client, RLX_FINISHED, "%s", "");
    copy_text(client->text, sizeof client->text, got->finished);
    return RLX_FINISHED;
}

static rlx_status ask(rlx_client *client, const step *told, int64_t *action)
{
    answer got;
    char what[96];
    rlx_status status = exchange(client, told, &got);
    if (status)
        return status;
    if (!got.has_action)
        return distrust(client, "no action in reply to an observation");
    if (got.action < 0 || got.action >= client->actions) {
        snprintf(what, sizeof what, "action %lld, expected 0 to %d", (long long)got.action,
                 client->actions - 1);
        return distrust(client, what);
    }
    *action = got.action;
    return RLX_OK;
}

static rlx_status end_episode(rlx_client *client, const step *told, double *score)
{
    answer got;
    char what[96];
    rlx_status status = exchange(client, told, &got);
    if (status)
        return status;
    if (got.episodes != 1) {
        snprintf(what, sizeof what, "%d scores for the ended episode, expected 1", got.episodes);
        return distrust(client, what);
    }
    if (score)
        *score = got.score;
    return RLX_OK;
}

rlx_status rlx_act(rlx_client *client, const float *observation, int64_t *action)
{
    step told = {.observation = observation};
    return ask(client, &told, action);
}

rlx_status rlx_reward_and_act(rlx_client *client, double reward, const float *observation,
                              int64_t *action)
{
    step told = {.reward = &reward, .observation = observation};
    return ask(client, &told, action);
}

rlx_status rlx_executed(rlx_client *client, int64_t action)
{
    if (!client->reward_due)
        return fail(client, RLX_INVALID,
                    "rlx_executed: there is no action that it could replace; call it after a verb "
                    "that requested one");
    if (!client->can_execute)
        return fail(client, RLX_INVALID,
                    "rlx_executed: the agents of the server at %s cannot use it; %s",
                    client->address,
                    client->unanswered ? "call rlx_reconnect and begin a new episode"
                                       : "do not call it");
    if (action < 0 || action >= client->actions)
        return fail(client, RLX_INVALID, "rlx_executed: %lld, expected 0 to %d", (long long)action,
                    client->actions - 1);
    client->executed = action;
    client->has_executed = true;
    return RLX_OK;
}

rlx_status rlx_reward_and_skip(rlx_client *client, double reward)
{
    step told = {.reward = &reward, .observation = NOTHING_SEEN, .skips = true};
    int64_t none;
    if (client->socket >= 0 && !client->can_skip)
        return fail(client, RLX_INVALID,
                    "rlx_reward_and_skip: the agents of the server at %s cannot use it; do not "
                    "call it", client->address);
    return ask(client, &told, &none);
}

rlx_status rlx_reward_and_reset(rlx_client *client, double reward, double *score)
{
    step told = {.reward = &reward, .terminated = true};
    return end_episode(client, &told, score);
}

rlx_status rlx_reward_and_truncate(rlx_client *client, double reward,
                                   const float *final_observation, double *score)
{
    step told = {
        .reward = &reward, .truncated = true, .final_observation = final_observation};
    return end_episode(client, &told, score);
}

void rlx_close(rlx_client *client)
{
    drop_connection(client);
    free(client->output);
    free(client->input);
    client->output = client->input = NULL;
}
