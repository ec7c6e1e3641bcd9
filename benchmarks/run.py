"""Runs all benchmarks, one after another: `make bench`."""

from benchmarks import acting, bare, codec, fairness, paced, push_pull, serving

if __name__ == "__main__":
    codec.main()
    push_pull.main()
    acting.main()
    bare.main()
    serving.main()
    serving.main("compiled")
    paced.main()
    fairness.main()
