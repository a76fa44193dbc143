"""Which aggregators a codec would mislead, and which it does not."""

import pytest

import fedweave as fw
from fedweave.aggregate import Extrapolated, Mean, Robust, Stale
from fedweave.upload import ErrorFeedback, Quantized, RandomK, TopK

UNIFORM = fw.sample.Uniform(3)


@pytest.mark.parametrize("upload", [TopK(0.1), RandomK(0.1), ErrorFeedback(TopK(0.1))])
@pytest.mark.parametrize("wrap", [lambda part: part, Stale])
def test_trimming_needs_every_entry(upload, wrap):
    """Where fewer clients send an entry than are left after trimming, the trimmed mean is that of zeros."""
    with pytest.raises(fw.BadInput, match="for votes"):
        fw.Method(UNIFORM, aggregator=wrap(Robust(Mean(), trim=0.2)), upload=upload)
    fw.Method(UNIFORM, aggregator=wrap(Robust(Mean(), clip="median")), upload=upload)
    fw.Method(UNIFORM, aggregator=wrap(Robust(Mean(), trim=0.2)), upload=Quantized(4))


@pytest.mark.parametrize("upload", [RandomK(0.1), Quantized(4)])
def test_extrapolation_needs_updates_of_their_own_length(upload):
    """E‖Q(u)‖² > ‖u‖² looks like clients that disagree: FedExP would take longer steps for the codec's noise."""
    with pytest.raises(fw.BadInput, match="makes updates longer"):
        fw.Method(UNIFORM, aggregator=Extrapolated(Mean()), upload=upload)
    fw.Method(UNIFORM, aggregator=Extrapolated(Mean()), upload=ErrorFeedback(upload))
    fw.Method(UNIFORM, aggregator=Extrapolated(Mean()), upload=TopK(0.1))


def test_residuals_do_not_roll():
    with pytest.raises(fw.BadInput, match="leave one of the two out"):
        fw.Experiment("fedavg", model="mlp", submodels="0.5", roll=1, upload="ef:topk:0.1")
