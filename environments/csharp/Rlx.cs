// A client of an rlx server in one file, with nothing but System: lines of JSON over TCP or TLS.
// docs/json.md describes the messages, README.md how to use this file. C# 7.2, for Unity and Mono.
//
//   var client = new RlxClient("localhost:7001", "game", RlxSpace.Box(4), RlxSpace.Discrete(2));
//   client.ConnectWithRetry();
//   RlxAnswer answer = client.Act(new float[] { 0.5f, -1, 0, 2 });
//   answer = client.RewardAndAct(1, observation);
//
// Calls block; a client belongs to one thread at a time, but for Ping. All arrays are flat: slot
// after slot, in each slot the last axis fastest. An observation is such an array, or a dictionary
// of leaves.
using System;
using System.Collections;
using System.Collections.Generic;
using System.Diagnostics;
using System.Globalization;
using System.IO;
using System.Linq;
using System.Net.Security;
using System.Net.Sockets;
using System.Security.Cryptography.X509Certificates;
using System.Text;
using System.Text.RegularExpressions;
using System.Threading;
using Leaves = System.Collections.Generic.IDictionary<string, System.Array>;
using Map = System.Collections.Generic.Dictionary<string, object>;
using Spaces = System.Collections.Generic.Dictionary<string, RlxSpace>;

/// What went wrong: an error of the server, a lost connection, or a mistake of the caller.
public class RlxException : Exception {
    /// A code of docs/json.md; UNAVAILABLE also for losses and timeouts. Of this client's own:
    /// CALL: a wrong argument or call, nothing was sent; ANSWER: an answer that is not valid.
    public readonly string Code, Field, Cure;

    public RlxException(string code, string message, string field = "", string cure = "")
        : base(cure == "" ? message : message + "; " + cure) {
        Code = code;
        Field = field;
        Cure = cure;
    }

    internal static RlxException Misuse(string field, string what) =>
        new RlxException("CALL", field + ": " + what, field);

    /// Whether it helps to connect again.
    public bool CanRetry => Code == "UNAVAILABLE" || Code == "OVERLOADED";
}

/// A space with one leaf. Spaces of several leaves are dictionaries: name -> RlxSpace.
public class RlxSpace {
    static readonly Dictionary<string, Type> Types = new Dictionary<string, Type> {
        { "float32", typeof(float) }, { "float64", typeof(double) }, { "bool", typeof(bool) },
        { "int8", typeof(sbyte) }, { "int16", typeof(short) }, { "int32", typeof(int) },
        { "int64", typeof(long) }, { "uint8", typeof(byte) }, { "uint16", typeof(ushort) },
        { "uint32", typeof(uint) }, { "uint64", typeof(ulong) } };
    internal readonly Map Json = new Map();
    internal readonly int Size, Choices;  // Choices: of all components
    readonly string dtype;
    readonly int[] shape;

    RlxSpace(string kind, object value, int[] shape, string dtype) {
        if (!Types.ContainsKey(dtype)) throw RlxException.Misuse("dtype", dtype + " is unknown");
        Json[kind] = value;
        Json["dtype"] = this.dtype = dtype;
        this.shape = shape;
        Size = shape.Aggregate(1, (size, length) => checked(size * length));
        Choices = value is long n ? (int)n : kind == "multi_discrete" ? ((int[])value).Sum() : 0;
    }

    public static RlxSpace Box(params int[] shape) => Box(shape, "float32");

    /// Numbers. low, high: null, one number, or one for each; infinity: no bound.
    public static RlxSpace Box(int[] shape, string dtype, double[] low = null,
                               double[] high = null) {
        var space = new RlxSpace("box", shape, shape, dtype);
        space.AddBound("low", low);
        space.AddBound("high", high);
        return space;
    }

    void AddBound(string name, double[] bound) {
        if (bound == null) return;
        if (bound.Length != 1 && bound.Length != Size)
            throw RlxException.Misuse(name, "expected 1 or " + Size + " numbers");
        object[] finite = bound.Select(x => double.IsInfinity(x) ? null : (object)x).ToArray();
        Json[name] = Nest(finite, bound.Length == 1 ? new int[0] : shape, 0, 0);
    }

    /// One of n integers, from start.
    public static RlxSpace Discrete(long n, long start = 0) =>
        new RlxSpace("discrete", n, new int[0], "int64") { Json = { ["start"] = start } };

