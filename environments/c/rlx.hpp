/* A client of an rlx server in C++17: a header over rlx_more.c, which is compiled as C and linked.
 *
 *     rlx::Client client("localhost:7001", "my_game", {rlx::box<float>("observation", {4})},
 *                        {rlx::discrete("action", 2)});
 *     client.connect();
 *     std::array<float, 4> state = reset();
 *     while (client.act(state)) {                      // false: the training has ended
 *         auto choice = client.action<std::int64_t>();
 *         ...
 *         client.reward_and_reset(reward);
 *     }
 *
 * What rlx.h and rlx_more.h say of the verbs holds here, too. A status other than RLX_OK and
 * RLX_FINISHED is an exception. Values are copied: containers are anything with std::data and
 * std::size whose numbers have the dtype of the leaf. Not thread-safe.
 */
#ifndef RLX_HPP
#define RLX_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

extern "C" {
#include "rlx_more.h"
}

namespace rlx {

/* What went wrong.
 *
 * code: of the server's Error; RLX_NO_CODE: the server sent no Error.
 * field: the field that was wrong; can be empty. */
struct Error : std::runtime_error {
    Error(const std::string& text, std::uint64_t error_code = RLX_NO_CODE, std::string where = "")
        : std::runtime_error(text), code(error_code), field(std::move(where)) {}
    std::uint64_t code;
    std::string field;
};

/* The server was lost, or asked to retry later: call reconnect and begin a new episode. */
struct Unavailable : Error { using Error::Error; };
/* The server refused, or sent what the protocol does not allow. */
struct Refused : Error { using Error::Error; };
/* An invalid setting or argument, a verb at the wrong time, or what the server does not support. */
struct Invalid : Error { using Error::Error; };
/* No answer within `answer_timeout_sec`; the session continues. */
struct Late : Error { using Error::Error; };

/* Returns the name of a type of numbers. */
template <class T>
constexpr const char* dtype() {
    static_assert(std::is_arithmetic_v<T> && sizeof(T) <= 8, "numbers of at most 8 bytes");
    constexpr int size = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    constexpr const char* signed_[] = {"int8", "int16", "int32", "int64"};
    constexpr const char* unsigned_[] = {"uint8", "uint16", "uint32", "uint64"};
    if constexpr (std::is_same_v<T, bool>) return "bool";
    else if constexpr (std::is_floating_point_v<T>) return size == 2 ? "float32" : "float64";
    else return std::is_signed_v<T> ? signed_[size] : unsigned_[size];
}

/* One leaf of an observation or action space. */
struct Leaf {
    std::string name;
    rlx_kind kind;
    const char* dtype;
    std::size_t item_size;
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> n = {};          /* DISCRETE and MULTI_DISCRETE */
    std::int64_t start = 0;                    /* DISCRETE: the first choice */
    std::vector<unsigned char> low = {}, high = {}; /* BOX: the bytes of the bounds */
};

/* Numbers of type T; `low` and `high` are empty, or have a number for each component. */
template <class T>
Leaf box(std::string name, std::vector<std::int64_t> shape, const std::vector<T>& low = {},
         const std::vector<T>& high = {}) {
    Leaf leaf{std::move(name), RLX_BOX, dtype<T>(), sizeof(T), std::move(shape)};
    std::size_t count = 1;
    for (std::int64_t length : leaf.shape) count *= static_cast<std::size_t>(length);
    for (auto [from, to] : {std::pair{&low, &leaf.low}, std::pair{&high, &leaf.high}}) {
        if (!from->empty() && from->size() != count)
            throw Invalid(leaf.name + ": " + std::to_string(from->size()) +
                          " bounds, expected 0 or " + std::to_string(count));
        to->resize(from->size() * sizeof(T));
        if (!from->empty()) std::memcpy(to->data(), from->data(), to->size());
    }
    return leaf;
}

/* One of n integers from `start`. */
template <class T = std::int64_t>
Leaf discrete(std::string name, std::int64_t n, std::int64_t start = 0) {
    return {std::move(name), RLX_DISCRETE, dtype<T>(), sizeof(T), {}, {n}, start};
}

/* Several integers; component i is one of 0 to n[i] - 1. */
template <class T = std::int64_t>
Leaf multi_discrete(std::string name, std::vector<std::int64_t> n) {
    std::vector<std::int64_t> shape = {static_cast<std::int64_t>(n.size())};
    return {std::move(name), RLX_MULTI_DISCRETE, dtype<T>(), sizeof(T), shape, std::move(n)};
}

/* Zeros and ones. */
template <class T = std::int8_t>
Leaf multi_binary(std::string name, std::vector<std::int64_t> shape) {
    return {std::move(name), RLX_MULTI_BINARY, dtype<T>(), sizeof(T), std::move(shape)};
}

/* The settings of rlx.h and rlx_more.h; see there. */
struct Options {
    int slots = 1;
    bool exploit = false, sends_finals = false, wants_versions_by_slot = false;
    std::string token, tls_ca, tls_cert, tls_key; /* empty: not set */
    double timeout_sec = 60, connect_timeout_sec = 10, min_sleep_sec = 1, max_sleep_sec = 10;
    int max_wait_ms = 0;
    double answer_timeout_sec = 0;
    std::vector<std::pair<std::string, std::string>> versions; /* package, version */
    std::vector<std::string> agents;                           /* one name for each slot */
    std::vector<std::uint32_t> games;                          /* one number for each slot */
    bool masks = false; /* of action leaves with n, see set_mask; only for runs that have them */
    void (*report)(const char* line) = nullptr; /* nullptr: prints the lines */
};

/* What happened in all slots; see rlx_step. */
struct Outcome {
    std::vector<double> rewards;
    std::vector<bool> terminated, truncated;
    std::vector<std::int8_t> success; /* empty: not known */
    bool observes = true;             /* false: every slot ended, and no new episode has begun */
    bool finals = false;              /* the final observations are set */
};

/* Whether an ended episode was a success. */
enum class Success { unknown = -1, no = 0, yes = 1 };

class Client {
   public:
    Client(std::string address, std::string name, std::vector<Leaf> observations,
           std::vector<Leaf> actions, Options options = {})
        : address_(std::move(address)), name_(std::move(name)), options_(std::move(options)),
          observations_(std::move(observations), options_.slots),
          finals_(observations_.spaces, options_.slots),
          actions_(std::move(actions), options_.slots),
          masks_(make_masks(), options_.slots), final_masks_(masks_.spaces, options_.slots) {
        rlx_more_init(&more_, address_.c_str(), name_.c_str(), observations_.leaves.data(),
                      observations_.size(), actions_.leaves.data(), actions_.size());
        apply();
    }
    ~Client() { rlx_more_close(&more_); }
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;

