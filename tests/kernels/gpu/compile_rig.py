"""What every kernel takes in every configuration that its launcher can pick, on a machine without a GPU.

    python -m tests.kernels.gpu.compile_rig --arch 90
    python -m tests.kernels.gpu.compile_rig --arch 80 --arch 100 --group attention --thorough --json

Of models and block sizes that take the same configuration a few stand for all, unless it is to be thorough.
Exits with 1 where a kernel does not compile, spills, has local memory, or takes more shared memory than there is;
with --json the faults stand in the lines.
Works with any Triton that is first on the path. Triton's cache (TRITON_CACHE_DIR) makes a second run a quick one.
"""

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict

import click

from tests.kernels.gpu import broken_kernels, compile_cases
from tests.kernels.gpu.compiling import SHARED_BYTES_LIMITS, Compiled, Launch, Variant, compile_variants, list_variants

GROUPS = {**compile_cases.GROUPS, "broken": broken_kernels.launches}


@click.command()
@click.option("--arch", "archs", type=click.Choice([str(arch) for arch in SHARED_BYTES_LIMITS]), multiple=True)
@click.option("--group", "groups", type=click.Choice(list(GROUPS)), multiple=True, help="All but broken, if not said.")
@click.option("--thorough", is_flag=True, help="Every model and block size, in minutes.")
@click.option("--json", "as_json", is_flag=True, help="A line for each, instead of a table.")
@click.option("--list", "only_list", is_flag=True, help="Compile nothing; name what is missing for steps at random.")
def main(archs: tuple[str, ...], groups: tuple[str, ...], thorough: bool, as_json: bool, only_list: bool) -> None:
    """Compile, and print what each kernel takes."""
    faults = 0
    for arch in map(int, archs or SHARED_BYTES_LIMITS):
        for group in groups or compile_cases.GROUPS:
            wanted = list_variants(GROUPS[group](thorough), arch)
            if only_list:
                faults += _print_list(group, wanted, arch)
                continue
            if not thorough and group in compile_cases.FEW:
                wanted = compile_cases.few_of_a_kind(wanted, compile_cases.FEW[group])
            compiled = compile_variants(wanted, arch)
            (_print_json if as_json else _print_table)(compiled)
            faults += sum(len(each.faults()) for each in compiled)
    sys.exit(1 if faults and not as_json else 0)


def _print_json(compiled: Iterable[Compiled]) -> None:
    for each in compiled:
        click.echo(json.dumps({**asdict(each), "faults": each.faults()}))


def _print_table(compiled: Iterable[Compiled]) -> None:
    row = "{:<5} {:<34} {:>9} {:>5} {:>7} {:>6} {:>5} {:>4}  {}"
    click.echo(row.format("arch", "kernel", "registers", "stack", "shared", "tensor", "wgmma", "wide", "configuration"))
    for each in sorted(compiled, key=lambda each: (each.variant.kernel, each.variant.config)):
        marks = ("yes" if each.wgmma else "", "yes" if each.wide_loads else "")
        sizes = (each.registers, each.stack_bytes, each.shared_bytes, each.tensor_columns)
        click.echo(row.format(each.arch, each.variant.kernel, *sizes, *marks, " ".join(each.variant.config)))
        for fault in each.faults():
            click.echo(f"      {fault}", err=True)


def _print_list(group: str, wanted: dict[Variant, Launch], arch: int) -> int:
    known = {compile_cases.picked(variant) for variant in wanted}
    drawn = list_variants(compile_cases.random_launches(group, seed=arch), arch)
    missing = {variant: launch for variant, launch in drawn.items() if compile_cases.picked(variant) not in known}
    for mark, found in (("", wanted), ("MISSING ", missing)):
        for variant, launch in found.items():
            click.echo(f"{mark}{variant}({', '.join(variant.arguments)}) for {launch.name}")
    return len(missing)


if __name__ == "__main__":
    main()