    /// Integers; component i is 0 to n[i] - 1.
    public static RlxSpace MultiDiscrete(int[] n, int[] shape = null) =>
        new RlxSpace("multi_discrete", n, shape ?? new[] { n.Length }, "int64") {
            Json = { ["shape"] = shape } };

    /// Zeros and ones.
    public static RlxSpace MultiBinary(params int[] shape) =>
        new RlxSpace("multi_binary", shape, shape, "int8");

    static object Nest(IList flat, int[] shape, int axis, int offset) {
        if (axis == shape.Length) return flat[offset];
        int each = shape.Skip(axis + 1).Aggregate(1, (product, length) => product * length);
        return Enumerable.Range(0, shape[axis])
            .Select(i => Nest(flat, shape, axis + 1, offset + i * each));
    }

    static void Flatten(object value, int[] shape, int axis, List<object> flat) {
        if (axis == shape.Length) flat.Add(value);
        else if (value is List<object> list && list.Count == shape[axis])
            foreach (object one in list) Flatten(one, shape, axis + 1, flat);
        else throw new FormatException("not of this shape");
    }

    /// Converts without any loss, but for the rounding of float32.
    object Exact(object value, bool isText) {
        if (value is bool != (dtype == "bool") || value is string != isText)
            throw new InvalidCastException();
        object exact = Convert.ChangeType(value, Types[dtype], CultureInfo.InvariantCulture);
        double error = isText ? 0 : Convert.ToDouble(exact) - Convert.ToDouble(value);
        if (dtype[0] == 'f' ? double.IsNaN(error) || double.IsInfinity(error) : error != 0)
            throw new InvalidCastException();
        return exact;
    }

    T Check<T>(string code, int slots, string field, Func<int[], T> convert) {
        int[] axes = new[] { slots }.Concat(shape).ToArray();
        try {
            return convert(axes);
        } catch (Exception error) when (!(error is OutOfMemoryException)) {
            string wanted = dtype + " [" + string.Join(", ", axes) + "], slots x shape";
            throw new RlxException(code, field + ": expected " + wanted, field);
        }
    }

    internal object Write(Array values, int slots, string field) =>
        Check("CALL", slots, field, axes => {
            if (values.Length != slots * Size) throw new FormatException();
            if (values is byte[] bytes && dtype == "uint8" && shape.Length > 0)
                return new Map { { "base64", Convert.ToBase64String(bytes) } };
            object[] exact = values.Cast<object>().Select(x => Exact(x, false)).ToArray();
            if (dtype[0] == 'f' || exact.All(x => Math.Abs(Convert.ToDecimal(x)) <= 1L << 53))
                return Nest(exact, axes, 0, 0);
            string[] texts = exact.Select(RlxJson.Write).ToArray();
            return new Map { { "integers", Nest(texts, axes, 0, 0) } };
        });

    internal Array Read(object value, int slots, string field) =>
        Check("ANSWER", slots, field, axes => {
            var form = value as Map;
            var flat = new List<object>();
            Flatten(form == null ? value : form.Values.Single(), axes, 0, flat);
            Array values = Array.CreateInstance(Types[dtype], flat.Count);
            for (int i = 0; i < flat.Count; i++) values.SetValue(Exact(flat[i], form != null), i);
            return values;
        });
}

/// A step; what is null is not sent. One value for each slot.
public class RlxStep {
    /// For several rewards per step, one list after the other.
    public double[] Reward;
    /// An array, or a dictionary of leaves. Executed: in the action space. Mask, FinalMask: which
    /// choices are legal, a bool for each value of a Discrete or MultiDiscrete action, component
    /// after component; a dictionary has all leaves of these kinds.
    public object Observation, FinalObservation, Executed, Mask, FinalMask;
    public bool[] Terminated, Truncated, Present, Overridden;
    public bool?[] Success;
}

public struct RlxEpisode {
    public long Slot, Length;
    public double Score;
}

public class RlxAnswer {
    /// Leaf -> flat array: float[] for float32, long[] for Discrete, ... The leaf of a plain space
    /// is "". Null: no action was due.
    public Leaves Actions;
    public readonly List<RlxEpisode> Episodes = new List<RlxEpisode>();
    /// Not null: why the training has ended. Stop, and do not connect again.
    public string Finished;
    public ulong Version;
    /// All that came, for example "timings", and "versions" of slots.
    public IDictionary<string, object> Json;

    /// The action of a plain Discrete space and slot.
    public int GetAction(int slot = 0) => (int)((long[])Actions[""])[slot];
}

