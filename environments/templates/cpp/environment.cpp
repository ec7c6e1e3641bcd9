/* __NAME__: an environment that asks an rlx server for its actions. */
#include "rlx.hpp"

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <random>

static const std::vector<rlx::Leaf> observation_space = __OBSERVATION__;
static const std::vector<rlx::Leaf> action_space = __ACTION__;

/* Replace this by your own: now observations are random, and an episode has 20 steps. */
class Environment {
   public:
    struct Result {
        double reward;
        bool terminated, truncated; /* truncated: the episode is cut off, as by a time limit */
    };

    /* Begins an episode; sets its first observation. */
    void reset(rlx::Client& client) {
        steps_ = 0;
        observe(client);
    }

    /* Does the action, which is client.actions<TYPE>("NAME"), and sets the observation. */
    Result step(rlx::Client& client) {
        steps_++;
        observe(client);
        return {1, false, steps_ == 20};
    }

   private:
    void observe(rlx::Client& client) {__OBSERVATION_VALUE__
    }

    /* Returns numbers of 0 to 1, or integers: number i is one of n[i] from `start`. */
    template <class T>
    std::vector<T> draw(std::size_t count, std::int64_t start, std::vector<std::int64_t> n) {
        std::vector<T> numbers(count);
        for (std::size_t i = 0; i < count; i++) {
            double part = std::uniform_real_distribution<>()(random_);
            std::int64_t most = n[i % n.size()] - 1;
            numbers[i] = std::is_floating_point_v<T> ? static_cast<T>(part)
                : static_cast<T>(std::uniform_int_distribution<std::int64_t>(0, most)(random_) + start);
        }
        return numbers;
    }

    std::mt19937_64 random_{std::random_device{}()};
    int steps_ = 0;
};

/* Plays until the training has finished, or the connection is lost. */
static void play(rlx::Client& client, Environment& environment) {
    while (!client.finished()) {
        environment.reset(client);
        bool learns = client.act();
        while (learns) {
            Environment::Result result = environment.step(client);
            if (result.terminated) client.reward_and_reset(result.reward);
            else if (result.truncated) client.reward_and_truncate(result.reward);
            else learns = client.reward_and_act(result.reward);
            if (result.terminated || result.truncated) break;
        }
    }
}

int main(int argc, char** argv) try {
    std::string address = "localhost:7001", name = "__NAME__";
    rlx::Options options;
    if (const char* token = std::getenv("RELAAX_TOKEN")) options.token = token;
    for (int i = 1; i < argc; i += 2) {
        std::string flag = argv[i];
        if (i + 1 == argc) throw rlx::Invalid(flag + ": expected a value after it");
        std::string value = argv[i + 1];
        if (flag == "--rlx-server") address = value;
        else if (flag == "--name") name = value;
        else if (flag == "--tls-ca") options.tls_ca = value;
        else if (flag == "--tls-cert") options.tls_cert = value;
        else if (flag == "--tls-key") options.tls_key = value;
        else if (flag != "--token-file")
            throw rlx::Invalid(flag + ": expected --rlx-server, --name, --token-file, --tls-ca, "
                                      "--tls-cert or --tls-key");
        else if (std::ifstream file(value); !std::getline(file, options.token))
            throw rlx::Invalid(flag + ": expected a file with a token");
    }
    rlx::Client client(address, name, observation_space, action_space, options);
    Environment environment;
    client.connect();
    while (!client.finished()) try {
        play(client, environment);
    } catch (const rlx::Unavailable&) {
        client.reconnect();
    }
    std::cout << "__NAME__: " << client.text() << std::endl;
} catch (const rlx::Error& error) {
    std::cerr << "__NAME__: " << error.what() << std::endl;
    return error.code == RLX_AGENT_FAILED ? 1 : 2;
}
