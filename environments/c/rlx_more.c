#include "rlx.c"
#include "rlx_more.h"

#ifdef RLX_TLS
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#endif

/* TLS. */

#ifdef RLX_TLS
/* OpenSSL itself would end the program by SIGPIPE when the server has closed. */
static int transfer(BIO *bio, bool sends, char *data, int size) {
    long moved = move_plain(BIO_get_data(bio), sends, (uint8_t *)data, (size_t)size);
    BIO_clear_retry_flags(bio);
    if (moved < 0 && (errno == EAGAIN || errno == EINTR))
        BIO_set_flags(bio, BIO_FLAGS_SHOULD_RETRY | (sends ? BIO_FLAGS_WRITE : BIO_FLAGS_READ));
    return (int)moved;
}

static int write_bio(BIO *bio, const char *data, int size) {
    return transfer(bio, true, (char *)(uintptr_t)data, size);
}

static int read_bio(BIO *bio, char *data, int size) { return transfer(bio, false, data, size); }

static long control_bio(BIO *bio, int command, long number, void *pointer) {
    (void)bio, (void)number, (void)pointer;
    return command == BIO_CTRL_FLUSH;
}

static long move_tls(rlx_wire *wire, bool sends, uint8_t *at, size_t size) {
    rlx_more *more = (rlx_more *)wire;
    int some = size > 1 << 20 ? 1 << 20 : (int)size;
    errno = 0;
    ERR_clear_error();
    int moved = sends ? SSL_write(more->tls, at, some) : SSL_read(more->tls, at, some);
    int error = errno, kind = SSL_get_error(more->tls, moved);
    if (moved > 0 || kind == SSL_ERROR_ZERO_RETURN) return moved > 0 ? moved : 0;
    bool waits = kind == SSL_ERROR_WANT_READ || kind == SSL_ERROR_WANT_WRITE;
    errno = waits ? EAGAIN : error ? error : EPROTO;
    return -1;
}

static void stop_tls(rlx_more *more) {
    SSL_free(more->tls);
    BIO_meth_free(more->tls_method);
    more->tls = more->tls_method = NULL;
    more->client.wire.move = move_plain;
}

static const char *find_tls_error(const rlx_more *more, char text[256]) {
    long verified = more->tls ? SSL_get_verify_result(more->tls) : X509_V_OK;
    if (verified != X509_V_OK) return X509_verify_cert_error_string(verified);
    ERR_error_string_n(ERR_peek_error(), text, 256);
    return text;
}

/* Prepares what a handshake needs; false: a file or the memory is missing. */
static bool prepare_tls(rlx_more *more, const char *host) {
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    BIO_METHOD *method = more->tls_method = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "rlx");
    bool good = context && method && SSL_CTX_load_verify_locations(context, more->tls_ca, NULL) == 1
                && BIO_meth_set_write(method, write_bio) && BIO_meth_set_read(method, read_bio)
                && BIO_meth_set_ctrl(method, control_bio)
                && SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    if (good && more->tls_cert)
        good = SSL_CTX_use_certificate_chain_file(context, more->tls_cert) == 1
               && SSL_CTX_use_PrivateKey_file(context, more->tls_key, SSL_FILETYPE_PEM) == 1;
    BIO *bio = good ? BIO_new(method) : NULL;
    more->tls = bio ? SSL_new(context) : NULL;
    SSL_CTX_free(context);
    if (!more->tls) return BIO_free(bio), false;
    BIO_set_data(bio, &more->client.wire);
    BIO_set_init(bio, 1);
    SSL_set_bio(more->tls, bio, bio);
    SSL_set_verify(more->tls, SSL_VERIFY_PEER, NULL);
    SSL_set_options(more->tls, SSL_OP_IGNORE_UNEXPECTED_EOF); /* messages have lengths */
    if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(more->tls), host) == 1) return true;
    return SSL_set1_host(more->tls, host) == 1 && SSL_set_tlsext_host_name(more->tls, host) == 1;
}