/// JSON: strings, bool, null, long, double, List<object> and Dictionary<string, object>.
public class RlxJson {
    static readonly CultureInfo Plain = CultureInfo.InvariantCulture;
    static readonly Regex Number = new Regex(@"\G-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?");
    static readonly Regex Text =
        new Regex(@"\G""((?:[^""\\\x00-\x1f]|\\(?:[""\\/bfnrt]|u[0-9a-fA-F]{4}))*)""");
    static readonly Regex Special = new Regex(@"[\x00-\x1f""\\]");
    readonly string text;
    int at, depth;

    RlxJson(string text) => this.text = text;

    /// Reads one value. Raises FormatException for what is not JSON, and for numbers that are too
    /// large for a double. Numbers without a fraction are long if they fit, else double.
    public static object Read(string text) {
        var reader = new RlxJson(text);
        object value = reader.ReadValue();
        return reader.Take("") && reader.at == text.Length ? value : throw reader.Fail("the end");
    }

    FormatException Fail(string expected) =>
        new FormatException("character " + at + ": expected " + expected);

    bool Take(string wanted) {
        while (at < text.Length && " \t\r\n".IndexOf(text[at]) >= 0) at++;
        if (string.CompareOrdinal(text, at, wanted, 0, wanted.Length) != 0) return false;
        at += wanted.Length;
        return true;
    }

    Match TakeMatch(Regex pattern) {
        Take("");
        Match match = pattern.Match(text, at);
        at += match.Length;
        return match.Success ? match : throw Fail("a value");
    }

    object ReadValue() {
        if (++depth > 64) throw Fail("at most 64 levels");
        object value = Take("[") ? ReadList() : Take("{") ? ReadMap() : Take("true") ? true
            : Take("false") ? false : Take("null") ? null
            : at < text.Length && text[at] == '"' ? ReadString() : ReadNumber();
        depth--;
        return value;
    }

    object ReadNumber() {
        string digits = TakeMatch(Number).Value;
        if (long.TryParse(digits, NumberStyles.Float, Plain, out long integer)) return integer;
        if (ulong.TryParse(digits, NumberStyles.None, Plain, out ulong large)) return large;
        if (double.TryParse(digits, NumberStyles.Float, Plain, out double number)
            && !double.IsInfinity(number)) return number;
        throw Fail("a smaller number");
    }

    string ReadString() {
        string inside = TakeMatch(Text).Groups[1].Value;
        return inside.IndexOf('\\') < 0 ? inside : Regex.Unescape(inside);
    }

    object ReadList() {
        var list = new List<object>();
        if (Take("]")) return list;
        do list.Add(ReadValue()); while (Take(","));
        return Take("]") ? list : throw Fail("]");
    }

    object ReadMap() {
        var map = new Map();
        if (Take("}")) return map;
        do {
            string key = ReadString();
            if (!Take(":") || map.ContainsKey(key)) throw Fail("keys, each once, and values");
            map[key] = ReadValue();
        } while (Take(","));
        return Take("}") ? map : throw Fail("}");
    }

    /// Writes a value, also any list. Keys of objects whose value is null are left out.
    public static string Write(object value) {
        if (value is IDictionary map) {
            var keys = map.Keys.Cast<string>().Where(key => map[key] != null);
            var pairs = keys.Select(key => Write(key) + ":" + Write(map[key]));
            return "{" + string.Join(",", pairs) + "}";
        }
        if (value is string text) return '"' + Special.Replace(text, Escape) + '"';
        if (value is IEnumerable list)
            return "[" + string.Join(",", list.Cast<object>().Select(Write)) + "]";
        if (value == null) return "null";
        if (value is bool) return (bool)value ? "true" : "false";
        string format = value is float ? "G9" : value is double ? "G17" : null;
        return ((IFormattable)value).ToString(format, Plain);
    }

    static string Escape(Match one) => "\\u" + ((int)one.Value[0]).ToString("x4");
}

/// One connection, for one or several slots.
public class RlxClient : IDisposable {
    // Settings; change them before Connect.
    public bool Exploit, Tls;
    /// TlsCa: the PEM file of the authority that is trusted; null: those of the system.
    public string Token, TlsCa;
    public double ConnectSeconds = 10, AnswerSeconds = 60;
    /// Limits of the random pause before connecting again.
    public double MinSleepSeconds = 1, MaxSleepSeconds = 10;
    /// The server answers within this time, whatever it learns; 0: no such limit.
    public int MaxWaitMs;
    /// Decided, and off in all servers of today: the agent and the game of each slot.
    public string[] Agents;
    public int[] Games;
    /// Features of docs/json.md to ask for.
    public readonly HashSet<string> Wanted = new HashSet<string> {
        "executed", "hello_ping", "ping", "present", "slot_versions", "step_id" };