    /* Connects; `connect` retries while the server is unavailable, and `reconnect` first pauses. */
    void connect_once() { check(rlx_more_connect(&more_)); }
    void connect() { check(rlx_connect_with_retry(&more_)); }
    void reconnect() { check(rlx_reconnect(&more_)); }

    /* Sets the observation of a slot, or the last one of the episode that has just ended. */
    template <class Values>
    void set(const std::string& leaf, const Values& values, int slot = 0) {
        observations_.set(leaf, values, slot);
    }
    template <class Values>
    void set_final(const std::string& leaf, const Values& values, int slot = 0) {
        finals_.set(leaf, values, slot);
    }

    /* Returns the action of a slot, of the only leaf if no name is given. */
    template <class T>
    std::vector<T> actions(const std::string& leaf = "", int slot = 0) const {
        return actions_.get<T>(leaf, slot);
    }
    template <class T>
    T action(const std::string& leaf = "", int slot = 0) const {
        std::vector<T> values = actions_.get<T>(leaf, slot);
        if (values.size() == 1) return values[0];
        throw Invalid(leaf + ": an action of " + std::to_string(values.size()) +
                      " numbers, expected 1; call actions");
    }

    /* The verbs. They return false when the training has ended, and `text` says what ended it. */
    bool act() { return check(rlx_act(core())); }
    bool reward_and_act(double reward) { return check(rlx_reward_and_act(core(), reward)); }
    bool reward_and_reset(double reward, Success success = Success::unknown) {
        return check(rlx_reward_and_reset(core(), reward, static_cast<int>(success)));
    }
    bool reward_and_truncate(double reward, Success success = Success::unknown) {
        return check(rlx_reward_and_truncate(core(), reward, static_cast<int>(success)));
    }
    bool reward_and_skip(double reward) { return check(rlx_reward_and_skip(&more_, reward)); }

