"""Tune methods on held-out data, then compare their best points on the test set. Run: python examples/sweep.py"""

import fedweave as fw

experiment = fw.Experiment("fedavg", data="digits", partition="dirichlet:0.1", rounds=20)

if __name__ == "__main__":
    sweep = fw.sweep(
        ["fedavg", "fedprox"],
        experiment,
        over={"lr": [0.02, 0.1], "fedprox:method.solver.mu": [0.01, 0.1]},  # mu is swept for fedprox alone
        seeds=3,
    )
    for row in sweep.summary:
        print(
            f"{row['method']:<8} {row['point']}  validation {row['mean']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
        )
    # The best of many numbers is too good, so the best points are trained again, with other seeds, and tested.
    for row in sweep.tested.summary:
        print(f"{row['method']:<8} test accuracy {row['accuracy']:.3f}")
    print("page:", sweep.report("sweep.html"))
