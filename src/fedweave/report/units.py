"""Format numbers with units: 84.2 % ± 0.6, 1.9 MB, 3 min 20 s."""

from __future__ import annotations

from collections.abc import Callable

Format = Callable[[float | None, float | None], str]
NONE = "–"
_BYTES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))


def plain(value: float) -> str:
    """Return three significant digits without an exponent where that stays short."""
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.2e}"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:.{digits}f}"


def rounds(mean: float | None, std: float | None = None) -> str:
    """Return a number of rounds; a mean over seeds keeps one decimal."""
    if mean is None:
        return NONE
    return f"{mean:g}" if std is None and mean == int(mean) else f"{mean:.1f}{_plus(std, '.1f')}"


def percent(mean: float | None, std: float | None = None) -> str:
    """Return a share in percent."""
    return NONE if mean is None else f"{100 * mean:.1f} %{_plus(None if std is None else 100 * std, '.1f')}"


def difference(metric: str) -> Callable[[float | None], str]:
    """Return how a difference of a metric or cost is written, with its sign: points of per cent for accuracies."""

    def write(value: float | None) -> str:
        if value is None:
            return NONE
        if metric.endswith("_to_target"):
            cost = rounds if metric.startswith("rounds") else seconds if metric.startswith("seconds") else size
            return f"{'-' if value < 0 else '+'}{cost(abs(value), None)}"
        return f"{100 * value:+.2f} points" if metric == "accuracy" else f"{value:+.3g}"

    return write


def loss(mean: float | None, std: float | None = None) -> str:
    """Return a loss; the spread keeps as many decimals as the mean."""
    if mean is None:
        return NONE
    text = plain(mean)
    decimals = len(text.partition(".")[2]) if "e" not in text else 3
    return text + _plus(std, f".{decimals}f" if "e" not in text else ".1e")


def size(mean: float | None, std: float | None = None) -> str:
    """Return bytes in decimal units, mean and spread in the same unit."""
    if mean is None:
        return NONE
    # compare the rounded value, because 999.9 kB would print as "1000 kB"
    name, unit = next(((n, u) for n, u in _BYTES if mean >= 0.9995 * u), ("B", 1.0))
    scaled = mean / unit
    form = ".0f" if name == "B" or scaled >= 100 else ".1f"
    return f"{scaled:{form}} {name}{_plus(None if std is None else std / unit, form)}"


def seconds(mean: float | None, std: float | None = None) -> str:
    """Return a duration in the two largest units that matter."""
    if mean is None:
        return NONE
    return _span(mean) + ("" if std is None else f" ± {_span(std, mean)}")


def ratio(value: float | None) -> str:
    """Return a factor such as 0.62×."""
    return NONE if value is None else f"{value:.2f}×" if value < 10 else f"{value:.0f}×"


def score(metric: str) -> Format:
    """Return how values of a metric are written: accuracies in percent."""
    return percent if metric == "accuracy" else loss


def interval(metric: str, low: float | None, high: float | None) -> str:
    """Return an interval of a metric, 88.1 to 90.2 %; accuracies below 0 or above 1 are not possible."""
    if low is None or high is None:
        return NONE
    return (
        f"{100 * max(low, 0.0):.1f} to {100 * min(high, 1.0):.1f} %"
        if metric == "accuracy"
        else f"{plain(low)} to {plain(high)}"
    )


def goal(target: float | None, metric: str = "accuracy") -> str:
    """Return the target as in "reached 80 %"; "the target" where runs have different ones."""
    if target is None:
        return "the target"
    return f"{100 * target:g} %" if metric == "accuracy" else f"{metric} {target:g}"


def heading(name: str) -> str:
    """Return a name with a capital first letter, and else as it is: AUC stays AUC."""
    return name[:1].upper() + name[1:]


def _plus(std: float | None, form: str) -> str:
    return "" if std is None else f" ± {std:{form}}"


def _span(value: float, beside: float | None = None) -> str:
    """Return ``value`` as text, without small units if it stands beside a larger duration."""
    scale = value if beside is None else beside
    if scale < 59.95 and value < 59.95:
        return f"{value:.2f} s" if scale < 0.995 else f"{value:.1f} s"
    whole = round(value)
    if scale < 3600 and whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"
    minutes = round(value / 60)
    if scale < 86400 and minutes < 1440:
        return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"
    hours = round(value / 3600)
    return f"{hours // 24} d {hours % 24} h" if hours >= 24 else f"{hours} h"