static rlx_status start_tls(rlx_more *more, const char *host) {
    rlx_client *client = &more->client;
    char text[256];
    if (!more->tls_ca) return RLX_OK;
    ERR_clear_error();
    if (!prepare_tls(more, host))
        return fail(client, RLX_INVALID, "tls_ca: '%.200s', tls_cert: '%.200s', tls_key: '%.200s': "
                    "%s; expected PEM files", more->tls_ca, more->tls_cert ? more->tls_cert : "",
                    more->tls_key ? more->tls_key : "", find_tls_error(more, text));
    client->wire.deadline = now() + client->connect_timeout_sec;
    int done = SSL_connect(more->tls), kind = SSL_get_error(more->tls, done);
    client->wire.move = move_tls;
    if (done == 1) return RLX_OK;
    if (kind == SSL_ERROR_SSL)
        return fail(client, RLX_REFUSED, "the rlx server %s: the TLS handshake failed (%s); check "
                    "tls_ca, the address, and whether the server uses TLS", client->address,
                    find_tls_error(more, text));
    return fail(client, RLX_UNAVAILABLE, "lost the rlx server %s: no TLS handshake; does it use "
                "TLS, or require tls_cert and tls_key?", client->address);
}
#else
static void stop_tls(rlx_more *more) { more->client.wire.move = move_plain; }

static rlx_status start_tls(rlx_more *more, const char *host) {
    (void)host;
    if (!more->tls_ca) return RLX_OK;
    return fail(&more->client, RLX_INVALID, "tls_ca: this program was compiled without TLS; "
                "compile rlx_more.c with -DRLX_TLS, and link it with -lssl -lcrypto");
}
#endif

/* The hello. */

static void put_hello_more(const rlx_client *client, writer *to, const void *features) {
    const rlx_more *more = (const rlx_more *)client;
    for (int i = more->games ? client->slots : 0; i-- > 0;) put_varint(to, more->games[i]);
    if (more->games) put_length(to, 12, 0);
    for (int i = more->agents ? client->slots : 0; i-- > 0;) put_text(to, 11, more->agents[i]);
    for (int i = more->num_versions; i-- > 0;) {
        size_t last = to->size;
        put_text(to, 2, more->versions[i].value);
        put_text(to, 1, more->versions[i].name);
        put_length(to, 10, last);
    }
    put_number(to, 9, (uint64_t)more->max_wait_ms);
    put_hello(client, to, features);
}

/* A feature, whether to ask for it, and the setting that is refused where the server lacks it. */
typedef struct { const char *name; bool wanted; const char *setting; } feature;
enum { NUM_FEATURES = 11 };

static void list_features(const rlx_more *more, feature features[NUM_FEATURES]) {
    bool limited = more->max_wait_ms > 0;
    const feature all[NUM_FEATURES] = { /* sorted */
        {"agents", more->agents || more->games, "agents and games"},
        {"executed", true, NULL},
        {"hello_ping", true, NULL},
        {"masks", more->masks || more->final_masks, "masks"},
        {"max_wait", limited, "max_wait_ms"},
        {"ping", true, NULL},
        {"present", true, NULL},
        {"slot_versions", more->wants_versions_by_slot, "wants_versions_by_slot"},
        {"step_id", limited, "max_wait_ms"},
        {"timings", limited, NULL},
        {"versions", more->num_versions > 0, NULL},
    };
    memcpy(features, all, sizeof all);
}

static void read_features(rlx_more *more, const feature features[NUM_FEATURES], bytes ready) {
    bytes content;
    for (uint64_t key; (key = read_field(&ready, &content));)
        for (int i = 0; key == KEY(4, BYTES) && i < NUM_FEATURES; i++)
            if (features[i].wanted && equals(content, features[i].name))
                more->features |= 1u << i;
}

bool rlx_has(const rlx_more *more, const char *name) {
    feature features[NUM_FEATURES];
    list_features(more, features);
    for (int i = 0; i < NUM_FEATURES; i++)
        if (more->features >> i & 1 && !strcmp(features[i].name, name)) return true;
    return false;
}

static rlx_status validate(rlx_more *more) {
    rlx_client *client = &more->client;
    double most = more->max_wait_ms ? 1e6 : 0;
    if (more->max_wait_ms < 0 || more->max_wait_ms > 60000)
        return fail(client, RLX_INVALID, "max_wait_ms: %d, expected 0 to 60000", more->max_wait_ms);
    if (!(more->answer_timeout_sec >= 0 && more->answer_timeout_sec <= most))
        return fail(client, RLX_INVALID, "answer_timeout_sec: %g, expected 0 to %g%s",
                    more->answer_timeout_sec, most, most > 0 ? "" : " without max_wait_ms");
    if (!(more->min_sleep_sec >= 0 && more->min_sleep_sec <= more->max_sleep_sec
          && more->max_sleep_sec <= 1e6))
        return fail(client, RLX_INVALID, "min_sleep_sec, max_sleep_sec: %g, %g, expected 0 to 1e6, "
                    "the smaller one first", more->min_sleep_sec, more->max_sleep_sec);
    if (!more->tls_cert == !more->tls_key) return RLX_OK;
    return fail(client, RLX_INVALID, "tls_cert, tls_key: one, expected both or neither");
}

