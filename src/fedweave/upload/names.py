"""The written forms of uploads, as ``--upload`` and ``Experiment(upload=...)`` take them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from fedweave.core import plugins
from fedweave.core.roles import Upload
from fedweave.core.settings import BadInput, choice
from fedweave.upload.feedback import ErrorFeedback
from fedweave.upload.quantized import Quantized
from fedweave.upload.sparse import RandomK, TopK


class Form(NamedTuple):
    """How an upload is written on the command line."""

    make: Callable[..., Upload]
    form: str  # what may be left out is in brackets


def _values(bits: Any = None) -> Quantized | None:
    return None if bits is None else Quantized(bits)


FORMS = {
    "topk": Form(lambda share, *bits: TopK(share, _values(*bits)), "topk:SHARE[:BITS]"),
    "randomk": Form(lambda share, *bits: RandomK(share, _values(*bits)), "randomk:SHARE[:BITS]"),
    "quantized": Form(Quantized, "quantized:BITS"),
    "ef": Form(lambda *inner: ErrorFeedback(parse(":".join(inner))), "ef:FORM"),
}


def parse(text: str) -> Upload:
    """Turn a written form such as ``topk:0.01`` or ``ef:topk:0.01:4`` into an upload."""
    kind, *values = text.strip().split(":")
    if kind not in FORMS:
        if plugin := plugins.plugin_text("uploads", text.strip()):
            return plugins.make(plugin, Upload, "an Upload")
        known = choice("upload", kind, [*FORMS, *plugins.offered("uploads")])
        forms = ", ".join(form.form for form in FORMS.values())
        raise BadInput(f"{known} Forms: {forms}.{plugins.hint(text)}")
    form = FORMS[kind].form
    if not values or (kind != "ef" and len(values) > form.count(":")):
        raise BadInput(f"The upload {text!r} has too few or too many values. Write {form}.")
    try:
        return FORMS[kind].make(*values)  # settings turn the written numbers into numbers
    except BadInput as e:
        if kind == "ef":
            raise
        raise BadInput(*e.problems, f"An upload of this kind is written {form}.") from None
