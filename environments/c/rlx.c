#define _POSIX_C_SOURCE 200809L

#include "rlx.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "rlx.c needs a little-endian machine, such as x86, ARM and RISC-V"
#endif

enum { HEADER_BYTES = 4, MAX_MESSAGE_BYTES = 64 << 20, MAX_REST_BYTES = 64 << 10 };
enum { READY = 1, ACTIONS = 2, ERROR = 3, PING = 4 }; /* fields of ServerMessage */
/* Wire types of protobuf: https://protobuf.dev/programming-guides/encoding */
enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };
#define KEY(number, type) ((uint64_t)(number) << 3 | (type))

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void drop_connection(rlx_client *client) {
    if (client->socket >= 0) close(client->socket);
    client->socket = -1;
    client->reward_due = false;
}

__attribute__((format(printf, 3, 4)))
static rlx_status fail(rlx_client *client, rlx_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(client->text, sizeof client->text, format, arguments);
    va_end(arguments);
    client->code = RLX_NO_CODE;
    client->field[0] = '\0';
    if (status == RLX_UNAVAILABLE || status == RLX_REFUSED) drop_connection(client);
    return status;
}

static rlx_status lose(rlx_client *client, const char *why) {
    return fail(client, RLX_UNAVAILABLE, "lost the rlx server %s: %s", client->address, why);
}

static rlx_status distrust(rlx_client *client, const char *what) {
    return fail(client, RLX_REFUSED, "%s sent %s; check that it is an rlx server, and whether it "
                "uses TLS; update the client or the server", client->address, what);
}

/* Writing. A message is written from its end to its beginning, as the length of each part stands
 * before it. Without an `end`, `put_*` only count its bytes. */

typedef struct { uint8_t *end; size_t size; } writer;
typedef void putter(const rlx_client *client, writer *to, const void *what);

static void put_raw(writer *to, const void *data, size_t size) {
    to->size += size;
    if (to->end && size) memcpy(to->end - to->size, data, size);
}

static void put_varint(writer *to, uint64_t value) {
    uint8_t bytes[10];
    size_t size = 0;
    for (; value > 0x7f; value >>= 7) bytes[size++] = (uint8_t)(value | 0x80);
    bytes[size++] = (uint8_t)value;
    put_raw(to, bytes, size);
}

/* Writes a number; 0, which is the default, is left out. */
static void put_number(writer *to, int field, uint64_t value) {
    if (value) put_varint(to, value), put_varint(to, KEY(field, VARINT));
}

/* Makes what was written after the `last` bytes the content of a field. */
static void put_length(writer *to, int field, size_t last) {
    put_varint(to, to->size - last);
    put_varint(to, KEY(field, BYTES));
}

static void put_text(writer *to, int field, const char *text) {
    size_t last = to->size;
    put_raw(to, text, strlen(text));
    put_length(to, field, last);
}

static void put_list(writer *to, int field, const int64_t *list, size_t count) {
    size_t last = to->size;
    for (size_t i = count; i-- > 0;) put_varint(to, (uint64_t)list[i]);
    if (count) put_length(to, field, last);
}

/* Writes an NdArray: [slots, leaf->shape], or [leaf->shape] if `slots` is 0. It is the value of a
 * field, or of an entry of a map if the leaf has a name and `slots` is not 0. */
static void put_array(writer *to, int field, const rlx_leaf *leaf, int slots, const void *data) {
    size_t last = to->size;
    int64_t shape[RLX_MAX_AXES + 1] = {slots};
    size_t axes = (size_t)leaf->axes, count = leaf->count * (size_t)(slots ? slots : 1);
    memcpy(shape + !!slots, leaf->shape, axes * sizeof *shape);
    put_raw(to, data, count * leaf->item_size);
    put_length(to, 3, last);
    put_list(to, 2, shape, axes + !!slots);
    put_text(to, 1, leaf->dtype);
    put_length(to, leaf->name && slots ? 2 : field, last);
    if (leaf->name && slots) put_text(to, 1, leaf->name), put_length(to, field, last);
}