/* Ends what an earlier connection left. */
static void reset(rlx_more *more) {
    stop_tls(more);
    free(more->episodes);
    free(more->versions_by_slot);
    more->episodes = NULL;
    more->versions_by_slot = NULL;
    more->executed = more->unanswered = false;
    more->step_id = more->features = 0;
}

rlx_status rlx_more_connect(rlx_more *more) {
    rlx_client *client = &more->client;
    feature features[NUM_FEATURES];
    const char *wanted[NUM_FEATURES + 1] = {NULL};
    char host[256];
    bytes ready;
    int num_wanted = 0;
    list_features(more, features);
    for (int i = NUM_FEATURES; i-- > 0;)
        if (features[i].wanted) wanted[num_wanted++] = features[i].name;
    rlx_status status = validate(more);
    if (!status) status = prepare(client);
    if (status) return status;
    reset(more);
    more->episodes = malloc((size_t)client->slots * sizeof *more->episodes);
    more->versions_by_slot = calloc((size_t)client->slots, sizeof *more->versions_by_slot);
    if (!more->episodes || !more->versions_by_slot)
        return fail(client, RLX_INVALID, "slots: %d, but not enough memory", client->slots);
    status = open_connection(client, host);
    if (!status) status = start_tls(more, host);
    if (!status) status = greet(client, put_hello_more, wanted, &ready);
    if (!status) read_features(more, features, ready);
    for (int i = 0; !status && i < NUM_FEATURES; i++)
        if (features[i].wanted && features[i].setting && !rlx_has(more, features[i].name))
            status = fail(client, RLX_INVALID, "%s: the server at %s, or its run, does not support "
                          "it; use another, or leave it unset", features[i].setting,
                          client->address);
    if (status) drop_connection(client);
    return status;
}

/* A number of [0, 1): splitmix64, Steele, Lea and Flood (2014), doi:10.1145/2660193.2660195. */
static double draw(rlx_more *more) {
    uint64_t bits = more->random += 0x9e3779b97f4a7c15u;
    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111ebu;
    return (double)((bits ^ bits >> 31) >> 11) * 0x1p-53;
}

/* Sleeps before another attempt to connect; reports why, which is `text`. */
static void pause_before_retry(rlx_more *more, double at_most_sec) {
    char line[sizeof more->client.text + 64];
    double seconds = more->min_sleep_sec + draw(more) * (more->max_sleep_sec - more->min_sleep_sec);
    if (seconds > at_most_sec) seconds = at_most_sec * (0.5 + 0.5 * draw(more));
    snprintf(line, sizeof line, "%s; retrying in %.1f s", more->client.text, seconds);
    if (more->report) more->report(line);
    struct timespec left = {.tv_sec = (time_t)seconds};
    left.tv_nsec = (long)(1e9 * (seconds - (double)left.tv_sec));
    while (nanosleep(&left, &left) < 0 && errno == EINTR) continue;
}

rlx_status rlx_connect_with_retry(rlx_more *more) {
    rlx_status status;
    for (double at_most_sec = 0.25;; at_most_sec *= 2) {
        status = rlx_more_connect(more);
        if (status != RLX_UNAVAILABLE) return status;
        pause_before_retry(more, at_most_sec);
    }
}

rlx_status rlx_reconnect(rlx_more *more) {
    char line[sizeof more->client.text];
    pause_before_retry(more, INFINITY);
    rlx_status status = rlx_connect_with_retry(more);
    snprintf(line, sizeof line, "reconnected to %s", more->client.address);
    if (!status && more->report) more->report(line);
    return status;
}

/* Steps. */

static void put_masks(writer *to, int field, const rlx_client *client, const bool *const *masks) {
    for (int i = masks ? client->num_actions : 0; i-- > 0;) {
        const rlx_leaf *leaf = &client->actions[i];
        rlx_leaf mask = {.name = leaf->name, .dtype = "bool", .axes = 1, .item_size = 1};
        for (size_t j = 0; leaf->n && j < leaf->count; j++) mask.count += (size_t)leaf->n[j];
        mask.shape[0] = (int64_t)mask.count;
        if (masks[i]) put_leaf(to, field, &mask, client->slots, masks[i]);
    }
}