    /// Those that are on.
    public readonly HashSet<string> Features = new HashSet<string>();
    /// Not null: why the training has ended.
    public string Finished { get; private set; }

    static readonly Encoding Utf8 = new UTF8Encoding(false, true);
    static readonly Dictionary<string, string> FeatureOfKey = new Dictionary<string, string> {
        { "present", "present" }, { "executed", "executed" }, { "overridden", "executed" },
        { "mask", "masks" }, { "final_mask", "masks" }, { "agents", "agents" },
        { "games", "agents" } };
    readonly string host, address, name;
    readonly int port, slots;
    readonly Spaces observations, actions, masks;
    readonly byte[] buffer = new byte[1 << 16];
    TcpClient tcp;
    Stream stream;
    int begin, end;
    long maxMessage, stepId;

    /// address: HOST:PORT. observation, action: an RlxSpace, or a dictionary of them.
    public RlxClient(string address, string name, object observation, object action,
                     int slots = 1) {
        Match match = Regex.Match(address, @"^\[?(.+?)\]?:([0-9]{1,5})$");
        if (!match.Success) throw RlxException.Misuse("address", address + ", expected HOST:PORT");
        host = match.Groups[1].Value;
        port = int.Parse(match.Groups[2].Value);
        this.address = address;
        this.name = name;
        this.slots = slots;
        observations = ReadSpaces(observation);
        actions = ReadSpaces(action);
        masks = actions.Where(pair => pair.Value.Choices > 0).ToDictionary(
            pair => pair.Key, pair => RlxSpace.Box(new[] { pair.Value.Choices }, "bool"));
    }

    static Spaces ReadSpaces(object space) => space is RlxSpace one
        ? new Spaces { { "", one } } : new Spaces((IDictionary<string, RlxSpace>)space);

    /// Connects once, and sends the hello. Then begin an episode with Act.
    public void Connect() {
        Greet(null, null);
        Require(new Map { { "agents", Agents }, { "games", Games } });
        if (Agents != null || Games != null) Greet(Agents, Games);
    }

    /// Connects; while that can help, pauses for a random time and tries again.
    ///
    /// failure: the one after which to connect again; it is raised if that does not help.
    public void ConnectWithRetry(Action<string> report = null, RlxException failure = null) {
        for (; ; ) {
            if (failure != null && !failure.CanRetry) throw failure;
            if (failure != null) {
                // Clients that start at the same time must not draw the same number.
                double part = new Random(Guid.NewGuid().GetHashCode()).NextDouble();
                double seconds = MinSleepSeconds + part * (MaxSleepSeconds - MinSleepSeconds);
                report?.Invoke(failure.Message + "; retrying in " + (int)seconds + " s");
                Thread.Sleep(TimeSpan.FromSeconds(seconds));
            }
            try {
                Connect();
                return;
            } catch (RlxException error) {
                failure = error;
            }
        }
    }

    /// The first observation of an episode.
    public RlxAnswer Act(object first) => Step(new RlxStep { Observation = first });

    /// The reward of the last action, and the next observation.
    public RlxAnswer RewardAndAct(double reward, object next) =>
        Step(new RlxStep { Reward = new[] { reward }, Observation = next });

    /// The last reward of an episode. truncated: it was cut off; `last` is its last observation.
    public RlxAnswer RewardAndReset(double reward, bool truncated = false, object last = null,
                                    bool? success = null) =>
        Step(new RlxStep { Reward = new[] { reward }, Truncated = new[] { truncated },
                           FinalObservation = last, Success = new[] { success } });

