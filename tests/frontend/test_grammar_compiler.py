"""Grammars are compiled beside the frontend, each once, and what goes wrong with one concerns no other."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from common.model_files import DEMO_MODEL_DIR
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.grammars import compiler as compiler_module
from scheduler_svc.frontend.grammars.compiler import GrammarCompiler
from scheduler_svc.frontend.grammars.spec import Checked, GrammarSpec
from tests.support.event_loop import in_event_loop