    /* The same for a space of one leaf, whose observation is given. */
    template <class Values>
    bool act(const Values& observation) { return set("", observation), act(); }
    template <class Values>
    bool reward_and_act(double reward, const Values& observation) {
        return set("", observation), reward_and_act(reward);
    }
    template <class Values, class = decltype(std::size(std::declval<const Values&>()))>
    bool reward_and_truncate(double reward, const Values& final_observation,
                             Success success = Success::unknown) {
        return set("", final_observation), reward_and_truncate(reward, success);
    }

    /* Sends what happened in all slots, after `act` has begun; see rlx_exchange. */
    bool exchange(const Outcome& outcome) {
        std::size_t slots = static_cast<std::size_t>(options_.slots);
        require("rewards", outcome.rewards.size(), slots);
        if (!outcome.success.empty()) require("success", outcome.success.size(), slots);
        Flags terminated = copy("terminated", outcome.terminated);
        Flags truncated = copy("truncated", outcome.truncated);
        rlx_step step{};
        step.rewards = outcome.rewards.data();
        step.terminated = terminated.get();
        step.truncated = truncated.get();
        step.success = outcome.success.empty() ? nullptr : outcome.success.data();
        step.observes = outcome.observes;
        step.sends_finals = outcome.finals;
        step.finals = finals_.pointers.data();
        return check(rlx_exchange(core(), &step));
    }

    /* Reports what was carried out instead of the last actions, with the next verb. */
    template <class Values>
    void executed(const Values& action, const std::string& leaf = "", int slot = 0) {
        actions_.set(leaf, action, slot);
        check(rlx_executed(&more_));
    }
    /* Slots whose actions something else than the policy decided, or that take part; empty: see
     * rlx_more.h. They hold until they are set again. */
    void set_overridden(const std::vector<bool>& slots) {
        overridden_ = slots.empty() ? nullptr : copy("overridden", slots);
        more_.overridden = overridden_.get();
    }
    void set_present(const std::vector<bool>& slots) {
        present_ = slots.empty() ? nullptr : copy("present", slots);
        more_.present = present_.get();
    }
    /* Sets the choices of an action leaf that are legal in a slot, with Options.masks: at the
     * observation, or at the last one of an ended episode. At first all are. */
    void set_mask(const std::string& leaf, const std::vector<bool>& legal, int slot = 0) {
        masks_.set_flags(leaf, legal, slot);
    }
    void set_final_mask(const std::string& leaf, const std::vector<bool>& legal, int slot = 0) {
        final_masks_.set_flags(leaf, legal, slot);
    }

    /* Reports that the environment is alive. */
    void ping() { check(rlx_ping(&more_)); }
    /* Sends a point of a curve; without x, at the newest global_t. */
    void point(const std::string& curve, double y,
               double x = std::numeric_limits<double>::quiet_NaN()) {
        check(rlx_send_point(&more_, curve.c_str(), y, x));
    }
    void close() { rlx_more_close(&more_); }

    bool has(const char* feature) const { return rlx_has(&more_, feature); }
    bool finished() const { return more_.client.finished; }
    std::string text() const { return more_.client.text; }
    double score() const { return more_.client.score; }
    /* Episodes that the newest step ended, and the other results of rlx_more.h. */
    std::vector<rlx_episode> episodes() const {
        return {more_.episodes, more_.episodes + more_.client.num_episodes};
    }
    const rlx_more& raw() const { return more_; }

