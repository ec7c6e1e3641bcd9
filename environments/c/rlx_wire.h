/* The connection of a client. rlx_wire.c has what works on it; a program uses rlx.h. */
#ifndef RLX_WIRE_H
#define RLX_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct rlx_wire {
    int socket;      /* -1: not connected */
    double deadline; /* no call waits longer; by the clock of `now` */
    uint8_t *output, *input;
    size_t input_size, input_bytes;
    /* Sends or receives some bytes, as `move_plain` does. */
    long (*move)(struct rlx_wire *, bool sends, uint8_t *at, size_t size);
} rlx_wire;

#endif
