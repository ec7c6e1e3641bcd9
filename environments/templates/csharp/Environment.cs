// __NAME__: an environment that asks an rlx server for its actions.
using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;

/// Replace this by your own: now observations are random, and an episode has 20 steps.
class Environment {
    public static readonly object ObservationSpace = __OBSERVATION__;
    public static readonly object ActionSpace = __ACTION__;

    readonly Random rng = new Random();
    int steps;

    /// Begins an episode; returns its first observation.
    public object Reset() {
        steps = 0;
        return Observe();
    }

    /// Does an action: a flat array for each name, which is "" if there is only one. Returns the
    /// reward; truncated: the episode is cut off, as by a time limit.
    public double Step(IDictionary<string, Array> action, out object observation,
                       out bool terminated, out bool truncated) {
        steps++;
        observation = Observe();
        terminated = false;
        truncated = steps == 20;
        return 1;
    }

    /// Returns flat arrays.
    object Observe() {
        return __OBSERVATION_VALUE__;
    }

    /// Returns numbers of 0 to 1, or integers: number i is one of n[i] from `start`.
    T[] Draw<T>(int count, int start, params int[] n) =>
        Enumerable.Range(0, count).Select(i => (T)Convert.ChangeType(
            typeof(T) == typeof(float) || typeof(T) == typeof(double)
                ? rng.NextDouble() : (double)start + rng.Next(n[i % n.Length]), typeof(T))).ToArray();
}

static class Program {
    static int Main(string[] arguments) {
        string address = "localhost:7001", name = "__NAME__", authority = null;
        string token = System.Environment.GetEnvironmentVariable("RELAAX_TOKEN");
        try {
            for (int i = 0; i < arguments.Length; i += 2) {
                string flag = arguments[i];
                if (i + 1 == arguments.Length)
                    throw new FormatException(flag + ": expected a value after it");
                if (flag == "--rlx-server") address = arguments[i + 1];
                else if (flag == "--name") name = arguments[i + 1];
                else if (flag == "--token-file") token = File.ReadAllText(arguments[i + 1]).Trim();
                else if (flag == "--tls-ca") authority = arguments[i + 1];
                else throw new FormatException(
                    flag + ": expected --rlx-server, --name, --token-file or --tls-ca");
            }
            using (var client = new RlxClient(address, name, Environment.ObservationSpace,
                                              Environment.ActionSpace)) {
                client.Token = string.IsNullOrEmpty(token) ? null : token;
                client.TlsCa = authority;
                Run(client, new Environment());
                Console.WriteLine("__NAME__: " + client.Finished);
            }
            return 0;
        } catch (Exception error) when (error is RlxException || error is FormatException
                                        || error is IOException) {
            Console.Error.WriteLine("__NAME__: " + error.Message);
            return error is RlxException rlx && rlx.Code == "AGENT_FAILED" ? 1 : 2;
        }
    }

    /// Plays until the training has finished; connects again if the connection is lost.
    static void Run(RlxClient client, Environment environment) {
        RlxException failure = null;
        while (client.Finished == null) {
            try {
                client.ConnectWithRetry(Console.WriteLine, failure);
                while (client.Finished == null) Play(client, environment);
            } catch (RlxException error) when (error.CanRetry) {
                failure = error;
            }
        }
    }

    static void Play(RlxClient client, Environment environment) {
        RlxAnswer answer = client.Act(environment.Reset());
        while (answer.Finished == null) {
            double reward = environment.Step(answer.Actions, out object observation,
                                             out bool terminated, out bool truncated);
            if (terminated || truncated) {
                client.RewardAndReset(reward, truncated && !terminated, observation);
                return;
            }
            answer = client.RewardAndAct(reward, observation);
        }
    }
}