static void put_step_more(const rlx_client *client, writer *to, const void *what) {
    const rlx_more *more = (const rlx_more *)client;
    const rlx_step *step = what;
    int slots = client->slots;
    const int64_t shape[] = {slots};
    if (step->sends_finals) put_masks(to, 12, client, more->final_masks);
    if (step->observes) put_masks(to, 11, client, more->masks);
    if (more->executed) {
        const bool *overridden = slots == 1 ? &more->executed : more->overridden;
        if (overridden) put_array(to, 10, "bool", shape, 1, overridden, (size_t)slots);
        put_leaves(to, 9, client->actions, client->num_actions, slots, NULL);
    }
    if (more->present) put_array(to, 8, "bool", shape, 1, more->present, (size_t)slots);
    if (more->step_id) put_raw(to, &more->step_id, 8), put_varint(to, KEY(7, FIXED64));
    put_step(client, to, what);
}

static bool read_episode(rlx_more *more, int number, bytes in) {
    rlx_episode episode = {0};
    bytes content;
    for (uint64_t key; (key = read_field(&in, &content));) {
        if (key == KEY(1, VARINT)) episode.slot = (uint32_t)read_varint(&content);
        if (key == KEY(2, FIXED64)) memcpy(&episode.score, content.at, 8);
        if (key == KEY(3, VARINT)) episode.length = read_varint(&content);
    }
    if (in.bad || number >= more->client.slots || episode.slot >= (uint32_t)more->client.slots)
        return false;
    more->episodes[number] = episode;
    return true;
}

static bool read_timings(rlx_more *more, bytes in) {
    uint32_t *const numbers[] = {&more->queue_us, &more->prediction_us, &more->total_us};
    bytes content;
    for (uint64_t key; (key = read_field(&in, &content));)
        if ((key & 7) == FIXED32 && key >> 3 <= 3) memcpy(numbers[(key >> 3) - 1], content.at, 4);
    return !in.bad;
}

/* Reads what `take` does not. */
static bool read_more(rlx_more *more, bytes in, uint64_t *step_id, bool *finished) {
    bytes content;
    int episodes = 0, slot = 0;
    bool good = true;
    *step_id = *finished = 0;
    for (uint64_t key; (key = read_field(&in, &content));) {
        if (key == KEY(2, BYTES)) good &= read_episode(more, episodes++, content);
        if (key == KEY(3, BYTES)) *finished = content.size > 0;
        if (key == KEY(4, VARINT)) more->version = read_varint(&content);
        if (key == KEY(5, FIXED64)) memcpy(step_id, content.at, 8);
        if (key == KEY(6, BYTES)) good &= read_timings(more, content);
        bool versions = key == KEY(7, FIXED64) || key == KEY(7, BYTES);
        while (versions && content.size >= 8 && slot < more->client.slots)
            memcpy(&more->versions_by_slot[slot++], split(&content, 8).at, 8);
    }
    return good && !in.bad;
}

/* Waits for the answer to the newest step; answers to earlier ones are dropped. */
static rlx_status receive_answer(rlx_more *more, bytes *in) {
    rlx_client *client = &more->client;
    double soft = more->answer_timeout_sec, deadline = soft > 0 ? now() + soft : 0;
    for (;;) {
        uint64_t step_id;
        bool finished;
        rlx_status status = receive(client, ACTIONS, deadline, in);
        if (status) return status;
        if (!read_more(more, *in, &step_id, &finished))
            return distrust(client, "an invalid message");
        if (finished || step_id == more->step_id) return RLX_OK;
        if (!step_id || step_id > more->step_id)
            return distrust(client, "an answer to a step that was not sent");
        more->late_answers++;
    }
}

static rlx_status fail_late(rlx_more *more, const rlx_step *step) {
    rlx_client *client = &more->client;
    bool absent = more->present != NULL;
    for (int i = 0; more->present && i < client->slots; i++) absent &= !more->present[i];
    client->reward_due = step->observes;
    more->unanswered = step->observes && !absent;
    return fail(client, RLX_LATE, "%s: no answer to step %llu within %g s; %s", client->address,
                (unsigned long long)more->step_id, more->answer_timeout_sec,
                !step->observes ? "begin the next episode with rlx_act"
                : absent ? "call the next verb"
                : rlx_has(more, "executed")
                    ? "do what is safe and report it with rlx_executed"
                    : "do what is safe, call rlx_reconnect and begin a new episode");
}

