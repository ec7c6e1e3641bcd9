/* A connection that carries frames, and protobuf's encoding: what does not depend on what is said.
 * It needs no other file, and is included, as rlx.c does. */
#define _POSIX_C_SOURCE 200809L

#include "rlx_wire.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "rlx_wire.c needs a little-endian machine, such as x86, ARM and RISC-V"
#endif

enum { HEADER_BYTES = 4 };
/* Wire types of protobuf: https://protobuf.dev/programming-guides/encoding */
enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };
#define KEY(number, type) ((uint64_t)(number) << 3 | (type))

/* Writing. A message is written from its end to its beginning, as the length of each part stands
 * before it. Without an `end`, `put_*` only count its bytes. */

typedef struct { uint8_t *end; size_t size; } writer;

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

/* Writes an NdArray. */
static void put_array(writer *to, int field, const char *dtype, const int64_t *shape, int axes,
                      const void *data, size_t size) {
    size_t last = to->size;
    put_raw(to, data, size);
    put_length(to, 3, last);
    put_list(to, 2, shape, (size_t)axes);
    put_text(to, 1, dtype);
    put_length(to, field, last);
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

/* The connection. Errors are those of errno: EAGAIN: it takes too long; EPIPE: the other side has
 * closed the connection; EMSGSIZE: a frame is longer than the input. */

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Waits until the socket is ready; false: it was not before the deadline. */
static bool await(const rlx_wire *wire, short events) {
    struct pollfd one = {.fd = wire->socket, .events = events};
    for (double left; (left = wire->deadline - now()) > 0;)
        if (poll(&one, 1, (int)(1e3 * fmin(left, 1e6)) + 1) > 0) return true;
    return false;
}

/* Sends or receives some bytes; -1: not before the deadline (EAGAIN or EINTR), or an error. */
static long move_plain(rlx_wire *wire, bool sends, uint8_t *at, size_t size) {
    long moved;
    do moved = sends ? send(wire->socket, at, size, MSG_NOSIGNAL) : recv(wire->socket, at, size, 0);
    while (moved < 0 && errno == EAGAIN && await(wire, sends ? POLLOUT : POLLIN));
    return moved;
}

/* Sends or receives until so many bytes are done. Returns 0 or an error. */
static int move_all(rlx_wire *wire, bool sends, uint8_t *data, size_t size, size_t *done) {
    while (*done < size) {
        long moved = wire->move(wire, sends, data + *done, size - *done);
        if (moved > 0) *done += (size_t)moved;
        if (moved == 0) return EPIPE;
        if (moved < 0 && errno != EINTR && errno != EAGAIN) return errno;
        if (*done < size && now() > wire->deadline) return EAGAIN;
    }
    return 0;
}

/* Makes a writer for a frame of so many bytes; without memory it has no end. */
static writer begin_frame(rlx_wire *wire, size_t size) {
    free(wire->output);
    wire->output = malloc(HEADER_BYTES + size);
    return (writer){.end = wire->output ? wire->output + HEADER_BYTES + size : NULL};
}

static int send_frame(rlx_wire *wire, writer *to) {
    size_t length = to->size, sent = 0;
    for (int i = 0; i < HEADER_BYTES; i++) put_raw(to, &(uint8_t){(uint8_t)(length >> 8 * i)}, 1);
    return move_all(wire, true, wire->output, to->size, &sent);
}

/* Receives a frame, which stays valid until the next one is awaited. After EAGAIN it can go on. */
static int receive_frame(rlx_wire *wire, bytes *in) {
    int error = move_all(wire, false, wire->input, HEADER_BYTES, &wire->input_bytes);
    if (error) return error;
    *in = (bytes){.at = wire->input + HEADER_BYTES};
    for (int i = 0; i < HEADER_BYTES; i++) in->size = in->size << 8 | wire->input[i];
    if (in->size > wire->input_size - HEADER_BYTES) return EMSGSIZE;
    error = move_all(wire, false, wire->input, HEADER_BYTES + in->size, &wire->input_bytes);
    if (!error) wire->input_bytes = 0;
    return error;
}

static void close_socket(rlx_wire *wire) {
    if (wire->socket >= 0) close(wire->socket);
    wire->socket = -1;
}

static int open_socket(rlx_wire *wire, const struct addrinfo *to, double seconds) {
    int one = 1, error = 0;
    socklen_t size = sizeof error;
    wire->deadline = now() + seconds;
    wire->socket = socket(to->ai_family, to->ai_socktype, to->ai_protocol);
    if (wire->socket < 0 || fcntl(wire->socket, F_SETFD, FD_CLOEXEC) < 0
        || fcntl(wire->socket, F_SETFL, O_NONBLOCK) < 0) return errno;
    if (connect(wire->socket, to->ai_addr, to->ai_addrlen) < 0 && errno != EINPROGRESS
        && errno != EINTR) return errno;
    if (!await(wire, POLLOUT)) return ETIMEDOUT;
    setsockopt(wire->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(wire->socket, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    return getsockopt(wire->socket, SOL_SOCKET, SO_ERROR, &error, &size) ? errno : error;
}

/* Connects to the first address of a host that accepts; returns NULL, or what went wrong. */
static const char *open_wire(rlx_wire *wire, const char *host, const char *port, double seconds) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found = NULL;
    int unknown = getaddrinfo(host, port, &hints, &found), error = 0;
    for (struct addrinfo *one = found; one && wire->socket < 0; one = one->ai_next)
        if ((error = open_socket(wire, one, seconds))) close_socket(wire);
    if (found) freeaddrinfo(found);
    return unknown ? gai_strerror(unknown) : error ? strerror(error) : NULL;
}
