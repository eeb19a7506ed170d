"""A real keeper, and puppets that hold something of it, for the executor's end of their link."""

from tests.keeper_svc.conftest import folder, keeper, puppet  # noqa: F401  (fixtures)
