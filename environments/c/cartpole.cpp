/* CartPole-v1 as a client of an rlx server, in C++17; see --help. */
#include "rlx.hpp"

extern "C" {
#include "cartpole_physics.h"
}

#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>

namespace {

const char HELP[] =
    "usage: c/main --cpp [--flag VALUE ...]\n"
    "\n"
    "CartPole-v1 in C++ as a client of an rlx server.\n"
    "\n"
    "  --rlx-server HOST:PORT  default: localhost:7001\n"
    "  --name NAME             shown in the server's log; default: cartpole and process id\n"
    "  --seed N                seed of the first states; default: random\n"
    "  --episodes N            end after N episodes; -1, the default: when training ends\n"
    "  --exploit               choose the best actions; learn nothing\n"
    "  --retry-sleep MIN MAX   seconds before a reconnection, drawn between the two; default: 1 10\n"
    "  --token-file FILE       a file with only the token that the server requires\n"
    "  --tls-ca FILE           CA certificates to trust; without it, TLS is not used\n"
    "  --tls-cert FILE         the client's certificate, if the server requires one\n"
    "  --tls-key FILE          its private key\n"
    "  -h, --help              show this and exit\n"
    "\n"
    "The client reconnects if the server is lost. The exit codes are those of the program in C.\n";

using State = std::array<float, CARTPOLE_STATE>;

struct Settings {
    std::string address = "localhost:7001", name = "cartpole-" + std::to_string(getpid());
    std::uint64_t seed;
    long episodes = -1;
    rlx::Options options;
};

double to_number(const std::string& flag, const std::string& text) {
    std::size_t used = 0;
    double number = 0;
    try {
        number = std::stod(text, &used);
    } catch (const std::logic_error&) {
    }
    if (used != text.size() || used == 0)
        throw rlx::Invalid(flag + ": '" + text + "', expected a number");
    return number;
}

std::string read_token(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line))
        if (!line.empty() && line[0] != '#') return line;
    throw rlx::Invalid("--token-file: '" + path + "', expected a file with a token");
}

Settings parse(const std::vector<std::string>& arguments) {
    Settings parsed;
    auto now = std::chrono::system_clock::now().time_since_epoch().count();
    parsed.seed = static_cast<std::uint64_t>(now) + (static_cast<std::uint64_t>(getpid()) << 40);
    std::string token_file;
    const std::map<std::string, std::string*> texts = {
        {"--rlx-server", &parsed.address},       {"--name", &parsed.name},
        {"--token-file", &token_file},           {"--tls-ca", &parsed.options.tls_ca},
        {"--tls-cert", &parsed.options.tls_cert}, {"--tls-key", &parsed.options.tls_key}};
    for (std::size_t i = 0; i < arguments.size(); i++) {
        const std::string& flag = arguments[i];
        auto take = [&] {
            if (i + 1 == arguments.size()) throw rlx::Invalid(flag + ": expected a value after it");
            return arguments[++i];
        };
        if (flag == "--help" || flag == "-h") {
            std::cout << HELP;
            std::exit(0);
        }
        auto text = texts.find(flag);
        if (text != texts.end()) *text->second = take();
        else if (flag == "--exploit") parsed.options.exploit = true;
        else if (flag == "--seed")
            parsed.seed = static_cast<std::uint64_t>(static_cast<long long>(to_number(flag, take())));
        else if (flag == "--episodes") parsed.episodes = static_cast<long>(to_number(flag, take()));
        else if (flag == "--retry-sleep") {
            parsed.options.min_sleep_sec = to_number(flag, take());
            parsed.options.max_sleep_sec = to_number(flag, take());
        } else throw rlx::Invalid(flag + ": unknown; --help lists the flags");
    }
    if (!token_file.empty()) parsed.options.token = read_token(token_file);
    return parsed;
}

/* Plays one episode; returns false when the training has ended. */
bool play_episode(rlx::Client& client, std::uint64_t& random, long& steps) {
    cartpole pole;
    State state;
    cartpole_reset(&pole, &random);
    cartpole_observe(&pole, state.data());
    bool learns = client.act(state);
    for (int step = 1; learns; step++) {
        bool terminated = cartpole_step(&pole, static_cast<int>(client.action<std::int64_t>()));
        cartpole_observe(&pole, state.data());
        steps++;
        if (terminated) return client.reward_and_reset(1);
        if (step == CARTPOLE_MAX_STEPS) return client.reward_and_truncate(1, state);
        learns = client.reward_and_act(1, state);
    }
    return false;
}

void play(const Settings& settings) {
    rlx::Client client(settings.address, settings.name,
                       {rlx::box<float>("observation", {CARTPOLE_STATE})},
                       {rlx::discrete("action", CARTPOLE_ACTIONS)}, settings.options);
    std::uint64_t random = settings.seed;
    long episodes = 0, steps = 0;
    client.connect();
    for (bool learns = true; learns && episodes != settings.episodes;) {
        try {
            learns = play_episode(client, random, steps);
            episodes += learns;
        } catch (const rlx::Unavailable&) {
            client.reconnect();
        }
    }
    std::string text = client.finished() ? client.text() : "done";
    std::cout << "cartpole: " << text << "; " << episodes << " episodes, " << steps << " steps\n";
}

/* Ends at once, also while it waits for the server, which discards the unfinished episode. */
extern "C" void stop(int number) { _exit(128 + number); }

}  // namespace

int main(int argc, char** argv) {
    std::signal(SIGINT, stop);
    std::signal(SIGTERM, stop);
    try {
        play(parse({argv + 1, argv + argc}));
    } catch (const rlx::Error& error) {
        std::cerr << "cartpole: " << error.what() << "\n";
        bool mistake = dynamic_cast<const rlx::Invalid*>(&error) != nullptr ||
                       error.code == RLX_SPACE_MISMATCH || error.code == RLX_VERSION_MISMATCH ||
                       error.code == RLX_UNAUTHENTICATED;
        return mistake ? 2 : 1;
    }
    return 0;
}