static void put_column(writer *to, int field, const char *dtype, int slots, const void *data) {
    size_t size = strcmp(dtype, "float64") ? 1 : 8;
    put_array(to, field, &(rlx_leaf){.dtype = dtype, .count = 1, .item_size = size}, slots, data);
}

/* Writes a map of arrays: those of `data`, or the leaves' own. */
static void put_leaves(writer *to, int field, const rlx_leaf *leaf, int count, int slots,
                       const void *const *data) {
    for (int i = count; i-- > 0;)
        put_array(to, field, &leaf[i], slots, data ? data[i] : leaf[i].data);
}

/* Writes entries of a map: the leaf's name -> Space. */
static void put_spaces(writer *to, int field, const rlx_leaf *leaf, int count) {
    for (leaf += count; count-- > 0;) {
        size_t last = to->size;
        leaf--;
        put_number(to, 7, (uint64_t)leaf->start);
        if (leaf->n) put_list(to, 6, leaf->n, leaf->count);
        if (leaf->high) put_array(to, 5, leaf, 0, leaf->high);
        if (leaf->low) put_array(to, 4, leaf, 0, leaf->low);
        put_list(to, 3, leaf->shape, (size_t)leaf->axes);
        put_text(to, 2, leaf->dtype);
        put_number(to, 1, leaf->kind);
        put_length(to, 2, last);
        put_text(to, 1, leaf->name);
        put_length(to, field, last);
    }
}

static void put_hello(const rlx_client *client, writer *to, const void *nothing) {
    (void)nothing;
    for (int i = client->num_wanted; i-- > 0;) put_text(to, 8, client->wanted[i]);
    if (client->token) put_text(to, 7, client->token);
    put_number(to, 6, client->exploit ? 2 : 1);
    put_spaces(to, 5, client->actions, client->num_actions);
    put_spaces(to, 4, client->observations, client->num_observations);
    put_number(to, 3, (uint64_t)client->slots);
    put_text(to, 2, client->name);
    put_number(to, 1, 1); /* the version of the protocol */
    put_length(to, 1, 0);
}

static void put_step(const rlx_client *client, writer *to, const void *what) {
    const rlx_step *step = what;
    int slots = client->slots, count = client->num_observations;
    if (step->sends_finals) put_leaves(to, 6, client->observations, count, slots, step->finals);
    if (step->success) put_column(to, 5, "int8", slots, step->success);
    if (step->rewards) {
        put_column(to, 4, "bool", slots, step->truncated);
        put_column(to, 3, "bool", slots, step->terminated);
        put_column(to, 2, "float64", slots, step->rewards);
    }
    if (step->observes) put_leaves(to, 1, client->observations, count, slots, NULL);
    put_length(to, 2, 0);
}

static void put_ping(const rlx_client *client, writer *to, const void *nothing) {
    (void)client, (void)nothing;
    put_length(to, PING, 0);
}

/* Reading. Nothing that is received is trusted: each length is compared with what is there. */

typedef struct { const uint8_t *at; size_t size; bool bad; } bytes; /* bad: not a message */

static bytes split(bytes *in, uint64_t size) {
    in->bad |= size > in->size;
    if (in->bad) return (bytes){.bad = true};
    in->at += size;
    in->size -= (size_t)size;
    return (bytes){.at = in->at - size, .size = (size_t)size};
}

static uint64_t read_varint(bytes *in) {
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        bytes byte = split(in, 1);
        if (byte.bad) return 0;
        value |= (uint64_t)(*byte.at & 0x7f) << shift;
        if (*byte.at < 0x80) return value;
    }
    in->bad = true;
    return 0;
}

/* Reads the next field, and returns its key; 0 at the end, and where the bytes are not a
 * message. The content of a VARINT is to be read as one. */
