// CartPole-v1 with Gymnasium's physics, as a client of an rlx server; see README.md.
using System;
using System.Collections.Generic;
using System.Globalization;
using System.IO;
using System.Linq;

/// A pole on a cart: Barto, Sutton and Anderson (1983), without friction.
class CartPole {
    const double MaxX = 2.4, MaxTheta = 12 * Math.PI / 180;
    public const int MaxSteps = 500;
    readonly Random rng;
    double x, xDot, theta, thetaDot;

    public int Steps { get; private set; }

    public CartPole(Random rng) {
        this.rng = rng;
        Reset();
    }

    public void Reset() {
        x = Draw();
        xDot = Draw();
        theta = Draw();
        thetaDot = Draw();
        Steps = 0;
    }

    double Draw() => 0.1 * rng.NextDouble() - 0.05;

    /// Pushes the cart for 0.02 s, to the left (0) or the right (1); returns whether the pole fell.
    public bool Push(long action) {
        double sine = Math.Sin(theta), cosine = Math.Cos(theta);
        double force = ((action == 1 ? 10 : -10) + 0.05 * thetaDot * thetaDot * sine) / 1.1;
        double inertia = 0.5 * (4.0 / 3 - 0.1 * cosine * cosine / 1.1);
        double turn = (9.8 * sine - cosine * force) / inertia;
        x += 0.02 * xDot;
        xDot += 0.02 * (force - 0.05 * turn * cosine / 1.1);
        theta += 0.02 * thetaDot;
        thetaDot += 0.02 * turn;
        Steps++;
        return Math.Abs(x) > MaxX || Math.Abs(theta) > MaxTheta;
    }

    public void Observe(float[] all, int slot) {
        var seen = new[] { (float)x, (float)xDot, (float)theta, (float)thetaDot };
        seen.CopyTo(all, 4 * slot);
    }
}

static class Program {
    const string Help =
        "usage: csharp/main [--flag VALUE ...]\n\n"
        + "CartPole-v1 in C# as a client of an rlx server.\n\n"
        + "  --rlx-server HOST:PORT  default: localhost:7001\n"
        + "  --name NAME             shown in the server's log; default: csharp\n"
        + "  --num-envs N            poles that are stepped together; default: 1\n"
        + "  --seed N                seed of the first states; default: random\n"
        + "  --episodes N            end after N episodes; -1, the default: when training ends\n"
        + "  --exploit               choose the best actions; learn nothing\n"
        + "  --token-file FILE       a file with the token\n"
        + "  --tls-ca FILE           connect with TLS; trust this authority (PEM)\n"
        + "  --tls-cert FILE, --tls-key FILE\n"
        + "                          accepted and not used: no client certificates (README.md)\n"
        + "  --retry-sleep MIN MAX   seconds before a reconnection; default: 1 10\n"
        + "  -h, --help              show this and exit\n";
    static readonly Dictionary<string, int> Flags = new Dictionary<string, int> {
        { "--rlx-server", 1 }, { "--name", 1 }, { "--num-envs", 1 }, { "--seed", 1 },
        { "--episodes", 1 }, { "--exploit", 0 }, { "--token-file", 1 }, { "--tls-ca", 1 },
        { "--tls-cert", 1 }, { "--tls-key", 1 }, { "--retry-sleep", 2 } };

    static int Main(string[] arguments) {
        if (arguments.Contains("--help") || arguments.Contains("-h")) {
            Console.Write(Help);
            return 0;
        }
        try {
            Run(Parse(arguments));
            return 0;
        } catch (RlxException error) {
            Console.Error.WriteLine("csharp: " + error.Message);
            return error.Code == "AGENT_FAILED" || error.Code == "ANSWER" ? 1 : 2;
        } catch (Exception error) when (error is FormatException || error is OverflowException
                                        || error is IOException) {
            Console.Error.WriteLine("csharp: " + error.Message);
            return 2;
        }
    }

