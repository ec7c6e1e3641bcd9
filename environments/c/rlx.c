#include "rlx_wire.c"

#include "rlx.h"

#include <stdarg.h>
#include <stdio.h>

enum { MAX_MESSAGE_BYTES = 64 << 20, MAX_REST_BYTES = 64 << 10 };
enum { READY = 1, ACTIONS = 2, ERROR = 3, PING = 4 }; /* fields of ServerMessage */

static void drop_connection(rlx_client *client) {
    close_socket(&client->wire);
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

static rlx_status lose(rlx_client *client, int error) {
    char why[64];
    snprintf(why, sizeof why, "no answer within %g s", client->timeout_sec);
    return fail(client, RLX_UNAVAILABLE, "lost the rlx server %s: %s", client->address,
                error == EAGAIN ? why : error == EPIPE ? "the server closed the connection"
                : strerror(error));
}

static rlx_status distrust(rlx_client *client, const char *what) {
    return fail(client, RLX_REFUSED, "%s sent %s; check that it is an rlx server, and whether it "
                "uses TLS; update the client or the server", client->address, what);
}

/* Writing, in the manner of `put_*` of rlx_wire.c: what is last is written first. */

typedef void putter(const rlx_client *client, writer *to, const void *what);

/* Writes an entry of a map: the leaf's name -> NdArray [slots, leaf->shape]. */
static void put_leaf(writer *to, int field, const rlx_leaf *leaf, int slots, const void *data) {
    size_t last = to->size, size = leaf->count * leaf->item_size * (size_t)slots;
    int64_t shape[RLX_MAX_AXES + 1] = {slots};
    memcpy(shape + 1, leaf->shape, (size_t)leaf->axes * sizeof *shape);
    put_array(to, 2, leaf->dtype, shape, leaf->axes + 1, data, size);
    put_text(to, 1, leaf->name);
    put_length(to, field, last);
}

/* Writes a map of arrays: those of `data`, or the leaves' own. */
static void put_leaves(writer *to, int field, const rlx_leaf *leaf, int count, int slots,
                       const void *const *data) {
    for (int i = count; i-- > 0;)
        put_leaf(to, field, &leaf[i], slots, data ? data[i] : leaf[i].data);
}

/* Writes entries of a map: the leaf's name -> Space. */
static void put_spaces(writer *to, int field, const rlx_leaf *leaf, int count) {
    for (leaf += count - 1; count-- > 0; leaf--) {
        size_t last = to->size, size = leaf->count * leaf->item_size;
        const void *bounds[] = {leaf->low, leaf->high};
        put_number(to, 7, (uint64_t)leaf->start);
        if (leaf->n) put_list(to, 6, leaf->n, leaf->count);
        for (int i = 1; i >= 0; i--)
            if (bounds[i])
                put_array(to, 4 + i, leaf->dtype, leaf->shape, leaf->axes, bounds[i], size);
        put_list(to, 3, leaf->shape, (size_t)leaf->axes);
        put_text(to, 2, leaf->dtype);
        put_number(to, 1, leaf->kind);
        put_length(to, 2, last);
        put_text(to, 1, leaf->name);
        put_length(to, field, last);
    }
}

/* Writes a hello that asks for features: names, the last one first, and NULL. */
static void put_hello(const rlx_client *client, writer *to, const void *features) {
    for (const char *const *name = features; *name; name++) put_text(to, 8, *name);
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
    const int64_t shape[] = {slots};
    if (step->sends_finals) put_leaves(to, 6, client->observations, count, slots, step->finals);
    if (step->success) put_array(to, 5, "int8", shape, 1, step->success, (size_t)slots);
    if (step->rewards) {
        put_array(to, 4, "bool", shape, 1, step->truncated, (size_t)slots);
        put_array(to, 3, "bool", shape, 1, step->terminated, (size_t)slots);
        put_array(to, 2, "float64", shape, 1, step->rewards, 8 * (size_t)slots);
    }
    if (step->observes) put_leaves(to, 1, client->observations, count, slots, NULL);
    put_length(to, 2, 0);
}

/* Reading. */

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
            fits &= axes <= (size_t)leaf->axes && length == (axes ? leaf->shape[axes - 1] : slots);
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

/* Messages. */

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

/* Waits for one message, which stays valid until the next one is awaited. RLX_LATE: none came
 * before the deadline; 0: no answer within `timeout_sec` is a loss. */
static rlx_status receive(rlx_client *client, uint64_t wanted, double deadline, bytes *out) {
    for (uint64_t kind = 0; kind != wanted;) {
        bytes content, in;
        if (deadline > 0 && now() > deadline) return RLX_LATE;
        client->wire.deadline = deadline > 0 ? deadline : now() + client->timeout_sec;
        int error = receive_frame(&client->wire, &in);
        if (error == EAGAIN && deadline > 0) return RLX_LATE;
        if (error == EMSGSIZE) return distrust(client, "a message longer than any answer");
        if (error) return lose(client, error);
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

static rlx_status send_message(rlx_client *client, putter *put, const void *what) {
    writer count = {0};
    put(client, &count, what);
    bool fits = count.size <= client->max_message_bytes;
    writer to = fits ? begin_frame(&client->wire, count.size) : count;
    if (!to.end)
        return fail(client, RLX_INVALID, "a message of %zu bytes, but %s reads at most %zu; "
                    "use smaller arrays, or raise its relaax-rlx-server.max_message_bytes",
                    count.size, client->address, client->max_message_bytes);
    put(client, &to, what);
    client->wire.deadline = now() + client->timeout_sec;
    int error = send_frame(&client->wire, &to);
    rlx_status status = error == EAGAIN ? lose(client, error) : RLX_OK;
    /* The server says why before it closes; that is worth more than "broken pipe". */
    for (bytes last; error && !status;) status = receive(client, ACTIONS, 0, &last);
    return status;
}

static rlx_status open_connection(rlx_client *client, char host[256]) {
    char port[6] = "7001";
    const char *form = *client->address == '[' ? "[%255[^]]]%n:%5[0-9]%n" : "%255[^:]%n:%5[0-9]%n";
    int used = 0;
    sscanf(client->address, form, host, &used, port, &used);
    if (!used || client->address[used] || atol(port) < 1 || atol(port) > 65535)
        return fail(client, RLX_INVALID, "address '%.100s': expected HOST:PORT with a port of 1 to "
                    "65535, for example localhost:7001", client->address);
    const char *problem = open_wire(&client->wire, host, port, client->connect_timeout_sec);
    return !problem ? RLX_OK : fail(client, RLX_UNAVAILABLE, "rlx server %s: cannot connect (%s); "
        "is the address correct, and is the server running?", client->address, problem);
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
    client->wire.input = malloc(client->wire.input_size = input_size);
    if (client->wire.input) return RLX_OK;
    return fail(client, RLX_INVALID, "not enough memory for the arrays of all leaves");
}

/* Exchanges the hello; gives the server's answer. */
static rlx_status greet(rlx_client *client, putter *put, const void *features, bytes *ready) {
    bytes in, content;
    client->max_message_bytes = MAX_MESSAGE_BYTES;
    rlx_status status = send_message(client, put, features);
    if (!status) status = receive(client, READY, 0, ready);
    if (status) return status;
    in = *ready;
    for (uint64_t key; (key = read_field(&in, &content));)
        if (key == KEY(3, VARINT)) client->max_message_bytes = (size_t)read_varint(&content);
    return in.bad ? distrust(client, "an invalid message") : RLX_OK;
}

/* Whether a step can be sent now. */
static rlx_status check(rlx_client *client, const rlx_step *step) {
    if (client->finished) return RLX_FINISHED;
    if (client->wire.socket < 0)
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

/* What the header promises. */

void rlx_init(rlx_client *client, const char *address, const char *name, rlx_leaf *observations,
              int num_observations, rlx_leaf *actions, int num_actions) {
    *client = (rlx_client){
        .wire = {.socket = -1, .move = move_plain}, .address = address, .name = name,
        .observations = observations, .num_observations = num_observations, .actions = actions,
        .num_actions = num_actions, .slots = 1, .timeout_sec = 60, .connect_timeout_sec = 10,
    };
}

rlx_status rlx_connect(rlx_client *client) {
    static const char *const features[] = {"hello_ping", NULL};
    char host[256];
    bytes ready;
    rlx_status status = prepare(client);
    if (!status) status = open_connection(client, host);
    return status ? status : greet(client, put_hello, features, &ready);
}

rlx_status rlx_exchange(rlx_client *client, const rlx_step *step) {
    bytes in;
    if (client->exchange) return client->exchange(client, step);
    rlx_status status = check(client, step);
    if (!status) status = send_message(client, put_step, step);
    if (!status) status = receive(client, ACTIONS, 0, &in);
    return status ? status : take(client, step, in);
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

void rlx_close(rlx_client *client) {
    drop_connection(client);
    free(client->wire.output);
    free(client->wire.input);
    client->wire.output = client->wire.input = NULL;
    client->wire.input_bytes = 0;
}
