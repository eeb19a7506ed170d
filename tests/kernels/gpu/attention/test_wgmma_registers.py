"""Machine code as ptxas writes it for a warp-group product, and with one fault each."""

import pytest

from tests.kernels.gpu.wgmma_registers import misused_registers

CODE = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;                                    /* 0x00000a0000017a02 */
        /*0010*/                   WARPGROUP.ARRIVE ;                                        /* 0x00000000000079c6 */
        /*0020*/                   HGMMA.64x64x16.F32.BF16 R24, R120, gdesc[UR8].tnspB, R24 ; /* 0x40e0000878187df0 */
        /*0030*/                   {first} ;
        /*0040*/                   HGMMA.64x64x16.F32.BF16 R24, R124, gdesc[UR12].tnspB, R24, gsb0 ;
        /*0050*/              @!P2 EXIT ;
        /*0060*/               @P1 BRA 0xa0 ;
        /*0070*/                   {second} ;
        /*0080*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0090*/                   BRA 0xd0 ;
        /*00a0*/                   {third} ;
        /*00b0*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*00c0*/                   FMUL R24, R120, R124 ;
        /*00d0*/                   EXIT ;
"""
FINE = {"first": "FADD R60, R60, R61", "second": "STS [R120], R121", "third": "LDS.128 R56, [R124]"}


@pytest.mark.parametrize(
    "fine",
    [
        {},
        {"first": "@P0 BRA 0xd0"},  # the end, on a path without a wait
        {"second": "LDSM.16.M88.4 R56, [R120]"},
        {"third": "ISETP.GE.AND P0, PT, R120, R121, PT"},
        {"first": "FADD R23, R120, R121"},
    ],
)
def test_registers_that_are_read_or_of_others(fine: dict[str, str]) -> None:
    assert not misused_registers(CODE.format(**FINE | fine))


@pytest.mark.parametrize(
    ("fault", "num_found"),
    [
        ({"first": "FADD R121, R60, R61"}, 1),  # of the first product alone
        ({"first": "@P3 MOV R124, R60"}, 0),  # before the second product reads it
        ({"second": "FADD R125, R60, R61"}, 1),
        ({"second": "LDS.128 R120, [R60]"}, 1),
        ({"second": "LDSM.16.M88.4 R118, [R60]"}, 1),
        ({"third": "SHFL.BFLY PT, R127, R60, 0x1, 0x1f"}, 1),  # after a jump
        ({"third": "IMAD.WIDE R126, R60, R61, R62"}, 1),
        ({"third": "FADD R60, R55, R61"}, 2),  # the sum of both
        ({"second": "WARPGROUP.DEPBAR.LE gsb0, 0x1", "third": "STG.E [R2.64], R24"}, 2),
        ({"second": "BRA 0x20"}, 0),  # a loop, without anything wrong
        ({"second": "BRA 0x10", "first": "MOV R121, R60"}, 1),
        ({"second": "BRA 0x0", "first": "MOV R125, R60"}, 1),  # of the last round's second product
    ],
)
def test_what_is_taken_too_early(fault: dict[str, str], num_found: int) -> None:
    found = misused_registers(CODE.format(**FINE | fault))
    assert len(found) == num_found, found
    assert all("may not have ended" in sentence for sentence in found)
