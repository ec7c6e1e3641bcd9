/* Makes the calls of a test with the client in C++; see support/drivers.py, which spells them.
 *
 *     driver ADDRESS [CA]      calls come as words on standard input
 */
#include "rlx.hpp"

#include <iostream>
#include <sstream>

namespace {

using Numbers = std::vector<double>;

struct Space {
    std::string name;
    int kind;
    std::string dtype;
    std::vector<std::int64_t> shape, n;
    std::int64_t start;
    Numbers low, high;
};

std::unique_ptr<rlx::Client> client;
std::vector<Space> observations, actions;
int slots;

template <class T>
T read() {
    T value;
    std::cin >> value;
    return value;
}

template <class T>
std::vector<T> read_list(std::size_t count) {
    std::vector<T> list(count);
    for (T& value : list) std::cin >> value;
    return list;
}

Space read_space() {
    Space space{read<std::string>(), read<int>(), read<std::string>(), {}, {}, 0, {}, {}};
    space.shape = read_list<std::int64_t>(read<std::size_t>());
    space.n = read_list<std::int64_t>(read<std::size_t>());
    space.start = read<std::int64_t>();
    space.low = read_list<double>(read<std::size_t>());
    space.high = read_list<double>(read<std::size_t>());
    return space;
}

std::size_t count(const Space& space) {
    std::size_t numbers = 1;
    for (std::int64_t length : space.shape) numbers *= static_cast<std::size_t>(length);
    return numbers;
}

/* Calls a function with a number of the space's type. */
template <class Call>
auto with_type(const Space& space, Call call) {
    if (space.dtype == "float32") return call(float{});
    if (space.dtype == "float64") return call(double{});
    if (space.dtype == "int8") return call(std::int8_t{});
    if (space.dtype == "uint8") return call(std::uint8_t{});
    return call(std::int64_t{});
}

template <class T>
std::vector<T> convert(const Numbers& numbers) {
    std::vector<T> converted;
    for (double number : numbers) converted.push_back(static_cast<T>(number));
    return converted;
}

rlx::Leaf make_leaf(const Space& space) {
    return with_type(space, [&](auto type) {
        using T = decltype(type);
        if (space.kind == RLX_DISCRETE)
            return rlx::discrete<T>(space.name, space.n[0], space.start);
        if (space.kind == RLX_MULTI_DISCRETE) return rlx::multi_discrete<T>(space.name, space.n);
        if (space.kind == RLX_MULTI_BINARY) return rlx::multi_binary<T>(space.name, space.shape);
        return rlx::box<T>(space.name, space.shape, convert<T>(space.low),
                           convert<T>(space.high));
    });
}

/* Reads the values of all slots of a leaf, and passes those of each to a function. */
template <class Call>
void read_leaf(const std::vector<Space>& spaces, Call call) {
    std::string name = read<std::string>();
    for (const Space& space : spaces) {
        if (space.name != name) continue;
        for (int slot = 0; slot < slots; slot++) {
            Numbers numbers = read_list<double>(count(space));
            with_type(space, [&](auto type) {
                call(name, convert<decltype(type)>(numbers), slot);
            });
        }
    }
}

std::vector<bool> read_flags() {
    std::vector<bool> flags;
    for (int number : read_list<int>(static_cast<std::size_t>(slots)))
        flags.push_back(number != 0);
    return flags;
}

void print_leaf(const Space& space) {
    std::string comma = "";
    std::cout << '"' << space.name << "\":[";
    for (int slot = 0; slot < slots; slot++)
        with_type(space, [&](auto type) {
            for (auto value : client->actions<decltype(type)>(space.name, slot)) {
                std::cout << comma << +value;
                comma = ",";
            }
        });
    std::cout << "]";
}

void print_answer(bool learns, bool observes) {
    std::cout << "{\"version\":" << client->raw().version << ",\"episodes\":[";
    std::string comma = "";
    for (const rlx_episode& one : client->episodes()) {
        std::cout << comma << "{\"slot\":" << one.slot << ",\"score\":" << one.score
                  << ",\"length\":" << one.length << "}";
        comma = ",";
    }
    std::cout << "]";
    if (!learns) std::cout << ",\"finished\":\"" << client->text() << '"';
    if (learns && observes) {
        std::cout << ",\"action\":{";
        for (const Space& space : actions) {
            std::cout << (&space == &actions[0] ? "" : ",");
            print_leaf(space);
        }
        std::cout << "}";
    }
    std::cout << "}" << std::endl;
}

void hello(const std::string& address, const std::string& ca) {
    rlx::Options options;
    std::string name = read<std::string>(), token = read<std::string>();
    options.slots = slots = read<int>();
    options.exploit = read<int>() != 0;
    options.token = token == "-" ? "" : token;
    options.tls_ca = ca;
    options.timeout_sec = 4;
    if (read<int>()) {
        std::size_t rows = static_cast<std::size_t>(slots);
        options.max_wait_ms = 5000;
        options.versions = {{"counters", "1.0"}};
        options.agents.assign(rows, "counter");
        options.games.assign(rows, 7);
        options.masks = options.wants_versions_by_slot = true;
    }
    std::vector<rlx::Leaf> seen, done;
    for (std::size_t i = read<std::size_t>(); i-- > 0;) observations.push_back(read_space());
    for (std::size_t i = read<std::size_t>(); i-- > 0;) actions.push_back(read_space());
    for (const Space& space : observations) seen.push_back(make_leaf(space));
    for (const Space& space : actions) done.push_back(make_leaf(space));
    client = std::make_unique<rlx::Client>(address, name, seen, done, options);
    client->connect_once();
    std::cout << "{\"ready\":{\"features\":[";
    std::string comma = "";
    for (const char* feature : {"executed", "ping", "present", "slot_versions"})
        if (client->has(feature)) {
            std::cout << comma << '"' << feature << '"';
            comma = ",";
        }
    std::cout << "]}}" << std::endl;
}

void step() {
    rlx::Outcome outcome;
    outcome.observes = false;
    client->set_present({});
    client->set_overridden({});
    auto set = [](const std::string& name, const auto& values, int slot) {
        client->set(name, values, slot);
    };
    auto set_final = [](const std::string& name, const auto& values, int slot) {
        client->set_final(name, values, slot);
    };
    auto execute = [](const std::string& name, const auto& values, int slot) {
        client->executed(values, name, slot);
    };
    std::size_t rows = static_cast<std::size_t>(slots);
    for (std::string key = read<std::string>(); key != "end"; key = read<std::string>()) {
        if (key == "observation") outcome.observes = true, read_leaf(observations, set);
        else if (key == "final_observation") outcome.finals = true, read_leaf(observations, set_final);
        else if (key == "executed") read_leaf(actions, execute);
        else if (key == "reward") outcome.rewards = read_list<double>(rows);
        else if (key == "terminated") outcome.terminated = read_flags();
        else if (key == "truncated") outcome.truncated = read_flags();
        else if (key == "present") client->set_present(read_flags());
        else if (key == "overridden") client->set_overridden(read_flags());
        else if (key == "success")
            for (int one : read_list<int>(rows))
                outcome.success.push_back(static_cast<std::int8_t>(one));
    }
    bool learns = outcome.rewards.empty() ? client->act() : client->exchange(outcome);
    print_answer(learns, outcome.observes);
}

}  // namespace

int main(int argc, char** argv) {
    std::cout.precision(17);
    for (std::string kind; std::cin >> kind;) try {
        if (kind == "hello") hello(argv[1], argc > 2 ? argv[2] : "");
        else if (kind == "ping") client->ping();
        else if (kind == "scalars") client->point("count", read<double>());
        else step();
    } catch (const rlx::Error& error) {
        std::cout << "{\"error\":{\"code\":" << error.code << ",\"field\":\"" << error.field
                  << "\"}}" << std::endl;
    }
    return 0;
}