static uint64_t read_field(bytes *in, bytes *content) {
    if (in->bad || !in->size) return 0;
    uint64_t key = read_varint(in), type = key & 7, size = type == FIXED64 ? 8 : 4;
    if (type == BYTES) size = read_varint(in);
    *content = type == VARINT ? *in : split(in, size);
    if (type == VARINT) read_varint(in), content->size -= in->size;
    /* There is not a field 0, and no message of this protocol has a group. */
    in->bad |= key < 8 || !(type <= BYTES || type == FIXED32);
    return in->bad ? 0 : key;
}

static bool equals(bytes in, const char *text) {
    return in.size == strlen(text) && !memcmp(in.at, text, in.size);
}

/* Copies a text that was received. It can contain anything, and will be printed. */
static void copy_text(char *to, size_t size, bytes in) {
    for (; size > 1 && in.size; size--, in.size--, in.at++)
        *to++ = (char)(*in.at < 0x20 ? ' ' : *in.at < 0x7f ? *in.at : '?');
    *to = '\0';
}

/* Returns a number of an array; 0 for a float of 16 bits. */
static double get_number(const rlx_leaf *leaf, const void *data, size_t index) {
    size_t size = leaf->item_size;
    union { uint64_t bits; int64_t integer; double number; float single; } value = {0};
    memcpy(&value, (const uint8_t *)data + size * index, size);
    if (strstr(leaf->dtype, "float"))
        return size == 8 ? value.number : size == 4 ? (double)value.single : 0;
    uint64_t sign = *leaf->dtype == 'i' ? 1ull << (8 * size - 1) : 0;
    value.bits = (value.bits ^ sign) - sign;
    return sign ? (double)value.integer : (double)value.bits;
}

/* Whether a received number is in its space; one of a BOX is clipped to the bounds. */
static bool settle(rlx_leaf *leaf, size_t index) {
    size_t size = leaf->item_size, one = index % leaf->count;
    double number = get_number(leaf, leaf->data, index), start = (double)leaf->start;
    const uint8_t *bound = NULL;
    if (leaf->kind == RLX_MULTI_BINARY) return number == 0 || number == 1;
    if (leaf->kind != RLX_BOX) return number >= start && number < start + (double)leaf->n[one];
    if (leaf->low && number < get_number(leaf, leaf->low, one)) bound = leaf->low;
    if (leaf->high && number > get_number(leaf, leaf->high, one)) bound = leaf->high;
    if (bound) memcpy((uint8_t *)leaf->data + size * index, bound + size * one, size);
    return isfinite(number);
}

/* Reads an NdArray into a leaf's values; returns what is wrong with it, or NULL. */
static const char *read_array(bytes in, rlx_leaf *leaf, int slots) {
    bytes content, dtype = {0}, data = {0};
    size_t axes = 0, total = leaf->count * (size_t)slots;
    bool fits = true;
    for (uint64_t key; (key = read_field(&in, &content));) {
        if (key == KEY(1, BYTES)) dtype = content;
        if (key == KEY(3, BYTES)) data = content;
        for (; key >> 3 == 2 && content.size && !content.bad; axes++) {
            int64_t length = (int64_t)read_varint(&content);
            bool known = axes <= (size_t)leaf->axes;
            fits &= known && length == (axes ? leaf->shape[axes - 1] : slots);
        }
        in.bad |= content.bad;
    }
    fits &= axes == (size_t)leaf->axes + 1 && data.size == total * leaf->item_size;
    if (in.bad) return "an invalid message";
    if (!fits || !equals(dtype, leaf->dtype)) return "actions of another dtype or shape";
    if (total) memcpy(leaf->data, data.at, data.size);
    while (total-- > 0)
        if (!settle(leaf, total)) return "an action outside of its space";
    return NULL;
}