    /// Any step. Without Reward it is the first one, without Observation all slots have ended.
    public RlxAnswer Step(RlxStep step) {
        int each = (step.Reward?.Length ?? 0) / slots;
        RlxSpace flag = RlxSpace.Box(new int[0], "bool"), reward =
            RlxSpace.Box(each == 1 ? new int[0] : new[] { each }, "float64");
        string verb = step.Reward == null ? "act" : step.Observation == null ? "reward_and_reset"
                                                                             : "reward_and_act";
        var sent = new Map {
            { "reward", step.Reward == null ? null : reward.Write(step.Reward, slots, "reward") },
            { "observation", Write(observations, step.Observation, "observation") },
            { "final_observation",
              Write(observations, step.FinalObservation, "final_observation") },
            { "executed", Write(actions, step.Executed, "executed") }, { "success", step.Success },
            { "mask", Write(masks, step.Mask, "mask") },
            { "final_mask", Write(masks, step.FinalMask, "final_mask") } };
        foreach (var pair in new Dictionary<string, bool[]> {
                     { "terminated", step.Terminated }, { "truncated", step.Truncated },
                     { "present", step.Present }, { "overridden", step.Overridden } })
            sent[pair.Key] = pair.Value == null ? null : flag.Write(pair.Value, slots, pair.Key);
        Require(sent);
        if (Features.Contains("step_id")) sent["step_id"] = ++stepId;
        return Guard(() => ReadAnswer(Send(new Map { { verb, sent } }) ? Receive() : null,
                                      step.Observation != null));
    }

    /// Says that the environment is still alive, during a step that takes minutes. From any thread.
    public void Ping() {
        if (Features.Contains("ping")) Guard(() => Send(new Map { { "ping", new Map() } }));
    }

    /// Closes the connection; the server discards unfinished episodes.
    public void Dispose() {
        tcp?.Close();
        stream = null;
    }

    void Require(Map keys) {
        foreach (var pair in FeatureOfKey)
            if (keys.TryGetValue(pair.Key, out object value) && value != null
                && !Features.Contains(pair.Value))
                throw RlxException.Misuse(pair.Key, "ready.features of this server does not list "
                    + pair.Value + "; begin a run that has it, or do not send it");
    }

    /// Makes each failure an RlxException, after closing the connection.
    T Guard<T>(Func<T> talk) {
        try {
            return talk();
        } catch (Exception caught) {
            bool isHandshake = (Tls || TlsCa != null) && stream is NetworkStream;
            Dispose();
            if (caught is RlxException) throw;
            Exception error = caught.GetBaseException();
            string code = error is IOException || error is SocketException
                || error is ObjectDisposedException ? "UNAVAILABLE"
                : isHandshake ? "TLS" : "ANSWER";
            string what = code == "ANSWER" ? ": not an answer of an rlx server: " : ": ";
            bool isLate = (error as SocketException)?.SocketErrorCode == SocketError.WouldBlock;
            string why = isLate ? "no answer in time" : error.Message;
            throw new RlxException(code, address + what + why);
        }
    }

    void Greet(string[] agents, int[] games) => Guard(() => {
        if (Finished != null) throw RlxException.Misuse("Connect", "finished: " + Finished);
        Dispose();
        tcp = new TcpClient(host.Contains(":") ? AddressFamily.InterNetworkV6
                                               : AddressFamily.InterNetwork) { NoDelay = true };
        if (!tcp.ConnectAsync(host, port).Wait(TimeSpan.FromSeconds(ConnectSeconds)))
            throw new IOException("no connection within " + ConnectSeconds + " s");
        tcp.ReceiveTimeout = tcp.SendTimeout = (int)(1000 * AnswerSeconds);
        stream = tcp.GetStream();
        if (Tls || TlsCa != null) {
            var secure = new SslStream(stream, false, IsTrusted);
            secure.AuthenticateAsClient(host);
            stream = secure;
        }
        stepId = begin = end = 0;
        maxMessage = 1 << 20;
        var wanted = new SortedSet<string>(Wanted, StringComparer.Ordinal);
        if (MaxWaitMs > 0) wanted.Add("max_wait");
        if (Agents != null || Games != null) wanted.Add("agents");
        Send(new Map { { "hello", new Map {
            { "name", name }, { "slots", slots }, { "mode", Exploit ? "exploit" : "train" },
            { "observation", Spell(observations) }, { "action", Spell(actions) },
            { "token", Token }, { "features", wanted }, { "agents", agents }, { "games", games },
            { "max_wait_ms", MaxWaitMs > 0 ? (int?)MaxWaitMs : null } } } });
        var ready = (Map)Receive()["ready"];
        maxMessage = (long)ready["max_message_bytes"];
        Features.Clear();
        Features.UnionWith(((List<object>)ready["features"]).Cast<string>());
        return true;
    });

