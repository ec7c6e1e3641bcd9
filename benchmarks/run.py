"""Runs all benchmarks, one after another: `make bench`."""

from benchmarks import acting, codec, fairness, paced, push_pull, serving

if __name__ == "__main__":
    codec.main()
    push_pull.main()
    acting.main()
    serving.main()
    paced.main()
    fairness.main()
