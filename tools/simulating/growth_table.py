"""Predictions as a table, and as a figure."""

from __future__ import annotations

from collections.abc import Sequence

from netbuilder.parallel.simulation.allreduce import Cluster, allreduce_seconds
from netbuilder.parallel.simulation.links import Link
from netbuilder.parallel.simulation.published import Published
from netbuilder.parallel.simulation.simulate import Prediction
from netbuilder.runtime.profile.text_table import TextTable
from netbuilder.tools.picture import figure_classes, save_picture

__all__ = ["draw_growth", "growth_table", "link_table", "published_table"]

_HEAD = ("devices", "hosts", "step ms", "compute ms", "exchange ms", "exposed ms", "hidden", "efficiency", "samples/s")


def growth_table(title: str, found: Sequence[Prediction]) -> TextTable:
    """Return predictions as a table; "hidden" is the share of the exchange that does not make the step longer."""
    return TextTable(title, _HEAD, [_row(each) for each in found])


def _row(found: Prediction) -> tuple[str, ...]:
    hidden = f"{100 * (1 - min(1.0, found.exposed / found.exchange)):.1f}%" if found.exchange else ""
    times = (found.step, found.compute, found.exchange, found.exposed)
    return (
        str(found.size), str(found.hosts), *(f"{1e3 * seconds:.2f}" for seconds in times), hidden,
        f"{100 * found.efficiency:.1f}%", f"{found.samples_per_second:.1f}",
    )  # fmt: skip


def published_table(published: Published, found: Sequence[Prediction]) -> TextTable:
    """Return predictions with the published steps of the same sizes; efficiencies are relative to the first one."""
    rows = [
        (
            str(size), f"{1e3 * seconds:.0f}", f"{100 * published.efficiency(seconds):.1f}%", f"{1e3 * each.step:.1f}",
            f"{100 * found[0].step / each.step:.1f}%", f"{1e3 * each.exchange:.1f}", f"{1e3 * each.exposed:.1f}",
        )
        for (size, seconds), each in zip(published.steps, found)
    ]  # fmt: skip
    head = ("devices", "published ms", "efficiency", "predicted ms", "efficiency", "exchange ms", "exposed ms")
    return TextTable(published.source, head, rows)


def link_table(points: Sequence[tuple[int, float]], link: Link, processes: int) -> TextTable:
    """Return the times of measured allreduces, and those that the link gives."""
    cluster = Cluster(processes, 1, link)
    rows = [
        (str(size), f"{1e6 * seconds:.1f}", f"{1e6 * allreduce_seconds(cluster, size):.1f}", _bandwidth(link, size))
        for size, seconds in points
    ]
    title = f"allreduce over {processes} processes: {link}"
    return TextTable(title, ("bytes", "measured us", "by the link us", "GB/s"), rows)


def _bandwidth(link: Link, size: int) -> str:
    return f"{link.bandwidth_at(size) / 1e9:.2f}"


def draw_growth(path: str, title: str, found: Sequence[Prediction]) -> None:
    """Write a figure with efficiency and step time by the number of devices.

    Raises:
        NetError: matplotlib is missing.
    """
    figure = figure_classes()[0](figsize=(9, 3.5), layout="constrained")
    efficiency, times = figure.subplots(1, 2)
    every = sorted(found, key=lambda each: (each.size, each.hosts))
    labels = [f"{each.devices}x{each.hosts}" if each.hosts > 1 else str(each.devices) for each in every]
    places = range(len(every))
    efficiency.plot(places, [100 * each.efficiency for each in every], marker="o")
    efficiency.set_ylim(0, 105)
    efficiency.set_ylabel("efficiency (%)")
    times.bar(places, [1e3 * each.compute for each in every], label="computing")
    times.bar(
        places, [1e3 * each.exposed for each in every], bottom=[1e3 * each.compute for each in every],
        label="exposed exchange",
    )  # fmt: skip
    times.set_ylabel("step (ms)")
    times.legend()
    for axes in (efficiency, times):
        axes.set_xticks(places, labels)
        axes.set_xlabel("devices, or devices x hosts")
    figure.suptitle(title)
    save_picture(figure, path)
