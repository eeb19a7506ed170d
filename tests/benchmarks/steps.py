"""Steps as a recorder would have written them."""

import numpy as np

from benchmarks.rig.step_records import RecordedStep


def make_step(rows, launched_s=0.0, num_samples=None, **times):
    """A step of (query length, context length) rows, all sampled unless said otherwise."""
    queries, contexts = (np.array(column, np.int32) for column in zip(*rows, strict=True))
    samples = len(rows) if num_samples is None else num_samples
    return RecordedStep(queries.tobytes(), contexts.tobytes(), samples, launched_s, **times)