static rlx_status exchange_more(rlx_client *client, const rlx_step *step) {
    rlx_more *more = (rlx_more *)client;
    bytes in;
    rlx_status status = check(client, step);
    if (status) return status;
    if (more->unanswered && !more->executed)
        return fail(client, RLX_INVALID, "the last step was not answered in time; %s",
                    rlx_has(more, "executed") ? "report what was carried out with rlx_executed"
                                                : "call rlx_reconnect and begin a new episode");
    if ((more->masks || more->final_masks) && !rlx_has(more, "masks"))
        return fail(client, RLX_INVALID, "masks: not set before connecting; set them, and connect");
    if (more->present && !rlx_has(more, "present"))
        return fail(client, RLX_INVALID, "present, rlx_reward_and_skip: the agents of the server "
                    "at %s cannot use it; do not use it", client->address);
    more->step_id += more->max_wait_ms > 0;
    status = send_message(client, put_step_more, step);
    if (status == RLX_INVALID) return status;
    more->executed = more->unanswered = false;
    if (!status) status = receive_answer(more, &in);
    if (status == RLX_LATE) return fail_late(more, step);
    return status ? status : take(client, step, in);
}

rlx_status rlx_executed(rlx_more *more) {
    rlx_client *client = &more->client;
    if (!client->reward_due)
        return fail(client, RLX_INVALID, "rlx_executed: there is no action that it could replace; "
                    "call it after a verb that requested one");
    if (!rlx_has(more, "executed"))
        return fail(client, RLX_INVALID, "rlx_executed: the agents of the server at %s cannot use "
                    "it; %s", client->address,
                    more->unanswered ? "call rlx_reconnect and begin a new episode"
                                     : "do not call it");
    for (int i = 0; i < client->num_actions; i++)
        for (size_t j = client->actions[i].count * (size_t)client->slots; j-- > 0;)
            if (!settle(&client->actions[i], j))
                return fail(client, RLX_INVALID, "rlx_executed: %g is not in the space '%.200s'",
                            get_number(&client->actions[i], client->actions[i].data, j),
                            client->actions[i].name);
    more->executed = true;
    return RLX_OK;
}

rlx_status rlx_reward_and_skip(rlx_more *more, double reward) {
    const bool none[1] = {false}, *present = more->present;
    more->present = none;
    rlx_status status = rlx_reward_and_act(&more->client, reward);
    more->present = present;
    return status;
}

typedef struct { const char *curve; double y, x; } point;

static void put_point(const rlx_client *client, writer *to, const void *what) {
    const point *told = what;
    (void)client;
    if (!isnan(told->x)) put_raw(to, &told->x, 8), put_varint(to, KEY(3, FIXED64));
    put_raw(to, &told->y, 8), put_varint(to, KEY(2, FIXED64));
    put_text(to, 1, told->curve);
    put_length(to, 1, 0);
    put_length(to, 3, 0);
}

rlx_status rlx_send_point(rlx_more *more, const char *curve, double y, double x) {
    if (more->client.wire.socket < 0) return RLX_OK;
    return send_message(&more->client, put_point, &(point){curve, y, x});
}

static void put_ping(const rlx_client *client, writer *to, const void *nothing) {
    (void)client, (void)nothing;
    put_length(to, PING, 0);
}

rlx_status rlx_ping(rlx_more *more) {
    if (more->client.wire.socket < 0 || !rlx_has(more, "ping")) return RLX_OK;
    return send_message(&more->client, put_ping, NULL);
}

static void print_line(const char *line) { puts(line), fflush(stdout); }

void rlx_more_init(rlx_more *more, const char *address, const char *name, rlx_leaf *observations,
                   int num_observations, rlx_leaf *actions, int num_actions) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    *more = (rlx_more){.min_sleep_sec = 1, .max_sleep_sec = 10, .report = print_line};
    rlx_init(&more->client, address, name, observations, num_observations, actions, num_actions);
    more->client.exchange = exchange_more;
    more->random = (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec
                   + ((uint64_t)getpid() << 40);
}

void rlx_more_close(rlx_more *more) {
    rlx_close(&more->client);
    reset(more);
}
