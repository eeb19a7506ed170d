"""The families of models, a module each, called as the `model_type` that config.json has for it.

A module says what the fields of its config.json mean (`config_file.Family`). To add one takes this module, its test
(tests/executor/families) and a row in docs/models.md.
"""
