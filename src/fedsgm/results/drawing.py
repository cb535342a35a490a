"""What all pictures share: panels in a grid, plain numbers on logarithmic axes, a legend beside the curves, files."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.files import write_atomically

FORMATS = (".png", ".svg", ".pdf")
_DPI = 150
_TALLEST = 16_000  # pixels, which every viewer opens


def grid(panels: int, width: float, height: float) -> tuple[Any, list[Any]]:
    """A figure and so many axes of this size in inches, in rows of at most three, or four where they are many."""
    from matplotlib.figure import Figure

    columns = panels if panels <= 3 else 2 if panels == 4 else 3 if panels <= 12 else 4
    rows = math.ceil(panels / columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes[panels:]:
        axis.remove()
    return figure, axes[:panels]


def plain_log(axis: Any, which: str = "y") -> None:
    """A logarithmic scale with numbers as people write them; to be called when everything is drawn."""
    from matplotlib import ticker

    getattr(axis, f"set_{which}scale")("log")
    low, high = getattr(axis, f"get_{which}lim")()
    if not 0 < low < high < math.inf:  # nothing is drawn that has a place on it
        getattr(axis, f"set_{which}scale")("linear")
        return
    decades = math.log10(high / low)
    along = getattr(axis, f"{which}axis")
    subs = (1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)
    along.set_major_locator(ticker.MaxNLocator(6) if decades < 0.8 else ticker.LogLocator(subs=subs, numticks=12))
    along.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    along.set_minor_formatter(ticker.NullFormatter())


def legend_below(figure: Any, axes: Sequence[Any], size: float = 9) -> None:
    """One legend for all axes, under them: it covers no curve. A label that several have is in it once."""
    found: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    longest = max(map(len, found), default=1)
    fits = int(figure.get_figwidth() / (0.6 + size * 0.009 * longest))
    where = {"loc": "outside lower center", "ncols": max(1, min(fits, 5)), "frameon": False}
    figure.legend(list(found.values()), list(found), fontsize=size, **where)


def bounds(axis: Any, at: Sequence[float], courses: Sequence[np.ndarray], *, label: str | None = None) -> None:
    """The bounds in red, and the band about them that [..., rounds] courses end in; they may start far from it."""
    for i, bound in enumerate(at):
        axis.axhline(bound, color="red", linestyle=":", linewidth=1.6, label=None if i else label)
    settled = np.concatenate([values[..., values.shape[-1] // 2 :].ravel() for values in courses])
    settled = settled[np.isfinite(settled)]
    if settled.size and at[0] > 0:
        axis.set_ylim(min(0, settled.min()), max(3 * at[-1], 1.1 * settled.max()))


def rounds_from_one(axis: Any, last: int) -> None:
    """The axis of rounds, which are counted from 1: there is no round 0 to begin at."""
    axis.set_xlim(1 if last > 1 else 0.5, last + max(0.02 * last, 0.5))
    axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)


def no_formula(text: str) -> str:
    """A name from a user's table or of a folder, as it is: between two dollars there is no formula."""
    return text.replace("$", r"\$")


def title(text: str, width: int = 48) -> str:
    """A panel's title in lines that are no wider than it."""
    return no_formula("\n".join(textwrap.wrap(text, width)))


def check_format(path: Path) -> None:
    if path.suffix not in FORMATS:
        raise SettingError(f"{path}: a picture's name must end in {', '.join(FORMATS)}")


def encoded(figure: Any, suffix: str, dpi: int = _DPI) -> bytes:
    """The picture in a format, such as ``".png"``."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format=suffix[1:], dpi=min(dpi, _TALLEST / figure.get_figheight()))
    return buffer.getvalue()


def write(figure: Any, path: Path) -> None:
    """As the path's ending says, whole or not at all."""
    write_atomically(path, encoded(figure, path.suffix))