    static Dictionary<string, string[]> Parse(string[] arguments) {
        var given = new Dictionary<string, string[]>();
        for (int i = 0; i < arguments.Length; i++) {
            string flag = arguments[i];
            if (!Flags.TryGetValue(flag, out int values))
                throw new FormatException(flag + ": unknown; --help lists the flags");
            if (i + values >= arguments.Length)
                throw new FormatException(flag + ": expected a value after it");
            given[flag] = arguments.Skip(i + 1).Take(values).ToArray();
            i += values;
        }
        return given;
    }

    static long ParseInteger(Dictionary<string, string[]> given, string flag, long missing) {
        if (!given.TryGetValue(flag, out string[] values)) return missing;
        if (long.TryParse(values[0], NumberStyles.AllowLeadingSign, CultureInfo.InvariantCulture,
                          out long number)) return number;
        throw new FormatException(flag + ": '" + values[0] + "', expected an integer");
    }

    static void Run(Dictionary<string, string[]> given) {
        Func<string, string, string> get = (flag, missing) =>
            given.TryGetValue(flag, out string[] values) ? values[0] : missing;
        int slots = (int)ParseInteger(given, "--num-envs", 1);
        if (slots < 1) throw new FormatException("--num-envs: expected 1 or more");
        var rng = new Random((int)ParseInteger(given, "--seed", Guid.NewGuid().GetHashCode()));
        var client = new RlxClient(get("--rlx-server", "localhost:7001"), get("--name", "csharp"),
                                   RlxSpace.Box(4), RlxSpace.Discrete(2), slots) {
            Exploit = given.ContainsKey("--exploit"), TlsCa = get("--tls-ca", null) };
        string token = get("--token-file", null);
        if (token != null) client.Token = File.ReadAllText(token).Trim();
        if (given.TryGetValue("--retry-sleep", out string[] limits)) {
            client.MinSleepSeconds = double.Parse(limits[0], CultureInfo.InvariantCulture);
            client.MaxSleepSeconds = double.Parse(limits[1], CultureInfo.InvariantCulture);
        }
        Play(client, Enumerable.Range(0, slots).Select(i => new CartPole(rng)).ToArray(),
             ParseInteger(given, "--episodes", -1));
    }

    static void Play(RlxClient client, CartPole[] poles, long most) {
        long episodes = 0, steps = 0;
        RlxException failure = null;
        while (client.Finished == null && episodes != most) {
            try {
                client.ConnectWithRetry(Console.WriteLine, failure);
                foreach (CartPole pole in poles) pole.Reset();
                RlxAnswer answer = client.Step(new RlxStep { Observation = Observe(poles) });
                while (answer.Finished == null && episodes != most) {
                    answer = client.Step(Push(poles, (long[])answer.Actions[""]));
                    steps += poles.Length;
                    episodes += answer.Episodes.Count;
                }
            } catch (RlxException error) when (error.CanRetry) {
                failure = error;
            }
        }
        string why = client.Finished ?? "done";
        Console.WriteLine("csharp: {0}; {1} episodes, {2} steps", why, episodes, steps);
        client.Dispose();
    }

    static float[] Observe(CartPole[] poles) {
        var all = new float[4 * poles.Length];
        for (int slot = 0; slot < poles.Length; slot++) poles[slot].Observe(all, slot);
        return all;
    }

    /// Does the actions; poles whose episode ended begin the next one.
    static RlxStep Push(CartPole[] poles, long[] actions) {
        bool[] fell = poles.Select((pole, slot) => pole.Push(actions[slot])).ToArray();
        bool[] late = poles.Select((pole, slot) => !fell[slot] && pole.Steps == CartPole.MaxSteps)
            .ToArray();
        bool isEnd = fell.Concat(late).Any(ended => ended);
        float[] last = Observe(poles);
        for (int slot = 0; slot < poles.Length; slot++)
            if (fell[slot] || late[slot]) poles[slot].Reset();
        return new RlxStep {
            Reward = poles.Select(pole => 1.0).ToArray(), Terminated = fell, Truncated = late,
            FinalObservation = isEnd ? last : null, Observation = Observe(poles) };
    }
}