   private:
    using Flags = std::unique_ptr<bool[]>;

    /* The leaves of a space, their values of all slots, and the same as C has it. */
    struct Arrays {
        Arrays(std::vector<Leaf> of, int slots)
            : spaces(std::move(of)), bytes(spaces.size()), leaves(spaces.size()), num_slots(slots) {
            if (slots < 1) throw Invalid("slots: expected 1 or more");
            for (std::size_t i = 0; i < spaces.size(); i++) {
                const Leaf& space = spaces[i];
                rlx_leaf& leaf = leaves[i];
                leaf.name = space.name.c_str();
                leaf.kind = space.kind;
                leaf.dtype = space.dtype;
                leaf.axes = static_cast<int>(space.shape.size());
                if (leaf.axes > RLX_MAX_AXES) throw Invalid(space.name + ": too many axes");
                std::copy(space.shape.begin(), space.shape.end(), leaf.shape);
                leaf.low = space.low.empty() ? nullptr : space.low.data();
                leaf.high = space.high.empty() ? nullptr : space.high.data();
                leaf.n = space.n.empty() ? nullptr : space.n.data();
                leaf.start = space.start;
                leaf.item_size = space.item_size;
                leaf.count = 1;
                for (std::int64_t length : space.shape) {
                    if (length < 0) throw Invalid(space.name + ": a negative length of an axis");
                    leaf.count *= static_cast<std::size_t>(length);
                }
                std::size_t numbers = leaf.kind == RLX_DISCRETE ? 1
                                      : leaf.kind == RLX_MULTI_DISCRETE ? leaf.count : 0;
                require((space.name + ": n").c_str(), space.n.size(), numbers);
                bytes[i].resize(leaf.count * leaf.item_size * static_cast<std::size_t>(slots) + 1);
                leaf.data = bytes[i].data();
                pointers.push_back(leaf.data);
            }
        }
        int size() const { return static_cast<int>(leaves.size()); }

        /* Returns where the values of a slot begin. */
        unsigned char* find(const std::string& name, const char* type, int slot,
                            std::size_t* count) const {
            if (slot < 0 || slot >= num_slots)
                throw Invalid("slot " + std::to_string(slot) + ", expected 0 to " +
                              std::to_string(num_slots - 1));
            for (const rlx_leaf& leaf : leaves) {
                if (name.empty() ? leaves.size() > 1 : name != leaf.name) continue;
                if (std::strcmp(type, leaf.dtype))
                    throw Invalid(name + ": " + type + ", expected " + leaf.dtype);
                *count = leaf.count;
                return static_cast<unsigned char*>(leaf.data) +
                       leaf.count * leaf.item_size * static_cast<std::size_t>(slot);
            }
            throw Invalid("leaf '" + name + "': not found; name one of the space");
        }
        template <class Values>
        void set(const std::string& name, const Values& values, int slot) {
            using T = std::remove_cv_t<std::remove_reference_t<decltype(*std::data(values))>>;
            std::size_t count = 0;
            unsigned char* at = find(name, dtype<T>(), slot, &count);
            require(name.c_str(), std::size(values), count);
            std::memcpy(at, std::data(values), count * sizeof(T));
        }
        void set_flags(const std::string& name, const std::vector<bool>& values, int slot) {
            std::size_t count = 0;
            unsigned char* at = find(name, "bool", slot, &count);
            require(name.c_str(), values.size(), count);
            std::copy(values.begin(), values.end(), at);
        }
        template <class T>
        std::vector<T> get(const std::string& name, int slot) const {
            std::size_t count = 0;
            const unsigned char* at = find(name, dtype<T>(), slot, &count);
            std::vector<T> values(count);
            for (std::size_t i = 0; i < count; i++) {
                T value;
                std::memcpy(&value, at + i * sizeof(T), sizeof(T));
                values[i] = value;
            }
            return values;
        }

        std::vector<Leaf> spaces;
        std::vector<std::vector<unsigned char>> bytes;
        std::vector<rlx_leaf> leaves;
        std::vector<const void*> pointers;
        int num_slots;
    };

