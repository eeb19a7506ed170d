"""Each fault that the rig has to find can still be planted: what it names is there. Needs no pretended GPU."""

import pytest

from tests.rig.faults import FAULTS, plant
from tests.rig.planting import Plant, planted

BOX = f"{__name__}.Box"


def tripled(number: int) -> int:
    return 3 * number


class Box:
    def opened(self, number: int) -> int:
        return tripled(number) + tripled(
            number + 1,
        )


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_can_be_planted(name: str) -> None:
    with plant(name):
        pass


def test_faults_are_numbered() -> None:
    numbers = [int((make.__doc__ or "").partition(":")[0]) for make in FAULTS.values()]
    assert numbers == list(range(1, 23))


def test_a_call_is_found_by_its_name_and_place() -> None:
    fault = Plant(f"{BOX}.opened", lambda original, number: -original(number), "tripled", at=1, of=2)
    with planted([fault]):
        assert Box().opened(1) == 3 - 6
    assert Box().opened(1) == 3 + 6


def test_a_function_is_replaced_and_put_back() -> None:
    fault = Plant(f"{BOX}.opened", lambda original, self, number: original(self, number) + 100)
    with planted([fault]):
        assert Box().opened(1) == 109
    assert Box().opened(1) == 9


def test_a_class_that_another_module_has_is_changed_there_alone() -> None:
    import json
    from json import decoder

    with planted([Plant("json.JSONDecoder.decode", lambda original, self, text: "planted")]):
        assert json.JSONDecoder().decode("1") == "planted"
        assert decoder.JSONDecoder().decode("1") == 1


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Plant(f"{BOX}.closed", print), AttributeError),
        (Plant("tests.no_module.function", print), AttributeError),
        (Plant("no_package.module.function", print), ModuleNotFoundError),
        (Plant(f"{BOX}.opened", print, "tripled"), ValueError),
        (Plant(f"{BOX}.opened", print, "doubled"), ValueError),
    ],
)
def test_what_is_not_there_is_an_error(fault: Plant, error: type[Exception]) -> None:
    with pytest.raises(error), planted([fault]):
        pass