/* Reads one of the server's entries "leaf -> NdArray". */
static const char *read_action(rlx_client *client, bytes in) {
    bytes content, name = {0}, array = {0};
    for (uint64_t key; (key = read_field(&in, &content));) {
        if (key == KEY(1, BYTES)) name = content;
        if (key == KEY(2, BYTES)) array = content;
    }
    for (rlx_leaf *leaf = client->actions; leaf < client->actions + client->num_actions; leaf++)
        if (!in.bad && equals(name, leaf->name)) {
            leaf->given = true;
            return read_array(array, leaf, client->slots);
        }
    return "actions of a leaf that is not in the action space";
}

/* The connection. */

/* Limits the time of each call on the socket. */
static void limit(const rlx_client *client, double seconds) {
    seconds = fmin(fmax(seconds, 1e-5), 1e6);
    struct timeval time = {.tv_sec = (time_t)seconds};
    time.tv_usec = (suseconds_t)(1e6 * (seconds - (double)time.tv_sec));
    setsockopt(client->socket, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    setsockopt(client->socket, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
}

static long move_plain(rlx_client *client, bool sends, uint8_t *at, size_t size) {
    return sends ? send(client->socket, at, size, MSG_NOSIGNAL) : recv(client->socket, at, size, 0);
}

/* Sends or receives until so many bytes are done. Returns 0, or what went wrong, as errno says it:
 * EAGAIN: it takes too long; EPIPE: the server has closed the connection. */
static int move_all(rlx_client *client, bool sends, uint8_t *data, size_t size, size_t *done,
                    double deadline) {
    while (*done < size) {
        long moved = client->move(client, sends, data + *done, size - *done);
        if (moved > 0) *done += (size_t)moved;
        if (moved == 0) return EPIPE;
        if (moved < 0 && errno != EINTR) return errno == EWOULDBLOCK ? EAGAIN : errno;
        if (*done < size && now() > deadline) return EAGAIN;
    }
    return 0;
}

/* Reads until the input has so many bytes; RLX_LATE: they have not come in time. */
static rlx_status fill(rlx_client *client, size_t size, double deadline) {
    int error = move_all(client, false, client->input, size, &client->input_bytes, deadline);
    if (!error || error == EAGAIN) return error ? RLX_LATE : RLX_OK;
    return lose(client, error == EPIPE ? "the server closed the connection" : strerror(error));
}

static rlx_status take_error(rlx_client *client, bytes in) {
    bytes content;
    fail(client, RLX_REFUSED, "the rlx server %s refused a message; see its log", client->address);
    for (uint64_t key; (key = read_field(&in, &content));) {
        if (key == KEY(1, VARINT)) client->code = read_varint(&content);
        if (key == KEY(2, BYTES)) copy_text(client->text, sizeof client->text, content);
        if (key == KEY(3, BYTES)) copy_text(client->field, sizeof client->field, content);
    }
    if (in.bad) return distrust(client, "an invalid message");
    bool passes = client->code == RLX_OVERLOADED || client->code == RLX_SERVER_UNAVAILABLE;
    return passes ? RLX_UNAVAILABLE : RLX_REFUSED;
}

/* Waits for one message, which stays valid until the next one is awaited. RLX_LATE: none came. */
static rlx_status receive(rlx_client *client, uint64_t wanted, bytes *out) {
    for (uint64_t kind = 0; kind != wanted;) {
        double deadline = now() + client->timeout_sec;
        bytes content, in = {.at = client->input + HEADER_BYTES};
        rlx_status status = fill(client, HEADER_BYTES, deadline);
        if (status) return status;
        for (int i = 0; i < HEADER_BYTES; i++) in.size = in.size << 8 | client->input[i];
        if (in.size > client->input_size - HEADER_BYTES)
            return distrust(client, "a message longer than any answer");
        status = fill(client, HEADER_BYTES + in.size, deadline);
        if (status) return status;
        client->input_bytes = 0;
        kind = 0;
        for (uint64_t key; (key = read_field(&in, &content));)
            if ((key & 7) == BYTES && key >> 3 <= PING) kind = key >> 3, *out = content;
        if (in.bad) return distrust(client, "bytes that are not a message");
        if (kind == ERROR) return take_error(client, *out);
        if (!kind) return distrust(client, "a message without a known body");
        if (kind != wanted && kind != PING) return distrust(client, "a message at the wrong time");
    }
    return RLX_OK;
}

/* Makes of a late answer a lost connection. */
static rlx_status lose_late(rlx_client *client, rlx_status status) {
    char why[64];
    snprintf(why, sizeof why, "no answer within %g s", client->timeout_sec);
    return status == RLX_LATE ? lose(client, why) : status;
}

static rlx_status send_message(rlx_client *client, putter *put, const void *what) {
    writer to = {0};
    put(client, &to, what);
    size_t length = to.size, size = length + HEADER_BYTES, sent = 0;
    bool fits = length <= client->max_message_bytes;
    if (fits && size > client->output_size) {
        free(client->output);
        client->output = malloc(size);
        client->output_size = client->output ? size : 0;
    }
    if (!fits || !client->output)
        return fail(client, RLX_INVALID, "a message of %zu bytes, but %s reads at most %zu; "
                    "use smaller arrays, or raise its relaax-rlx-server.max_message_bytes",
                    length, client->address, client->max_message_bytes);
    to = (writer){.end = client->output + size};
    put(client, &to, what);
    for (int i = 0; i < HEADER_BYTES; i++) put_raw(&to, &(uint8_t){(uint8_t)(length >> 8 * i)}, 1);
    int error = move_all(client, true, client->output, size, &sent, now() + client->timeout_sec);
    rlx_status status = error ? RLX_LATE : RLX_OK;
    /* The server says why before it closes; that is worth more than "broken pipe". */
    for (bytes last; error && error != EAGAIN && !(status = receive(client, ACTIONS, &last));)
        continue;
    return lose_late(client, status);
}

/* Connects to one address; returns 0 or what went wrong, as errno says it. */
static int open_socket(rlx_client *client, const struct addrinfo *to) {
    const int one = 1;
    double deadline = now() + client->connect_timeout_sec;
    client->socket = socket(to->ai_family, to->ai_socktype, to->ai_protocol);
    if (client->socket < 0 || fcntl(client->socket, F_SETFD, FD_CLOEXEC) < 0) return errno;
    limit(client, client->connect_timeout_sec);
    while (connect(client->socket, to->ai_addr, to->ai_addrlen) < 0)
        if (errno != EINTR || now() > deadline)
            return errno == EINPROGRESS || errno == EINTR ? ETIMEDOUT : errno;
    limit(client, client->timeout_sec);
    setsockopt(client->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return setsockopt(client->socket, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one) ? errno : 0;
}

static rlx_status open_connection(rlx_client *client, char host[256]) {
    char port[6] = "7001";
    const char *form = *client->address == '[' ? "[%255[^]]]%n:%5[0-9]%n" : "%255[^:]%n:%5[0-9]%n";
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found = NULL;
    int used = 0, error = 0;
    sscanf(client->address, form, host, &used, port, &used);
    if (!used || client->address[used] || atol(port) < 1 || atol(port) > 65535)
        return fail(client, RLX_INVALID, "address '%.100s': expected HOST:PORT with a port of 1 to "
                    "65535, for example localhost:7001", client->address);
    int unknown = getaddrinfo(host, port, &hints, &found);
    for (struct addrinfo *one = found; one && client->socket < 0; one = one->ai_next)
        if ((error = open_socket(client, one))) drop_connection(client);
    if (found) freeaddrinfo(found);
    if (client->socket >= 0) return RLX_OK;
    return fail(client, RLX_UNAVAILABLE, "rlx server %s: cannot connect (%s); is the address "
                "correct, and is the server running?", client->address,
                unknown ? gai_strerror(unknown) : strerror(error));
}

/* Counts the numbers of each leaf, and the bytes of all; false: no message has room for them. */
static bool measure(rlx_leaf *leaf, int leaves, int slots, size_t *total) {
    for (; leaves-- > 0; leaf++) {
        const char *bits = leaf->dtype + strcspn(leaf->dtype, "0123456789");
        leaf->item_size = *bits ? (size_t)atoi(bits) / 8 : 1;
        leaf->count = 1;
        if (leaf->axes > RLX_MAX_AXES || leaf->item_size < 1 || leaf->item_size > 8) return false;
        bool counted = leaf->kind == RLX_DISCRETE || leaf->kind == RLX_MULTI_DISCRETE;
        if (!leaf->data || (counted && !leaf->n)) return false;
        for (int i = 0; i < leaf->axes; i++)
            if ((uint64_t)leaf->shape[i] > MAX_MESSAGE_BYTES
                || (leaf->count *= (size_t)leaf->shape[i]) > MAX_MESSAGE_BYTES) return false;
        *total += leaf->count * leaf->item_size * (size_t)slots + strlen(leaf->name) + 256;
        if (*total > MAX_MESSAGE_BYTES) return false;
    }
    return true;
}

static rlx_status prepare(rlx_client *client) {
    size_t input_size = MAX_REST_BYTES + 64 * (size_t)client->slots, seen = 0;
    rlx_close(client);
    client->finished = false;
    if (client->slots < 1
        || !measure(client->observations, client->num_observations, client->slots, &seen)
        || !measure(client->actions, client->num_actions, client->slots, &input_size))
        return fail(client, RLX_INVALID, "slots, observations, actions: expected 1 slot or more, "
                    "leaves with a dtype such as float32, data, n if discrete, at most %d axes, "
                    "and 64 MiB", RLX_MAX_AXES);
    client->input = malloc(client->input_size = input_size);
    if (client->input) return RLX_OK;
    return fail(client, RLX_INVALID, "not enough memory for the arrays of all leaves");
}

static rlx_status greet(rlx_client *client, putter *put) {
    bytes in, content;
    client->max_message_bytes = MAX_MESSAGE_BYTES;
    rlx_status status = send_message(client, put, NULL);
    if (!status) status = lose_late(client, receive(client, READY, &in));
    if (status) return status;
    client->features = 0;
    for (uint64_t key; (key = read_field(&in, &content));) {
        if (key == KEY(3, VARINT)) client->max_message_bytes = (size_t)read_varint(&content);
        for (int i = 0; key == KEY(4, BYTES) && i < client->num_wanted; i++)
            if (equals(content, client->wanted[i])) client->features |= 1u << i;
    }
    return in.bad ? distrust(client, "an invalid message") : RLX_OK;
}

/* Whether a step can be sent now. */
static rlx_status check(rlx_client *client, const rlx_step *step) {
    if (client->finished) return RLX_FINISHED;
    if (client->socket < 0)
        return fail(client, RLX_UNAVAILABLE, "no connection to %s; connect, and begin a new "
                    "episode", client->address);
    if (client->reward_due == (step->rewards != NULL)) return RLX_OK;
    return fail(client, RLX_INVALID, client->reward_due
                ? "rlx_act begins an episode, but the last action's reward is due; call "
                  "rlx_reward_and_act, or rlx_reward_and_reset to end the episode"
                : "no action precedes this reward; begin with rlx_act");
}

/* Takes the answer to a step. */
static rlx_status take(rlx_client *client, const rlx_step *step, bytes in) {
    const char *problem = NULL;
    bytes content, inner, finished = {0};
    client->num_episodes = 0;
    for (int i = 0; i < client->num_actions; i++) client->actions[i].given = !step->observes;
    for (uint64_t key; (key = read_field(&in, &content));) {
        if (key == KEY(1, BYTES) && !problem) problem = read_action(client, content);
        if (key == KEY(3, BYTES)) finished = content;
        if (key != KEY(2, BYTES)) continue;
        client->score = 0;
        client->num_episodes++;
        while ((key = read_field(&content, &inner)))
            if (key == KEY(2, FIXED64)) memcpy(&client->score, inner.at, 8);
        in.bad |= content.bad;
    }
    if (in.bad) problem = "an invalid message";
    for (int i = 0; i < client->num_actions && !finished.size; i++)
        if (!client->actions[i].given && !problem) problem = "no action in reply to an observation";
    if (problem) return distrust(client, problem);
    client->reward_due = step->observes;
    if (!finished.size) return RLX_OK;
    drop_connection(client);
    client->finished = true;
    fail(client, RLX_FINISHED, "%s", "");
    copy_text(client->text, sizeof client->text, finished);
    return RLX_FINISHED;
}

static rlx_status exchange(rlx_client *client, const rlx_step *step) {
    bytes in;
    rlx_status status = check(client, step);
    if (!status) status = send_message(client, put_step, step);
    if (!status) status = lose_late(client, receive(client, ACTIONS, &in));
    return status ? status : take(client, step, in);
}

/* What the header promises. */

void rlx_init(rlx_client *client, const char *address, const char *name, rlx_leaf *observations,
              int num_observations, rlx_leaf *actions, int num_actions) {
    static const char *const wanted[] = {"hello_ping", "ping"};
    *client = (rlx_client){.address = address, .name = name, .slots = 1, .wanted = wanted,
                           .num_wanted = 2, .timeout_sec = 60, .connect_timeout_sec = 10,
                           .socket = -1, .move = move_plain, .exchange = exchange};
    client->observations = observations;
    client->num_observations = num_observations;
    client->actions = actions;
    client->num_actions = num_actions;
}

rlx_status rlx_connect(rlx_client *client) {
    char host[256];
    rlx_status status = prepare(client);
    if (!status) status = open_connection(client, host);
    return status ? status : greet(client, put_hello);
}

rlx_status rlx_exchange(rlx_client *client, const rlx_step *step) {
    return client->exchange(client, step);
}

rlx_status rlx_act(rlx_client *client) {
    return rlx_exchange(client, &(rlx_step){.observes = true});
}

rlx_status rlx_reward_and_act(rlx_client *client, double reward) {
    const bool no = false;
    rlx_step step = {.rewards = &reward, .terminated = &no, .truncated = &no, .observes = true};
    return rlx_exchange(client, &step);
}

static rlx_status end_episode(rlx_client *client, double reward, bool truncated, int success) {
    const int8_t known = (int8_t)success;
    const bool terminated = !truncated;
    rlx_step step = {.rewards = &reward, .terminated = &terminated, .truncated = &truncated,
                     .success = success < 0 ? NULL : &known,
                     .sends_finals = truncated || client->sends_finals};
    rlx_status status = rlx_exchange(client, &step);
    if (status || client->num_episodes == 1) return status;
    return distrust(client, "not one score for the ended episode");
}

rlx_status rlx_reward_and_reset(rlx_client *client, double reward, int success) {
    return end_episode(client, reward, false, success);
}

rlx_status rlx_reward_and_truncate(rlx_client *client, double reward, int success) {
    return end_episode(client, reward, true, success);
}

bool rlx_has(const rlx_client *client, const char *feature) {
    for (int i = 0; i < client->num_wanted; i++)
        if (client->features >> i & 1 && !strcmp(client->wanted[i], feature)) return true;
    return false;
}

rlx_status rlx_ping(rlx_client *client) {
    if (client->socket < 0 || !rlx_has(client, "ping")) return RLX_OK;
    return send_message(client, put_ping, NULL);
}

void rlx_close(rlx_client *client) {
    drop_connection(client);
    free(client->output);
    free(client->input);
    client->output = client->input = NULL;
    client->input_bytes = client->output_size = client->features = 0;
}