    static void require(const char* what, std::size_t size, std::size_t expected) {
        if (size != expected)
            throw Invalid(std::string(what) + ": " + std::to_string(size) + " values, expected " +
                          std::to_string(expected));
    }
    rlx_client* core() { return &more_.client; }

    bool check(rlx_status status) const {
        const rlx_client& client = more_.client;
        if (status == RLX_UNAVAILABLE) throw Unavailable(client.text, client.code, client.field);
        if (status == RLX_REFUSED) throw Refused(client.text, client.code, client.field);
        if (status == RLX_INVALID) throw Invalid(client.text, client.code, client.field);
        if (status == RLX_LATE) throw Late(client.text, client.code, client.field);
        return status == RLX_OK;
    }

    Flags copy(const char* what, const std::vector<bool>& flags) const {
        require(what, flags.size(), static_cast<std::size_t>(options_.slots));
        Flags copied(new bool[flags.size()]);
        std::copy(flags.begin(), flags.end(), copied.get());
        return copied;
    }

    std::vector<Leaf> make_masks() const {
        std::vector<Leaf> masks;
        for (const Leaf& leaf : actions_.spaces) {
            std::int64_t n = 0;
            for (std::int64_t values : leaf.n) n += options_.masks ? values : 0;
            masks.push_back({leaf.name, RLX_MULTI_BINARY, "bool", 1, {n}});
        }
        return masks;
    }

    /* Passes the settings on. */
    void apply() {
        auto text = [](const std::string& from) { return from.empty() ? nullptr : from.c_str(); };
        rlx_client& client = more_.client;
        client.slots = options_.slots;
        client.exploit = options_.exploit;
        client.sends_finals = options_.sends_finals;
        client.token = text(options_.token);
        client.timeout_sec = options_.timeout_sec;
        client.connect_timeout_sec = options_.connect_timeout_sec;
        more_.tls_ca = text(options_.tls_ca);
        more_.tls_cert = text(options_.tls_cert);
        more_.tls_key = text(options_.tls_key);
        more_.min_sleep_sec = options_.min_sleep_sec;
        more_.max_sleep_sec = options_.max_sleep_sec;
        more_.max_wait_ms = options_.max_wait_ms;
        more_.answer_timeout_sec = options_.answer_timeout_sec;
        more_.wants_versions_by_slot = options_.wants_versions_by_slot;
        if (options_.report) more_.report = options_.report;
        for (const auto& [package, version] : options_.versions)
            versions_.push_back({package.c_str(), version.c_str()});
        more_.versions = versions_.data();
        more_.num_versions = static_cast<int>(versions_.size());
        std::size_t slots = static_cast<std::size_t>(options_.slots);
        if (!options_.agents.empty()) require("agents", options_.agents.size(), slots);
        for (const std::string& agent : options_.agents) agents_.push_back(agent.c_str());
        more_.agents = agents_.empty() ? nullptr : agents_.data();
        if (!options_.games.empty()) require("games", options_.games.size(), slots);
        more_.games = options_.games.empty() ? nullptr : options_.games.data();
        for (Arrays* from : {&masks_, &final_masks_})
            for (std::size_t i = 0; i < from->leaves.size(); i++) {
                std::fill(from->bytes[i].begin(), from->bytes[i].end(), std::uint8_t{1});
                const void* flags = from->leaves[i].count ? from->pointers[i] : nullptr;
                auto& list = from == &masks_ ? allowed_ : final_allowed_;
                list.push_back(static_cast<const bool*>(flags));
            }
        more_.masks = options_.masks ? allowed_.data() : nullptr;
        more_.final_masks = options_.masks ? final_allowed_.data() : nullptr;
    }

    std::string address_, name_;
    Options options_;
    Arrays observations_, finals_, actions_, masks_, final_masks_;
    std::vector<rlx_pair> versions_;
    std::vector<const char*> agents_;
    std::vector<const bool*> allowed_, final_allowed_;
    Flags present_, overridden_;
    rlx_more more_;
};

}  // namespace rlx

#endif
