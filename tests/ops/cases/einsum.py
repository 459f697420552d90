"""Sums of products by an equation."""

from tests.ops.case import arr, case

CASES = [
    case("Einsum", arr(2, 3), arr(3, 4), equation="ij,jk->ik"),
    case("Einsum", arr(2, 3), arr(3, 4), equation="ij,jk"),
    case("Einsum", arr(2, 3), equation="ij->ji"),
    case("Einsum", arr(2, 3), equation="ij -> i"),
    case("Einsum", arr(2, 3), equation="ij->"),
    case("Einsum", arr(3, 3), equation="ii"),
    case("Einsum", arr(3, 3), equation="ii->i"),
    case("Einsum", arr(2, 2, 2), equation="iii->i"),
    case("Einsum", arr(2, 3, 3), arr(3, 2), equation="bii,ic->bc"),
    case("Einsum", arr(2, 3, 4), arr(2, 4, 5), equation="bij,bjk->bik"),
    case("Einsum", arr(2, 3, 4), arr(4), equation="...j,j"),
    case("Einsum", arr(2, 2, 3), arr(3, 4), equation="...ij,jk->...ik"),
    case("Einsum", arr(2, 1, 3), arr(1, 4, 3), equation="...i,...i->..."),
    case("Einsum", arr(2, 3, 3), equation="...ii->...i"),
    case("Einsum", arr(3), arr(4), equation="i,j"),
    case("Einsum", arr(3), arr(3), equation="i,i"),
    case("Einsum", arr(3), arr(3), equation="i,i->i"),
    case("Einsum", arr(2), arr(2, 3), arr(3), equation="a,ab,b->"),
    case("Einsum", arr(2, 3), arr(3, 2), arr(2, 4), equation="ab,bc,ad->dc"),
    case("Einsum", arr(2, 3), arr(4, 5), equation="ab,cd->ad"),
    case("Einsum", arr(2, 3), arr(), equation="Ab,->bA"),
    case("Einsum", arr(2, 3) + 1j, arr(3) - 0.5j, equation="ij,j->i", label="complex"),
    case("Einsum", arr(2, 0), arr(0, 3), equation="ij,jk->ik", label="empty"),
    case("Einsum", arr(2, 3, 2, 4), arr(2, 5, 2, 4), equation="bqhd,bkhd->bhqk"),
]