    bool IsTrusted(object sender, X509Certificate certificate, X509Chain chain,
                   SslPolicyErrors errors) {
        if (errors != SslPolicyErrors.RemoteCertificateChainErrors || TlsCa == null)
            return errors == SslPolicyErrors.None;
        Match pem = Regex.Match(File.ReadAllText(TlsCa), "CERTIFICATE-----([^-]+)-");
        var authority = new X509Certificate2(Convert.FromBase64String(pem.Groups[1].Value));
        // Mono takes a critical list of names for a wrong usage.
        var own = new X509Chain { ChainPolicy = {
            RevocationMode = X509RevocationMode.NoCheck, ExtraStore = { authority },
            VerificationFlags = X509VerificationFlags.AllowUnknownCertificateAuthority
                | X509VerificationFlags.IgnoreWrongUsage } };
        return own.Build(new X509Certificate2(certificate))
            && own.ChainElements.Cast<X509ChainElement>().Last().Certificate.Equals(authority);
    }

    static object Spell(Spaces spaces) => spaces.TryGetValue("", out RlxSpace plain)
        ? (object)plain.Json : spaces.ToDictionary(pair => pair.Key, pair => pair.Value.Json);

    object Write(Spaces spaces, object value, string field) {
        if (value == null) return null;
        var leaves = value as Leaves ?? new Dictionary<string, Array> { { "", value as Array } };
        var written = spaces.ToDictionary(pair => pair.Key, pair => pair.Value.Write(
            leaves.TryGetValue(pair.Key, out Array leaf) ? leaf : null, slots,
            pair.Key == "" ? field : field + "." + pair.Key));
        return written.TryGetValue("", out object plain) ? plain : written;
    }

    bool Send(Map message) {
        if (stream == null) throw new IOException("no connection; connect, and begin with Act");
        byte[] line = Utf8.GetBytes(RlxJson.Write(message) + "\n");
        if (line.Length > maxMessage)
            throw RlxException.Misuse("message", line.Length + " bytes, limit " + maxMessage);
        lock (buffer) stream.Write(line, 0, line.Length);
        return true;
    }

    /// Reads messages until one is neither a ping nor late.
    Map Receive() {
        while (true) {
            var answer = (Map)RlxJson.Read(ReadLine());
            if (answer.TryGetValue("error", out object value)) {
                var error = (Map)value;
                Func<string, string> get = key => error.ContainsKey(key) ? (string)error[key] : "";
                throw new RlxException(get("code"), get("message"), get("field"), get("cure"));
            }
            if (!answer.ContainsKey("ping")) return answer;
        }
    }

    string ReadLine() {
        var line = new MemoryStream();
        long most = (1 << 20) + 64L * slots * actions.Values.Sum(space => (long)space.Size);
        var clock = Stopwatch.StartNew();
        while (true) {
            int stop = Array.IndexOf(buffer, (byte)'\n', begin, end - begin);
            line.Write(buffer, begin, (stop < 0 ? end : stop) - begin);
            if (line.Length > most) throw new FormatException("more than " + most + " bytes");
            begin = stop + 1;
            if (stop >= 0) return Utf8.GetString(line.GetBuffer(), 0, (int)line.Length);
            int left = (int)(1000 * AnswerSeconds - clock.ElapsedMilliseconds);
            if (left <= 0) throw new IOException("no answer within " + AnswerSeconds + " s");
            stream.ReadTimeout = left;
            begin = 0;
            end = stream.Read(buffer, 0, buffer.Length);
            if (end == 0) throw new IOException("the server closed the connection");
        }
    }

    RlxAnswer ReadAnswer(Map json, bool isActionDue) {
        var answer = new RlxAnswer { Json = json };
        if (json.TryGetValue("finished", out object why)) answer.Finished = Finished = (string)why;
        if (json.TryGetValue("step_id", out object id) && (long)id != stepId)
            throw new FormatException("an answer to step " + id + ", expected " + stepId);
        if (json.TryGetValue("episodes", out object episodes))
            foreach (Map one in (List<object>)episodes)
                answer.Episodes.Add(new RlxEpisode { Slot = (long)one["slot"],
                    Score = Convert.ToDouble(one["score"]), Length = (long)one["length"] });
        if (Finished != null) Dispose();
        else if (isActionDue) {
            answer.Version = json["version"] is ulong large ? large : (ulong)(long)json["version"];
            answer.Actions = actions.ToDictionary(pair => pair.Key, pair => pair.Value.Read(
                pair.Key == "" ? json["action"] : ((Map)json["action"])[pair.Key], slots,
                pair.Key == "" ? "action" : "action." + pair.Key));
        }
        return answer;
    }
}
