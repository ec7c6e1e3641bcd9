// Makes the calls of a test with the client in C#; see support/drivers.py.
//
//     mono driver.exe ADDRESS CA      calls come as lines on standard input
using System;
using System.Collections;
using System.Collections.Generic;
using System.Globalization;
using System.Linq;
using Map = System.Collections.Generic.Dictionary<string, object>;

static class Driver {
    static readonly Dictionary<string, Type> Types = new Dictionary<string, Type> {
        { "float32", typeof(float) }, { "float64", typeof(double) }, { "int64", typeof(long) },
        { "uint8", typeof(byte) }, { "int8", typeof(sbyte) } };
    static readonly Dictionary<string, string> Dtypes = new Dictionary<string, string> {
        { "box", "float32" }, { "discrete", "int64" }, { "multi_discrete", "int64" },
        { "multi_binary", "int8" } };
    static RlxClient client;
    static Map observation, action;

    static void Main(string[] arguments) {
        for (string line; (line = Console.ReadLine()) != null; ) {
            object answer;
            try {
                var call = ((Map)RlxJson.Read(line)).Single();
                answer = call.Key == "hello" ? Connect((Map)call.Value, arguments)
                                             : Call(call.Key, call.Value);
            } catch (RlxException error) {
                answer = new Map { { "error", new Map {
                    { "code", error.Code }, { "field", error.Field },
                    { "message", error.Message } } } };
            }
            if (answer == null) continue;
            Console.WriteLine(RlxJson.Write(answer));
            Console.Out.Flush();
        }
    }

    static object Connect(Map hello, string[] arguments) {
        observation = (Map)hello["observation"];
        action = (Map)hello["action"];
        client = new RlxClient(arguments[0], (string)hello["name"], ReadSpaces(observation),
                               ReadSpaces(action), (int)(long)hello["slots"]) {
            AnswerSeconds = 4, Exploit = "exploit".Equals(Get(hello, "mode")),
            Token = (string)Get(hello, "token"), TlsCa = arguments.ElementAtOrDefault(1),
            MaxWaitMs = (int)((long?)Get(hello, "max_wait_ms") ?? 0) };
        client.Wanted.Clear();
        if (hello.ContainsKey("features"))
            client.Wanted.UnionWith(((List<object>)hello["features"]).Cast<string>());
        client.Connect();
        return new Map { { "ready", new Map { { "features", client.Features.ToList() } } } };
    }

    static object Call(string verb, object content) {
        if (verb == "ping") {
            client.Ping();
            return null;
        }
        var sent = (Map)content;
        RlxAnswer answer = client.Step(new RlxStep {
            Reward = (double[])Flatten(Get(sent, "reward"), typeof(double)),
            Observation = ReadLeaves(observation, Get(sent, "observation")),
            FinalObservation = ReadLeaves(observation, Get(sent, "final_observation")),
            Executed = ReadLeaves(action, Get(sent, "executed")),
            Terminated = ReadFlags(sent, "terminated"), Truncated = ReadFlags(sent, "truncated"),
            Present = ReadFlags(sent, "present"), Overridden = ReadFlags(sent, "overridden"),
            Success = (Get(sent, "success") as List<object>)?.Select(x => (bool?)x).ToArray() });
        return new Map {
            { "finished", answer.Finished }, { "version", answer.Version },
            { "action", answer.Actions == null ? null
                : answer.Actions.TryGetValue("", out Array plain) ? plain : (object)answer.Actions },
            { "episodes", answer.Episodes.Select(one => new Map {
                { "slot", one.Slot }, { "score", one.Score }, { "length", one.Length } }) } };
    }

    static object Get(Map map, string key) => map.TryGetValue(key, out object value) ? value : null;

    static bool[] ReadFlags(Map sent, string key) =>
        (Get(sent, key) as List<object>)?.Cast<bool>().ToArray();

    static bool IsPlain(Map spaces) => spaces.Keys.Any(Dtypes.ContainsKey);

    static object ReadSpaces(Map written) => IsPlain(written) ? (object)ReadSpace(written)
        : written.ToDictionary(pair => pair.Key, pair => ReadSpace((Map)pair.Value));

    static RlxSpace ReadSpace(Map written) {
        if (written.ContainsKey("discrete"))
            return RlxSpace.Discrete((int)(long)written["discrete"],
                                     (int)((long?)Get(written, "start") ?? 0));
        string kind = Dtypes.Keys.Single(written.ContainsKey);
        int[] lengths = ((List<object>)written[kind]).Select(x => (int)(long)x).ToArray();
        if (kind == "multi_discrete") return RlxSpace.MultiDiscrete(lengths);
        if (kind == "multi_binary") return RlxSpace.MultiBinary(lengths);
        return RlxSpace.Box(lengths, FindDtype(written),
                            (double[])Flatten(Get(written, "low"), typeof(double)),
                            (double[])Flatten(Get(written, "high"), typeof(double)));
    }

    static string FindDtype(Map space) =>
        (string)Get(space, "dtype") ?? Dtypes[Dtypes.Keys.Single(space.ContainsKey)];

    static object ReadLeaves(Map spaces, object value) {
        if (value == null) return null;
        if (IsPlain(spaces)) return Flatten(value, Types[FindDtype(spaces)]);
        return spaces.ToDictionary(pair => pair.Key, pair => Flatten(
            ((Map)value)[pair.Key], Types[FindDtype((Map)pair.Value)]));
    }

    static Array Flatten(object value, Type type) {
        if (value == null) return null;
        object[] flat = Walk(value).ToArray();
        Array values = Array.CreateInstance(type, flat.Length);
        for (int i = 0; i < flat.Length; i++)
            values.SetValue(Convert.ChangeType(flat[i], type, CultureInfo.InvariantCulture), i);
        return values;
    }

    static IEnumerable<object> Walk(object value) =>
        value is List<object> list ? list.SelectMany(Walk) : new[] { value };
}
