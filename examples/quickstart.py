"""Compare two methods over uneven clients and write a page. Run: python examples/quickstart.py"""

import fedweave as fw

experiment = fw.Experiment(
    method="fedavg",
    data="digits",  # 1,797 real images; no download
    partition="dirichlet:0.3",  # each of twenty clients has few kinds of digits
    system="dynamic",  # uneven work, and links that lose up to half of the answers
    rounds=40,
    target=0.85,
)

if __name__ == "__main__":
    comparison = fw.compare(["fedavg", "fedprox", "scaffold"], experiment, seeds=3)
    for row in comparison.summary:
        verdict = row["paired"]["verdict"] if row["paired"] else "the reference"
        print(f"{row['method']:<10} accuracy {row['accuracy']:.3f} ± {row['accuracy_std']:.3f}  {verdict}")
    print("page:", comparison.report("quickstart.html"))
